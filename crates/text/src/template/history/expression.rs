//! Liquid's expressions as Jinja's: values, filters, conditions. Owns which variables there are; knows nothing of tags.

use super::filters::FILTERS;

/// A part of a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token<'a> {
    Name(&'a str),
    Number(&'a str),
    Text(&'a str),
    Sign(&'a str),
}

/// Signs, longer ones first.
const SIGNS: [&str; 15] = [
    "==", "!=", "<>", "<=", ">=", "..", "<", ">", "|", ":", ",", ".", "[", "]", "=",
];
/// Fields of `forloop`, and the engine's names for them.
const LOOP: [(&str, &str); 7] = [
    ("first", "first"),
    ("index", "index"),
    ("index0", "index0"),
    ("last", "last"),
    ("length", "length"),
    ("rindex", "revindex"),
    ("rindex0", "revindex0"),
];
/// Fields of an item.
const ITEM: [&str; 3] = ["identity", "content", "name"];

/// What an expression may name.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// By `assign` and `capture`, anywhere: they live in one namespace, as Liquid has no inner scopes for them.
    pub(super) assigned: Vec<String>,
    /// Of the loops around; whether each is over the items.
    pub(super) loops: Vec<(String, bool)>,
}

/// The inside of a tag, read from its beginning.
#[derive(Debug)]
pub(super) struct Reader<'a, 'n> {
    tokens: std::iter::Peekable<std::vec::IntoIter<Token<'a>>>,
    names: &'n Names,
}

/// What is wrong.
type Fault = String;

impl<'a, 'n> Reader<'a, 'n> {
    pub(super) fn new(inside: &'a str, names: &'n Names) -> Result<Self, Fault> {
        let tokens = tokens(inside)?.into_iter().peekable();
        Ok(Self { tokens, names })
    }

    /// Nothing may follow.
    pub(super) fn end(&mut self) -> Result<(), Fault> {
        match self.tokens.next() {
            None => Ok(()),
            Some(token) => Err(format!("{} is not expected here", shown(&token))),
        }
    }

    fn takes(&mut self, wanted: &Token<'_>) -> bool {
        self.tokens.next_if(|token| token == wanted).is_some()
    }

    pub(super) fn takes_sign(&mut self, sign: &str) -> bool {
        self.takes(&Token::Sign(sign))
    }

    pub(super) fn takes_word(&mut self, word: &str) -> bool {
        self.takes(&Token::Name(word))
    }

    /// A name that a tag gives.
    pub(super) fn name(&mut self) -> Result<&'a str, Fault> {
        match self.tokens.next() {
            Some(Token::Name(name)) => Ok(name),
            Some(token) => Err(format!("{} is not a name", shown(&token))),
            None => Err("a name is missing".to_owned()),
        }
    }

    /// A value with its filters.
    pub(super) fn filtered(&mut self) -> Result<String, Fault> {
        let mut out = self.value(true)?;
        while self.takes_sign("|") {
            let name = self.name()?;
            let Some((_, filter, least, most)) = FILTERS.iter().find(|(own, ..)| *own == name)
            else {
                let names: Vec<_> = FILTERS
                    .iter()
                    .map(|(name, ..)| format!("`{name}`"))
                    .collect();
                let names = names.join(", ");
                return Err(format!("unknown filter `{name}`; use one of {names}"));
            };
            let mut arguments = Vec::new();
            if self.takes_sign(":") {
                arguments.push(self.value(true)?);
                while self.takes_sign(",") {
                    arguments.push(self.value(true)?);
                }
            }
            if !(*least..=*most).contains(&arguments.len()) {
                let count = arguments.len();
                return Err(format!(
                    "filter `{name}` has `{count}` arguments, not `{least}` to `{most}`"
                ));
            }
            out = format!("({out}|{filter}({}))", arguments.join(", "));
        }
        Ok(out)
    }

    /// Whether something holds; `and` goes before `or`.
    pub(super) fn condition(&mut self) -> Result<String, Fault> {
        let mut out = self.comparison()?;
        loop {
            let word = match () {
                () if self.takes_word("and") => "and",
                () if self.takes_word("or") => "or",
                () => return Ok(out),
            };
            out = format!("{out} {word} {}", self.comparison()?);
        }
    }

    fn comparison(&mut self) -> Result<String, Fault> {
        let left = self.value(false)?;
        let sign = match self.tokens.peek() {
            Some(Token::Sign(sign @ ("==" | "!=" | "<" | ">" | "<=" | ">="))) => *sign,
            Some(Token::Sign("<>")) => "!=",
            Some(Token::Name("contains")) => {
                self.tokens.next();
                let right = self.value(true)?;
                return Ok(format!("({left} is containing({right}))"));
            }
            _ => return Ok(format!("({left} is truthy)")),
        };
        self.tokens.next();
        let right = self.value(true)?;
        Ok(format!("({left} {sign} {right})"))
    }

    /// A literal or a variable. One that nothing sets is nil, unless it `must_be_there`.
    pub(super) fn value(&mut self, must_be_there: bool) -> Result<String, Fault> {
        let token = self.tokens.next();
        let token = token.ok_or("a value is missing")?;
        match token {
            Token::Number(number) => Ok(number.to_owned()),
            Token::Text(text) => Ok(quoted(text)),
            Token::Name(word @ ("true" | "false")) => Ok(word.to_owned()),
            Token::Name("nil" | "null") => Ok("none".to_owned()),
            Token::Name(word @ ("empty" | "blank")) => Err(format!(
                "`{word}` is not supported; compare with \"\", or ask for the size"
            )),
            Token::Name("forloop") => self.loop_field(),
            Token::Name(name) => self.variable(name, must_be_there),
            Token::Sign(_) => Err(format!("{} is not a value", shown(&token))),
        }
    }

    fn loop_field(&mut self) -> Result<String, Fault> {
        if self.names.loops.is_empty() || !self.takes_sign(".") {
            return Err("`forloop` has fields, inside a `for`".to_owned());
        }
        let field = self.name()?;
        let own = LOOP.iter().find(|(name, _)| *name == field);
        let (_, own) = own.ok_or_else(|| format!("`forloop` has no `{field}` here"))?;
        Ok(format!("loop.{own}"))
    }

    fn variable(&mut self, name: &str, must_be_there: bool) -> Result<String, Fault> {
        let is_loops = |(own, _): &&(String, bool)| own == name;
        let of_loop = self.names.loops.iter().rev().find(is_loops);
        let is_item = of_loop.is_some_and(|(_, is_item)| *is_item);
        let is_assigned = self.names.assigned.iter().any(|own| own == name);
        let mut out = match of_loop {
            Some(_) => loop_variable(name),
            None if is_assigned => format!("set_.{name}"),
            None if name == "items" => "items".to_owned(),
            None if must_be_there => {
                return Err(format!("unknown variable `{name}`; a template has `items`"));
            }
            None => "none".to_owned(),
        };
        let mut is_known_item = is_item;
        loop {
            if self.takes_sign(".") {
                let field = self.name()?;
                out = match field {
                    _ if is_known_item && !ITEM.contains(&field) => {
                        let fields = ITEM.join("`, `");
                        return Err(format!("an item has no `{field}`; it has `{fields}`"));
                    }
                    "size" => format!("({out}|length)"),
                    "first" => format!("({out}|first)"),
                    "last" => format!("({out}|last)"),
                    _ => format!("{out}.{field}"),
                };
            } else if self.takes_sign("[") {
                let index = self.value(true)?;
                if !self.takes_sign("]") {
                    return Err("a `]` is missing".to_owned());
                }
                out = format!("{out}[{index}]");
            } else {
                return Ok(out);
            }
            is_known_item = false;
        }
    }
}

/// What a loop's variable is called in the engine, where it must not be a reserved word.
pub(super) fn loop_variable(name: &str) -> String {
    format!("each_{name}")
}

/// A text as the engine reads it.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn shown(token: &Token<'_>) -> String {
    match token {
        Token::Name(text) | Token::Number(text) | Token::Sign(text) | Token::Text(text) => {
            format!("`{text}`")
        }
    }
}

fn tokens(mut rest: &str) -> Result<Vec<Token<'_>>, Fault> {
    let mut found = Vec::new();
    loop {
        rest = rest.trim_start();
        let Some(first) = rest.chars().next() else {
            return Ok(found);
        };
        let length_of =
            |is_part: fn(char) -> bool| rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
        let is_minus =
            first == '-' && rest[1..].starts_with(|letter: char| letter.is_ascii_digit());
        let length = if first == '"' || first == '\'' {
            let end = rest[1..].find(first);
            let end = end.ok_or_else(|| format!("a text has no end: `{rest}`"))?;
            found.push(Token::Text(&rest[1..=end]));
            end + 2
        } else if first.is_ascii_digit() || is_minus {
            let digits = rest[1..].find(|letter: char| !letter.is_ascii_digit());
            let length = digits.map_or(rest.len(), |digits| digits + 1);
            found.push(Token::Number(&rest[..length]));
            length
        } else if first.is_ascii_alphabetic() || first == '_' {
            let length = length_of(|letter| letter.is_ascii_alphanumeric() || letter == '_');
            found.push(Token::Name(&rest[..length]));
            length
        } else {
            let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
            let sign = sign.ok_or_else(|| format!("`{first}` is not expected here"))?;
            found.push(Token::Sign(sign));
            sign.len()
        };
        rest = &rest[length..];
    }
}
