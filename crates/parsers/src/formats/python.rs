//! Python literals as JSON, incrementally. Owns Python's grammar of literals as far as models write them: strings
//! with their escapes, numbers, `True`, `False`, `None`, lists and dictionaries with string keys. No tuples, sets,
//! prefixes of strings or expressions: they are not literals of JSON.
//!
//! In an argument of a call two mistakes of models are repaired, because no literal can be meant otherwise: quotes
//! within a string of the same quotes (`'sed -n '1,5p' file'`), and zeros in front of a number (`07`). Such a quote
//! ends the string only if what follows continues the call.

use crate::json::{Escape, REPLACEMENT, Scan, escape, escape_control, write_escaped};

use crate::marker::{Look, look};
use crate::{MAX_DEPTH, MAX_NAME, skip_space};

/// The longest number or word.
const MAX_WORD: usize = 400;

/// Reads one literal, piece by piece, and emits it as JSON.
#[derive(Clone, Debug, Default)]
pub(crate) struct Literal {
    /// The open containers, the innermost one in the lowest bit: 1 is a dictionary.
    containers: u128,
    depth: u32,
    state: State,
    /// Whether the literal is an argument of a call, whose mistakes are repaired.
    is_argument: bool,
    /// Whether no more text comes.
    is_last: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Value,
    /// Behind `[` or `{`: an item or the end.
    First,
    /// Behind `,`: an item or the end.
    Next,
    Colon,
    /// Behind an item.
    After,
    String {
        quote: u8,
        is_triple: bool,
        is_key: bool,
    },
    Over,
}

impl Literal {
    /// An argument of a call.
    pub(crate) fn argument() -> Self {
        Self {
            is_argument: true,
            ..Self::default()
        }
    }

    /// No more text comes than what was shown.
    pub(crate) fn end_text(&mut self) {
        self.is_last = true;
    }

    /// Reads on. Bytes that were not read must come again at the start of the next text: those of an escape, a
    /// number, a word or quotes. A number at the end is read only when something else follows.
    pub(crate) fn scan(&mut self, text: &str, emit: &mut impl FnMut(&str)) -> Scan {
        let mut position = 0;
        loop {
            if self.state == State::Over {
                return Scan::Done(position);
            }
            let rest = crate::split(text, position).1;
            if rest.is_empty() {
                return Scan::More(position);
            }
            let read = match self.state {
                State::String {
                    quote, is_triple, ..
                } => self.string(rest, quote, is_triple, emit),
                _ => self.structure(rest, emit),
            };
            match read {
                Read::Took(length) => position += length,
                Read::Cut => return Scan::More(position),
                Read::Bad => return Scan::Bad(position),
            }
        }
    }

    fn structure(&mut self, text: &str, emit: &mut impl FnMut(&str)) -> Read {
        let space = crate::formats::space(text);
        if space > 0 {
            return Read::Took(space);
        }
        let Some(first) = text.bytes().next() else {
            return Read::Cut;
        };
        let is_dictionary = self.containers & 1 == 1;
        match (self.state, first) {
            (State::First | State::Next | State::After, b']' | b'}') => {
                self.close(first, is_dictionary, emit)
            }
            (State::After, b',') => {
                self.state = State::Next;
                Read::Took(1)
            }
            (State::Colon, b':') => {
                emit(": ");
                self.state = State::Value;
                Read::Took(1)
            }
            (State::First | State::Next, _) if is_dictionary => self.item(text, first, true, emit),
            (State::First | State::Next | State::Value, _) => self.item(text, first, false, emit),
            _ => Read::Bad,
        }
    }

    fn item(&mut self, text: &str, first: u8, is_key: bool, emit: &mut impl FnMut(&str)) -> Read {
        let comma = if self.state == State::Next { ", " } else { "" };
        match first {
            b'"' | b'\'' => {
                let Some(quotes) = opening_quotes(text, first) else {
                    return Read::Cut;
                };
                emit(comma);
                emit("\"");
                self.state = State::String {
                    quote: first,
                    is_triple: quotes == 3,
                    is_key,
                };
                Read::Took(quotes)
            }
            _ if is_key => Read::Bad,
            b'[' | b'{' if self.depth < MAX_DEPTH => {
                emit(comma);
                emit(if first == b'{' { "{" } else { "[" });
                self.depth += 1;
                self.containers = self.containers << 1 | u128::from(first == b'{');
                self.state = State::First;
                Read::Took(1)
            }
            _ => {
                let word = text.find(|character| !is_word(character));
                let length = word.unwrap_or(text.len());
                if length == 0 || length > MAX_WORD {
                    return Read::Bad;
                }
                if word.is_none() {
                    return Read::Cut;
                }
                let word = crate::split(text, length).0;
                let padded = || self.is_argument.then(|| without_zeros(word)).flatten();
                let Some(json) = word_to_json(word).or_else(padded) else {
                    return Read::Bad;
                };
                emit(comma);
                emit(&json);
                self.state = self.after_value();
                Read::Took(length)
            }
        }
    }

    fn close(&mut self, byte: u8, is_dictionary: bool, emit: &mut impl FnMut(&str)) -> Read {
        if self.depth == 0 || (byte == b'}') != is_dictionary {
            return Read::Bad;
        }
        emit(if is_dictionary { "}" } else { "]" });
        self.containers >>= 1;
        self.depth -= 1;
        self.state = self.after_value();
        Read::Took(1)
    }

    fn after_value(&self) -> State {
        if self.depth == 0 {
            State::Over
        } else {
            State::After
        }
    }

    fn string(
        &mut self,
        text: &str,
        quote: u8,
        is_triple: bool,
        emit: &mut impl FnMut(&str),
    ) -> Read {
        let special = |byte: u8| byte == b'"' || byte == b'\\' || byte == quote || byte < 0x20;
        let plain = text.bytes().position(special).unwrap_or(text.len());
        if plain > 0 {
            emit(crate::split(text, plain).0);
            return Read::Took(plain);
        }
        match text.bytes().next() {
            None => Read::Cut,
            Some(b'\\') => python_escape(text, emit),
            Some(byte) if byte == quote => {
                let closing = if is_triple { 3 } else { 1 };
                let quotes = text
                    .bytes()
                    .take(closing)
                    .take_while(|byte| *byte == quote)
                    .count();
                let is_key = matches!(self.state, State::String { is_key: true, .. });
                let behind = crate::split(text, 1).1;
                let ends = if self.is_argument && !is_triple {
                    match ends_here(behind, self.depth > 0, is_key) {
                        None if self.is_last => Some(true),
                        ends => ends,
                    }
                } else {
                    Some(true)
                };
                if quotes == closing && ends.is_none() {
                    return Read::Cut;
                }
                if quotes == closing && ends == Some(true) {
                    emit("\"");
                    self.state = if is_key {
                        State::Colon
                    } else {
                        self.after_value()
                    };
                    return Read::Took(closing);
                }
                if quotes < closing && quotes == text.len() {
                    return Read::Cut;
                }
                emit(if quote == b'"' { "\\\"" } else { "'" });
                Read::Took(1)
            }
            Some(b'"') => {
                emit("\\\"");
                Read::Took(1)
            }
            Some(control) => {
                escape_control(control, emit);
                Read::Took(1)
            }
        }
    }
}

/// Whether a string of an argument ends with the quote that this text follows. `None`: more text is needed.
fn ends_here(text: &str, is_nested: bool, is_key: bool) -> Option<bool> {
    let rest = skip_space(text);
    let space = text.len() - rest.len();
    if space > MAX_NAME {
        return Some(true);
    }
    let mut characters = rest.chars();
    let first = characters.next()?;
    let behind = skip_space(characters.as_str());
    let is_far = characters.as_str().len() - behind.len() > MAX_NAME;
    match first {
        // Two strings in a row are not repaired: Python would join them.
        '"' | '\'' => Some(space > 0),
        _ if is_key => Some(first == ':'),
        ',' | ']' | '}' if is_nested => Some(true),
        _ if is_nested => Some(false),
        ')' if is_far => Some(true),
        ')' => {
            let next = behind.chars().next()?;
            Some(!matches!(next, ')' | '"' | '\''))
        }
        ',' if is_far => Some(false),
        ',' if behind.starts_with(')') => Some(true),
        ',' => {
            let equals = skip_space(behind.trim_start_matches(is_key_character));
            let length = behind.len() - equals.len();
            match look(equals.as_bytes(), &["=="]) {
                _ if length > MAX_NAME => Some(false),
                Look::Whole(_) => Some(false),
                Look::Partial => None,
                Look::Other => Some(equals.starts_with('=') && length > 0),
            }
        }
        _ => Some(false),
    }
}

/// Whether a character may be part of an argument's name.
pub(crate) fn is_key_character(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The JSON of a number without the zeros in front of it.
fn without_zeros(word: &str) -> Option<String> {
    let (sign, digits) = match word.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", word),
    };
    if !digits.starts_with('0') || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = digits.trim_start_matches('0');
    Some(format!(
        "{sign}{}",
        if digits.is_empty() { "0" } else { digits }
    ))
}

/// What became of the start of a text.
enum Read {
    Took(usize),
    /// More text is needed to decide.
    Cut,
    Bad,
}

/// How many quotes open the string: one or three. `None`: more text is needed.
fn opening_quotes(text: &str, quote: u8) -> Option<usize> {
    let quotes = text
        .bytes()
        .take(3)
        .take_while(|byte| *byte == quote)
        .count();
    match quotes {
        3 => Some(3),
        quotes if quotes == text.len() => None,
        _ => Some(1),
    }
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '.' | '+' | '-')
}

/// The JSON of a number or a constant.
fn word_to_json(word: &str) -> Option<String> {
    match word {
        "True" | "true" => return Some("true".to_owned()),
        "False" | "false" => return Some("false".to_owned()),
        "None" | "null" => return Some("null".to_owned()),
        _ => {}
    }
    let (sign, digits) = match word.strip_prefix(['-', '+']) {
        Some(digits) if word.starts_with('-') => ("-", digits),
        Some(digits) => ("", digits),
        None => ("", word),
    };
    if digits.contains("__") || digits.starts_with('_') || digits.ends_with('_') {
        return None;
    }
    let digits = digits.replace('_', "");
    let radix = match digits.get(..2).unwrap_or_default() {
        "0x" | "0X" => Some(16),
        "0o" | "0O" => Some(8),
        "0b" | "0B" => Some(2),
        _ => None,
    };
    if let Some(radix) = radix {
        let number = digits.get(2..).filter(|digits| !digits.starts_with('+'))?;
        let number = u128::from_str_radix(number, radix).ok()?;
        return Some(format!("{sign}{number}"));
    }
    // JSON wants digits on both sides of the point.
    let (mantissa, exponent) = match digits.find(['e', 'E']) {
        Some(at) => digits.split_at(at),
        None => (digits.as_str(), ""),
    };
    let mantissa = match mantissa.split_once('.') {
        Some(("", fraction)) => format!("0.{fraction}"),
        Some((whole, "")) => format!("{whole}.0"),
        _ => mantissa.to_owned(),
    };
    let json = format!("{sign}{mantissa}{exponent}");
    crate::json::whole(&json)
}

/// Reads an escape and emits what it means.
fn python_escape(text: &str, emit: &mut impl FnMut(&str)) -> Read {
    let bytes = text.as_bytes();
    let Some(kind) = bytes.get(1) else {
        return Read::Cut;
    };
    match kind {
        b'\n' => return Read::Took(2),
        b'\\' => emit("\\\\"),
        b'\'' => emit("'"),
        b'"' => emit("\\\""),
        b'n' => emit("\\n"),
        b'r' => emit("\\r"),
        b't' => emit("\\t"),
        b'b' => emit("\\b"),
        b'f' => emit("\\f"),
        b'a' => emit("\\u0007"),
        b'v' => emit("\\u000b"),
        b'x' => return coded(text, 2, emit),
        b'U' => return coded(text, 8, emit),
        // JSON writes these alike, pairs of surrogates too.
        b'u' => {
            return match escape(bytes) {
                Escape::Cut => Read::Cut,
                Escape::Bad => Read::Bad,
                Escape::Half => {
                    emit(REPLACEMENT);
                    Read::Took(6)
                }
                Escape::Whole(length) => {
                    emit(crate::split(text, length).0);
                    Read::Took(length)
                }
            };
        }
        b'0'..=b'7' => return octal(bytes, emit),
        // `\N{name}` needs a table of names; any other backslash is one.
        b'N' => return Read::Bad,
        _ => {
            emit("\\\\");
            return Read::Took(1);
        }
    }
    Read::Took(2)
}

/// An escape of a character by `count` hexadecimal digits.
fn coded(text: &str, count: usize, emit: &mut impl FnMut(&str)) -> Read {
    let digits = text.as_bytes().get(2..).unwrap_or_default();
    let digits = digits.get(..count).unwrap_or(digits);
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return Read::Bad;
    }
    if digits.len() < count {
        return Read::Cut;
    }
    let code = text
        .get(2..2 + count)
        .and_then(|digits| u32::from_str_radix(digits, 16).ok());
    match code.and_then(char::from_u32) {
        Some(character) => {
            emit_character(character, emit);
            Read::Took(2 + count)
        }
        None => Read::Bad,
    }
}

/// An escape of a character by up to three octal digits.
fn octal(bytes: &[u8], emit: &mut impl FnMut(&str)) -> Read {
    let digits = bytes.iter().skip(1).take(3);
    let digits: Vec<u32> = digits
        .map_while(|byte| char::from(*byte).to_digit(8))
        .collect();
    if digits.len() < 3 && bytes.len() == digits.len() + 1 {
        return Read::Cut;
    }
    let code = digits.iter().fold(0, |code, digit| code * 8 + digit);
    if let Some(character) = char::from_u32(code) {
        emit_character(character, emit);
    }
    Read::Took(1 + digits.len())
}

fn emit_character(character: char, emit: &mut impl FnMut(&str)) {
    write_escaped(character.encode_utf8(&mut [0; 4]), emit);
}

/// The JSON of a text that is one literal.
pub(crate) fn to_json(text: &str) -> Option<String> {
    let mut literal = Literal::default();
    let mut json = String::new();
    // Something has to end a number.
    let text = format!("{text}\n");
    match literal.scan(&text, &mut |piece| json.push_str(piece)) {
        Scan::Done(length) if length + 1 == text.len() || length == text.len() => Some(json),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_become_json() {
        for (python, json) in [
            ("1", "1"),
            ("-1_000", "-1000"),
            ("+0x1F", "31"),
            (".5", "0.5"),
            ("5.e3", "5.0e3"),
            ("-0b101", "-5"),
            ("0o17", "15"),
            ("True", "true"),
            ("False", "false"),
            ("None", "null"),
            ("true", "true"),
            ("false", "false"),
            ("null", "null"),
            (
                "'\\n\\r\\t\\b\\f\\a\\v\\\\'",
                "\"\\n\\r\\t\\b\\f\\u0007\\u000b\\\\\"",
            ),
            ("''", "\"\""),
            ("'it\\'s \"so\"'", "\"it's \\\"so\\\"\""),
            ("\"\"\"a\n\"b\" ''\"\"\"", "\"a\\n\\\"b\\\" ''\""),
            (
                "'\\x41\\u00e9\\U0001F600\\101\\0\\d\\\n!'",
                "\"A\\u00e9😀A\\u0000\\\\d!\"",
            ),
            ("[1, 'a', [], {}, ]", "[1, \"a\", [], {}]"),
            ("{'a': {'b': [True,],},}", "{\"a\": {\"b\": [true]}}"),
        ] {
            assert_eq!(to_json(python).as_deref(), Some(json), "{python}");
            for size in 1..python.len() {
                let mut literal = Literal::default();
                let mut emitted = String::new();
                let mut held = String::new();
                let text = format!("{python},");
                for piece in text.chars().collect::<Vec<_>>().chunks(size) {
                    held.extend(piece);
                    match literal.scan(&held, &mut |piece| emitted.push_str(piece)) {
                        Scan::More(read) => drop(held.drain(..read)),
                        Scan::Done(_) => break,
                        Scan::Bad(_) => panic!("{python} by {size}"),
                    }
                }
                assert_eq!(emitted, json, "{python} by {size}");
            }
        }
    }

    #[test]
    fn what_is_no_literal_is_bad() {
        for text in [
            "",
            "a",
            "1 2",
            "'a' 'b'",
            "(1,)",
            "{1: 2}",
            "{1}",
            "[1",
            "f'x'",
            "'\\N{DASH}'",
            "1__0",
            "1_",
            "_1",
            "+_1",
            "0x+1",
            ".e5",
            "007",
            "1e",
            ".",
            "0x",
            "nan",
            "'\\xg0'",
            "'\\U99999999'",
            "[}",
            "]",
            "--1",
        ] {
            assert_eq!(to_json(text), None, "{text}");
        }
    }

    #[test]
    fn zeros_in_front_of_a_number_go() {
        for (word, expected) in [
            ("012", Some("12")),
            ("-007", Some("-7")),
            ("000", Some("0")),
            ("0x1", None),
            ("012a", None),
            ("12", None),
            ("", None),
        ] {
            assert_eq!(without_zeros(word).as_deref(), expected, "{word}");
        }
    }

    #[test]
    fn literals_are_bounded() {
        let nested = |depth| "[".repeat(depth) + &"]".repeat(depth);
        let deepest = MAX_DEPTH as usize;
        assert_eq!(to_json(&nested(deepest)), Some(nested(deepest)));
        assert_eq!(to_json(&nested(deepest + 1)), None);
        let longest = "1".repeat(MAX_WORD);
        assert_eq!(to_json(&longest), Some(longest.clone()));
        assert_eq!(to_json(&(longest + "1")), None);
    }

    #[test]
    fn a_quote_ends_an_argument_where_something_follows_that_may() {
        let far = " ".repeat(MAX_NAME + 1);
        let (near, name) = (&far[1..], "b".repeat(MAX_NAME));
        let owned = |text: &str| text.to_owned();
        for (text, expected) in [
            (owned(""), None),
            (owned("x"), Some(false)),
            (owned("]"), Some(false)),
            (format!("{near}x"), Some(false)),
            (format!("{far}x"), Some(true)),
            // Two strings in a row, or a quote of the text's own.
            (owned("'"), Some(false)),
            (owned(" \""), Some(true)),
            // The call ends, unless that is text as well.
            (owned(")"), None),
            (format!("){near}"), None),
            (format!("){far}"), Some(true)),
            (owned(") x"), Some(true)),
            (owned("))"), Some(false)),
            (owned(") '"), Some(false)),
            // Another argument comes, or the end.
            (owned(","), None),
            (owned(", )"), Some(true)),
            (owned(", b"), None),
            (owned(", b ="), None),
            (owned(", b=1"), Some(true)),
            (owned(", b==1"), Some(false)),
            (owned(", =1"), Some(false)),
            (owned(", b c"), Some(false)),
            (format!(",{near}b=1"), Some(true)),
            (format!(",{far}b=1"), Some(false)),
            (format!(", {name}=1"), Some(true)),
            (format!(", b{name}=1"), Some(false)),
        ] {
            assert_eq!(ends_here(&text, false, false), expected, "{text:?}");
        }
        // Within a list or a dictionary, and behind a key of one.
        for (text, value, key) in [
            (",", true, false),
            ("]", true, false),
            ("}", true, false),
            (")", false, false),
            ("x", false, false),
            (":", false, true),
        ] {
            assert_eq!(ends_here(text, true, false), Some(value), "{text}");
            assert_eq!(ends_here(text, true, true), Some(key), "{text}");
        }
    }
}
