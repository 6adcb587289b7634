//! Liquid's tags as Jinja's, line by line. Owns where each block begins and ends; what is in a tag is `expression`'s.

use std::fmt;

use super::expression::{Names, Reader, loop_variable, quoted};

/// What cannot be translated, and where.
#[derive(Debug)]
pub(super) struct LiquidError {
    line: usize,
    what: String,
}

impl fmt::Display for LiquidError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}: {}", self.line, self.what)
    }
}

/// A part of a template.
#[derive(Debug)]
enum Part<'a> {
    Text(&'a str),
    Output(Tag<'a>),
    Tag(Tag<'a>),
    /// What is between `raw` and its end.
    Raw(Tag<'a>),
    Comment(Tag<'a>),
}

/// What is between `{%` or `{{` and its end.
#[derive(Clone, Copy, Debug)]
struct Tag<'a> {
    inside: &'a str,
    /// Whether it takes the white space before and behind it.
    trims: (bool, bool),
    line: usize,
}

impl Tag<'_> {
    fn dashes(&self) -> (&'static str, &'static str) {
        let dash = |trims| if trims { "-" } else { "" };
        (dash(self.trims.0), dash(self.trims.1))
    }
}

/// A block that is open.
#[derive(Debug, PartialEq, Eq)]
enum Block {
    If,
    Unless,
    For,
    Capture(String),
    /// The number of its variable, and whether a `when` has come.
    Case(usize, bool),
}

impl Block {
    fn name(&self) -> &'static str {
        match self {
            Self::If => "if",
            Self::Unless => "unless",
            Self::For => "for",
            Self::Capture(_) => "capture",
            Self::Case(..) => "case",
        }
    }
}

/// Translates a whole template.
///
/// # Errors
/// It is not Liquid, or has something that is not translated.
pub(super) fn to_jinja(source: &str) -> Result<String, LiquidError> {
    let parts = parts(source)?;
    let mut translation = Translation::default();
    for part in &parts {
        if let Part::Tag(tag) = part {
            let (name, rest) = split(tag.inside);
            if name == "assign" || name == "capture" {
                let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
                let name = &rest[..end.unwrap_or(rest.len())];
                translation.names.assigned.push(name.to_owned());
            }
        }
    }
    if !translation.names.assigned.is_empty() {
        translation.out.push_str("{% set set_ = namespace() %}");
    }
    for part in &parts {
        let (tag, done) = match part {
            Part::Text(text) => {
                translation.text(text);
                continue;
            }
            Part::Raw(tag) => (tag, translation.value(tag, &quoted(tag.inside))),
            Part::Comment(tag) => (tag, translation.value(tag, "''")),
            Part::Output(tag) => (tag, translation.output(tag)),
            Part::Tag(tag) => (tag, translation.tag(tag)),
        };
        let line = tag.line;
        done.map_err(|what| LiquidError { line, what })?;
    }
    match translation.open.last() {
        None => Ok(translation.out),
        Some((block, line)) => Err(LiquidError {
            line: *line,
            what: format!("the `{0}` has no `end{0}`", block.name()),
        }),
    }
}

#[derive(Debug, Default)]
struct Translation {
    out: String,
    names: Names,
    /// With the lines that they begin on.
    open: Vec<(Block, usize)>,
    cases: usize,
    /// Of a text that was left out.
    lines: usize,
}

impl Translation {
    fn text(&mut self, text: &str) {
        // Before its first `when`, a `case` has nothing to write.
        if matches!(self.open.last(), Some((Block::Case(_, false), _))) {
            self.lines += text.matches('\n').count();
            return;
        }
        // In Liquid these are no comments.
        self.out.push_str(&text.replace("{#", "{{ '{#' }}"));
    }

    fn put(&mut self, tag: &Tag<'_>, inside: &str) {
        let (before, behind) = tag.dashes();
        let lines = self.take_lines(tag);
        self.out
            .push_str(&format!("{{%{before} {inside} {lines}{behind}%}}"));
    }

    fn value(&mut self, tag: &Tag<'_>, value: &str) -> Result<(), String> {
        let (before, behind) = tag.dashes();
        let lines = self.take_lines(tag);
        self.out
            .push_str(&format!("{{{{{before} {value} {lines}{behind}}}}}"));
        Ok(())
    }

    /// The lines that a tag takes, so that errors of the engine name the right ones.
    fn take_lines(&mut self, tag: &Tag<'_>) -> String {
        let lines = std::mem::take(&mut self.lines) + tag.inside.matches('\n').count();
        "\n".repeat(lines)
    }

    fn output(&mut self, tag: &Tag<'_>) -> Result<(), String> {
        let mut reader = Reader::new(tag.inside, &self.names)?;
        let value = reader.filtered()?;
        reader.end()?;
        self.value(tag, &value)
    }

    fn tag(&mut self, tag: &Tag<'_>) -> Result<(), String> {
        let (name, rest) = split(tag.inside);
        match name {
            "if" | "unless" | "elsif" => self.condition(tag, name, rest),
            "else" => self.otherwise(tag, rest),
            "case" | "when" => self.case(tag, name, rest),
            "for" => self.begin_loop(tag, rest),
            "break" | "continue" if self.names.loops.is_empty() => {
                Err(format!("`{name}` is only for the inside of a `for`"))
            }
            "break" | "continue" => {
                self.put(tag, name);
                Ok(())
            }
            "assign" => {
                let mut reader = Reader::new(rest, &self.names)?;
                let name = reader.name()?;
                if !reader.takes_sign("=") {
                    return Err("`assign` has no `=`".to_owned());
                }
                let value = reader.filtered()?;
                reader.end()?;
                self.put(tag, &format!("set set_.{name} = {value}"));
                Ok(())
            }
            "capture" => {
                let mut reader = Reader::new(rest, &self.names)?;
                let name = reader.name()?.to_owned();
                reader.end()?;
                self.put(tag, "set captured_");
                self.open.push((Block::Capture(name), tag.line));
                Ok(())
            }
            _ => match name.strip_prefix("end") {
                Some(block) => self.end(tag, block, rest),
                None => Err(format!("the tag `{name}` is not supported")),
            },
        }
    }

    fn condition(&mut self, tag: &Tag<'_>, name: &str, rest: &str) -> Result<(), String> {
        let mut reader = Reader::new(rest, &self.names)?;
        let condition = reader.condition()?;
        reader.end()?;
        match name {
            "if" => self.open.push((Block::If, tag.line)),
            "unless" => self.open.push((Block::Unless, tag.line)),
            _ if !matches!(self.open.last(), Some((Block::If | Block::Unless, _))) => {
                return Err("`elsif` has no `if`".to_owned());
            }
            _ => {}
        }
        let inside = match name {
            "if" => format!("if {condition}"),
            "unless" => format!("if not ({condition})"),
            _ => format!("elif {condition}"),
        };
        self.put(tag, &inside);
        Ok(())
    }

    fn otherwise(&mut self, tag: &Tag<'_>, rest: &str) -> Result<(), String> {
        if !rest.is_empty() {
            return Err("`else` has no condition; write `elsif`".to_owned());
        }
        match self.open.last_mut() {
            Some((Block::Case(_, has_when), _)) if !*has_when => {
                *has_when = true;
                self.put(tag, "if true");
            }
            Some((Block::If | Block::Unless | Block::For | Block::Case(..), _)) => {
                self.put(tag, "else");
            }
            _ => return Err("`else` has nothing before it".to_owned()),
        }
        Ok(())
    }

    fn case(&mut self, tag: &Tag<'_>, name: &str, rest: &str) -> Result<(), String> {
        let mut reader = Reader::new(rest, &self.names)?;
        if name == "case" {
            let value = reader.value(true)?;
            reader.end()?;
            self.cases += 1;
            let number = self.cases;
            self.put(tag, &format!("set case_{number} = {value}"));
            self.open.push((Block::Case(number, false), tag.line));
            return Ok(());
        }
        let Some((Block::Case(number, has_when), _)) = self.open.last_mut() else {
            return Err("`when` has no `case`".to_owned());
        };
        let word = match std::mem::replace(has_when, true) {
            false => "if",
            true => "elif",
        };
        let mut values = vec![format!("case_{number} == {}", reader.value(true)?)];
        while reader.takes_sign(",") || reader.takes_word("or") {
            values.push(format!("case_{number} == {}", reader.value(true)?));
        }
        reader.end()?;
        self.put(tag, &format!("{word} {}", values.join(" or ")));
        Ok(())
    }

    fn begin_loop(&mut self, tag: &Tag<'_>, rest: &str) -> Result<(), String> {
        let mut reader = Reader::new(rest, &self.names)?;
        let name = reader.name()?;
        if !reader.takes_word("in") {
            return Err("`for` has no `in`".to_owned());
        }
        let over = reader.value(true)?;
        let is_items = over == "items";
        let (mut limit, mut offset, mut is_reversed) = (None, None, false);
        loop {
            if reader.takes_word("reversed") {
                is_reversed = true;
                continue;
            }
            let bound = match () {
                () if reader.takes_word("limit") => &mut limit,
                () if reader.takes_word("offset") => &mut offset,
                () => break,
            };
            if !reader.takes_sign(":") {
                return Err("a `:` is missing".to_owned());
            }
            *bound = Some(reader.value(true)?);
        }
        reader.end()?;
        let from = offset.unwrap_or_else(|| "0".to_owned());
        let mut part = format!("{over}[{from}:]");
        if let Some(limit) = limit {
            part = format!("{part}[:{limit}]");
        }
        if is_reversed {
            part = format!("{part}|reverse");
        }
        self.put(tag, &format!("for {} in {part}", loop_variable(name)));
        self.names.loops.push((name.to_owned(), is_items));
        self.open.push((Block::For, tag.line));
        Ok(())
    }

    fn end(&mut self, tag: &Tag<'_>, name: &str, rest: &str) -> Result<(), String> {
        if !rest.is_empty() {
            return Err(format!("`end{name}` has no arguments"));
        }
        let Some((block, _)) = self.open.pop_if(|(block, _)| block.name() == name) else {
            return Err(match self.open.last() {
                Some((block, line)) => {
                    format!("`end{name}` closes the `{}` of line {line}", block.name())
                }
                None => format!("`end{name}` closes nothing"),
            });
        };
        match block {
            Block::If | Block::Unless | Block::Case(_, true) => self.put(tag, "endif"),
            // Without a `when` nothing was begun.
            Block::Case(_, false) => self.put(tag, "set none_ = none"),
            Block::For => {
                self.names.loops.pop();
                self.put(tag, "endfor");
            }
            Block::Capture(name) => {
                let (before, behind) = tag.dashes();
                let keep = format!("set set_.{name} = captured_");
                self.out
                    .push_str(&format!("{{%{before} endset %}}{{% {keep} {behind}%}}"));
            }
        }
        Ok(())
    }
}

/// A tag's name, and the rest of it.
fn split(inside: &str) -> (&str, &str) {
    let inside = inside.trim();
    let end = inside.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let (name, rest) = inside.split_at(end.unwrap_or(inside.len()));
    (name, rest.trim())
}

fn parts(source: &str) -> Result<Vec<Part<'_>>, LiquidError> {
    let mut parts = Vec::new();
    let mut rest = source;
    loop {
        let begin = [rest.find("{{"), rest.find("{%")];
        let Some(begin) = begin.into_iter().flatten().min() else {
            parts.push(Part::Text(rest));
            return Ok(parts);
        };
        let (text, from) = rest.split_at(begin);
        parts.push(Part::Text(text));
        let line = source[..source.len() - from.len()].matches('\n').count() + 1;
        let fault = |what: String| LiquidError { line, what };
        let is_output = from.starts_with("{{");
        let (inside, behind) = from[2..]
            .split_once(if is_output { "}}" } else { "%}" })
            .ok_or_else(|| fault("a tag has no end".to_owned()))?;
        let (inside, trims) = trimmed(inside);
        let tag = Tag {
            inside,
            trims,
            line,
        };
        rest = behind;
        let name = split(inside).0;
        parts.push(match name {
            _ if is_output => Part::Output(tag),
            "raw" | "comment" => {
                let ended = verbatim(rest, name);
                let (inside, trims, behind) =
                    ended.ok_or_else(|| fault(format!("the `{name}` has no `end{name}`")))?;
                rest = behind;
                let tag = Tag {
                    inside,
                    trims: (tag.trims.0, trims.1),
                    line,
                };
                match name {
                    "raw" => Part::Raw(tag),
                    _ => Part::Comment(tag),
                }
            }
            _ => Part::Tag(tag),
        });
    }
}

/// The inside of a tag, and which white space around it goes.
fn trimmed(inside: &str) -> (&str, (bool, bool)) {
    let rest = inside.strip_prefix('-');
    let starts = rest.is_some();
    let inside = rest.unwrap_or(inside);
    let rest = inside.strip_suffix('-');
    (rest.unwrap_or(inside), (starts, rest.is_some()))
}

/// What is before the end tag of a block that is not read, which white space goes with that tag, and what is behind it.
fn verbatim<'a>(source: &'a str, name: &str) -> Option<(&'a str, (bool, bool), &'a str)> {
    let mut rest = source;
    loop {
        let (_, from) = rest.split_once("{%")?;
        let (inside, behind) = from.split_once("%}")?;
        let (inside, trims) = trimmed(inside);
        if inside.trim().strip_prefix("end") == Some(name) {
            let before = source.len() - from.len() - 2;
            return Some((&source[..before], trims, behind));
        }
        rest = from;
    }
}
