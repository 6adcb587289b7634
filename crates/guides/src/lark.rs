//! Bounds on Lark grammars as llguidance writes them, whose terminals may intersect (`&`) others. Owns an upper bound
//! of the patterns that meet in one terminal. Complements (`~`) do not multiply. What is not a grammar is left to the
//! compiler to refuse.

use std::collections::HashMap;

use serde_json::Value;

use crate::{MAX_DEPTH, Problem, intersected, schema};

/// Checks a Lark grammar, and the JSON schemas in it.
///
/// # Errors
/// [`Problem`].
pub fn check(grammar: &str) -> Result<(), Problem> {
    let mut definitions: HashMap<&str, Definition<'_>> = HashMap::new();
    // What precedes the first definition belongs to none; a name that is defined twice counts as both.
    let mut current = "";
    let mut before_colon = None;
    let mut intersections = 0u32;
    let mut has_attributes = false;
    let mut rest = grammar;
    while let Some((token, after)) = next(rest) {
        rest = after;
        let name = before_colon.take();
        match token {
            Token::Name(name) => {
                definitions.entry(current).or_default().names.push(name);
                before_colon = Some(name);
            }
            Token::Colon => match name {
                // It is what is being defined, not a part of the definition before.
                Some(name) => {
                    definitions.entry(current).or_default().names.pop();
                    current = name;
                }
                // A priority or attributes follow the name.
                None => has_attributes = true,
            },
            Token::Intersection => {
                definitions.entry(current).or_default().intersections += 1;
                intersections += 1;
            }
            Token::Json(value) => schema::check(&value)?,
            Token::Other => {}
        }
    }
    if has_attributes {
        // Which intersection is part of which is not looked into: at worst each doubles what those before it have.
        return intersected(2usize.checked_pow(intersections).unwrap_or(usize::MAX));
    }
    let mut counts = Counts {
        definitions: &definitions,
        known: HashMap::new(),
    };
    for name in definitions.keys() {
        intersected(counts.of(name, 0)?)?;
    }
    Ok(())
}

/// What one terminal or rule is made of.
#[derive(Debug, Default)]
struct Definition<'a> {
    names: Vec<&'a str>,
    intersections: usize,
}

struct Counts<'a, 'g> {
    definitions: &'a HashMap<&'g str, Definition<'g>>,
    /// 0 while it is being counted: what refers to itself is refused by the compiler, or is a rule.
    known: HashMap<&'g str, usize>,
}

impl<'g> Counts<'_, 'g> {
    /// How many patterns may meet in what has this name.
    fn of(&mut self, name: &'g str, level: usize) -> Result<usize, Problem> {
        if let Some(count) = self.known.get(name) {
            return Ok(*count);
        }
        let definitions = self.definitions;
        let Some(definition) = definitions.get(name) else {
            return Ok(1);
        };
        if level > MAX_DEPTH {
            return Err(Problem::TooDeep);
        }
        self.known.insert(name, 0);
        // Alternatives and sequences within an operand do not multiply: it counts as its largest part.
        let mut largest = 1;
        for part in &definition.names {
            largest = self.of(part, level + 1)?.max(largest);
        }
        let count = largest.saturating_mul(definition.intersections + 1);
        self.known.insert(name, count);
        Ok(count)
    }
}

enum Token<'a> {
    Name(&'a str),
    Colon,
    Intersection,
    /// The schema after `%json`.
    Json(Value),
    Other,
}

/// The first token of `text`, and what follows it.
fn next(text: &str) -> Option<(Token<'_>, &str)> {
    let text = skip_blank(text);
    let first = text.chars().next()?;
    let after = |bytes: usize| text.get(bytes..).unwrap_or_default();
    Some(match first {
        '"' => (
            Token::Other,
            after(quoted(text, '"', |letter| letter.is_ascii_control())),
        ),
        '/' => (Token::Other, after(quoted(text, '/', |_| false))),
        '<' => (Token::Other, after(special(text))),
        '&' => (Token::Intersection, after(1)),
        ':' => (Token::Colon, after(1)),
        '%' => match text.strip_prefix("%json") {
            Some(schema) => {
                let mut values = serde_json::Deserializer::from_str(schema).into_iter::<Value>();
                match values.next() {
                    Some(Ok(value)) => {
                        let end = values.byte_offset();
                        (Token::Json(value), schema.get(end..).unwrap_or_default())
                    }
                    _ => (Token::Other, schema),
                }
            }
            None => (Token::Other, after(1)),
        },
        first if first.is_ascii_alphabetic() || first == '_' => {
            let end = text.find(|letter: char| !is_name(letter));
            let end = end.unwrap_or(text.len());
            (Token::Name(text.get(..end).unwrap_or_default()), after(end))
        }
        first => (Token::Other, after(first.len_utf8())),
    })
}

fn is_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-')
}

fn skip_blank(mut text: &str) -> &str {
    loop {
        text = text.trim_start();
        if !text.starts_with("//") && !text.starts_with('#') {
            return text;
        }
        text = text.split_once('\n').map_or("", |(_, after)| after);
    }
}

/// How many bytes a string or regular expression has that `text` begins with, its quotes included; 1 if it does not
/// end, or has what may not be in it: the compiler refuses that.
fn quoted(text: &str, quote: char, is_refused: impl Fn(char) -> bool) -> usize {
    let mut is_escaped = false;
    for (place, letter) in text.char_indices().skip(1) {
        match letter {
            letter if is_refused(letter) => return 1,
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            letter if letter == quote => return place + 1,
            _ => {}
        }
    }
    1
}

/// The same of a special token, such as `<|end|>`.
fn special(text: &str) -> usize {
    let ends = |letter: char| letter.is_whitespace() || matches!(letter, '<' | '>');
    let rest = text.get(1..).unwrap_or_default();
    match rest.find(ends) {
        Some(end) if end > 0 && rest[end..].starts_with('>') => end + 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_INTERSECTED;

    fn count(grammar: &str) -> usize {
        match check(grammar) {
            Ok(()) => 0,
            Err(Problem::TooManyPatterns { count }) => count,
            Err(problem) => panic!("{problem}"),
        }
    }

    #[test]
    fn grammars_of_people_pass() {
        for grammar in [
            "start: WORD (\",\" WORD)*\nWORD: /[a-z]+/",
            "start: A\nA: /a&b~c&d&e&f&g&h&i&j&k/ \"&&&&&&&&&&&&\" // & & & & & & & & & & &\n",
            "start: A\nA: /.*[0-9].*/ & /.*[A-Z].*/ & /.*[a-z].*/ & /.{8,64}/",
            "start: rule~3\nrule: A~2 B~1..4\nA: \"a\"\nB: \"b\"",
            "start: NAME\nNAME: /[a-z]+/ & ~(\"if\"|\"in\"|\"or\"|\"is\"|\"as\"|\"do\"|\"go\"|\"of\"|\"to\"|\"up\")",
            "%ignore /\\s+/\nstart: start2 start2 start2 start2\nstart2: \"x\" | \"y\" | \"z\"",
        ] {
            assert_eq!(check(grammar), Ok(()), "{grammar}");
        }
    }

    #[test]
    fn patterns_of_an_intersection_are_counted_through_names() {
        let direct = format!("start: A\nA: {}", ["/.*a/"; 9].join(" & "));
        assert_eq!(count(&direct), 9);
        // Each doubles the one before.
        let chain =
            "start: E\nA: /a/ & /b/\nB: A & (A /x/)\nC: B & (B /x/)\nD: C & (C /x/)\nE: D & D";
        assert!(count(chain) > MAX_INTERSECTED);
        let complements = format!("A: {}\nstart: A", ["~/x/"; 12].join(" & "));
        assert_eq!(count(&complements), 12);
        assert_eq!(count("A: /a/ & /b/ & /c/\nstart: A | A | A | A | A"), 0);
    }

    #[test]
    fn nothing_hides_an_intersection() {
        let many = ["/.*a/"; 12].join(" & ");
        for (hiding, count_at_least) in [
            (format!("start: A\nA: /x\n\"/ & {many} & \"y\""), 12),
            (format!("start: A\nA: <\"> & {many} & \"y\""), 12),
            (format!("start: A\nA: \"a\nb & {many}\""), 12),
            // Ten of four each, by names with a priority, with attributes, with a dash.
            (
                "start: B\nA.1: /a/ & /b/ & /c/ & /d/\nB.1: A & A & A".to_owned(),
                12,
            ),
            (
                "start: b\na[stop=\"x\"]: /a/ & /b/ & /c/ & /d/\nb[stop=\"x\"]: a & a & a"
                    .to_owned(),
                12,
            ),
            (
                "start: B-1\nA-1: /a/ & /b/ & /c/ & /d/\nB-1: A-1 & A-1 & A-1".to_owned(),
                12,
            ),
        ] {
            assert!(count(&hiding) >= count_at_least, "{hiding}");
        }
        assert_eq!(
            check("start: A\nA.1: /a/ & /b/\nlist[max_tokens=5]: A"),
            Ok(())
        );
    }

    #[test]
    fn schemas_within_are_checked() {
        let parts = vec![r#"{"type": "string", "pattern": "a"}"#; 20].join(",");
        let grammar = format!("start: %json {{\"allOf\": [{parts}]}}\n");
        assert_eq!(count(&grammar), 20);
    }

    #[test]
    fn anything_is_read_to_its_end() {
        for grammar in [
            "",
            "\"",
            "/",
            "a:",
            ":",
            "%json",
            "%json {",
            "A: /a\\",
            "é: ~é & \"é",
        ] {
            let _ = check(grammar);
        }
    }
}
