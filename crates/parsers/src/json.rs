//! An incremental JSON scanner. Owns JSON's grammar (RFC 8259) and where a text may be cut; builds no values.
//!
//! Two differences: a raw control character within a string is taken and escaped, since models write line ends so;
//! and half of a surrogate pair, which is not a character and which some parsers refuse, becomes U+FFFD.

use crate::MAX_DEPTH;

/// How far a value has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    /// All that can be decided of the text, this many bytes, was read; the value continues.
    More(usize),
    /// The value ends after this many bytes.
    Done(usize),
    /// The byte behind this many is not JSON.
    Bad(usize),
}

/// Reads one JSON value, piece by piece.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scanner {
    /// The open containers, the innermost one in the lowest bit: 1 is an object.
    containers: u128,
    depth: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Value,
    /// Behind `[`: a value or `]`.
    FirstItem,
    /// Behind `{`: a key or `}`.
    FirstKey,
    /// Behind `,` in an object.
    Key,
    /// Behind a key.
    Colon,
    /// Behind a value in a container.
    After,
    String {
        is_key: bool,
    },
    /// What remains of `true`, `false` or `null`.
    Literal(&'static [u8]),
    Number(Number),
    Over,
}

/// Where in a number the text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl Number {
    /// The state behind `byte`; `None`: it is not part of the number.
    fn after(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Minus, b'0') => Self::Zero,
            (Self::Minus | Self::Integer, b'0'..=b'9') => Self::Integer,
            (Self::Zero | Self::Integer, b'.') => Self::Point,
            (Self::Point | Self::Fraction, b'0'..=b'9') => Self::Fraction,
            (Self::Zero | Self::Integer | Self::Fraction, b'e' | b'E') => Self::Exponent,
            (Self::Exponent, b'+' | b'-') => Self::ExponentSign,
            (Self::Exponent | Self::ExponentSign | Self::ExponentDigits, b'0'..=b'9') => {
                Self::ExponentDigits
            }
            _ => return None,
        })
    }

    fn is_whole(self) -> bool {
        matches!(
            self,
            Self::Zero | Self::Integer | Self::Fraction | Self::ExponentDigits
        )
    }
}

impl Scanner {
    /// Reads on. `emit` gets what was read, escapes whole and control characters escaped. Bytes that were not read
    /// must come again at the start of the next text: at most 11, those of an escape.
    pub(crate) fn scan(&mut self, text: &str, emit: &mut impl FnMut(&str)) -> Scan {
        let bytes = text.as_bytes();
        let mut position = 0;
        // What was emitted already.
        let mut emitted = 0;
        let result = loop {
            if self.state == State::Over {
                break Scan::Done(position);
            }
            let rest = bytes.get(position..).unwrap_or_default();
            let State::String { is_key } = self.state else {
                match rest.first().map(|byte| self.structure(*byte)) {
                    None => break Scan::More(position),
                    Some(Structure::Read) => position += 1,
                    Some(Structure::Again) => {}
                    Some(Structure::Bad) => break Scan::Bad(position),
                }
                continue;
            };
            let Some(step) = rest.iter().position(|byte| is_special(*byte)) else {
                position = bytes.len();
                break Scan::More(position);
            };
            position += step;
            match rest.get(step).copied().unwrap_or_default() {
                b'"' => {
                    position += 1;
                    self.state = if is_key {
                        State::Colon
                    } else {
                        self.after_value()
                    };
                }
                b'\\' => match escape(rest.get(step..).unwrap_or_default()) {
                    Escape::Whole(length) => position += length,
                    Escape::Half => {
                        emit(text.get(emitted..position).unwrap_or_default());
                        emit(REPLACEMENT);
                        position += 6;
                        emitted = position;
                    }
                    Escape::Cut => break Scan::More(position),
                    Escape::Bad => break Scan::Bad(position),
                },
                control => {
                    emit(text.get(emitted..position).unwrap_or_default());
                    escape_control(control, emit);
                    position += 1;
                    emitted = position;
                }
            }
        };
        let (Scan::More(end) | Scan::Done(end) | Scan::Bad(end)) = result;
        emit(text.get(emitted..end).unwrap_or_default());
        result
    }

    /// Reads a byte outside strings.
    fn structure(&mut self, byte: u8) -> Structure {
        let state = match (self.state, byte) {
            (State::Number(number), _) => match number.after(byte) {
                Some(number) => State::Number(number),
                None if number.is_whole() => {
                    self.state = self.after_value();
                    return Structure::Again;
                }
                None => return Structure::Bad,
            },
            (State::Literal(rest), _) => match rest.split_first() {
                Some((first, [])) if *first == byte => self.after_value(),
                Some((first, rest)) if *first == byte => State::Literal(rest),
                _ => return Structure::Bad,
            },
            (_, b' ' | b'\n' | b'\r' | b'\t') => return Structure::Read,
            (State::FirstKey, b'}') | (State::FirstItem, b']') => return self.close(byte),
            (State::FirstKey | State::Key, b'"') => State::String { is_key: true },
            (State::Colon, b':') => State::Value,
            (State::After, b',') if self.containers & 1 == 1 => State::Key,
            (State::After, b',') => State::Value,
            (State::After, b'}' | b']') => return self.close(byte),
            (State::Value | State::FirstItem, _) => match byte {
                b'{' | b'[' => return self.open(byte),
                b'"' => State::String { is_key: false },
                b't' => State::Literal(b"rue"),
                b'f' => State::Literal(b"alse"),
                b'n' => State::Literal(b"ull"),
                b'-' => State::Number(Number::Minus),
                b'0' => State::Number(Number::Zero),
                b'1'..=b'9' => State::Number(Number::Integer),
                _ => return Structure::Bad,
            },
            _ => return Structure::Bad,
        };
        self.state = state;
        Structure::Read
    }

    fn open(&mut self, byte: u8) -> Structure {
        if self.depth >= MAX_DEPTH {
            return Structure::Bad;
        }
        let is_object = byte == b'{';
        self.depth += 1;
        self.containers = self.containers << 1 | u128::from(is_object);
        self.state = if is_object {
            State::FirstKey
        } else {
            State::FirstItem
        };
        Structure::Read
    }

    fn close(&mut self, byte: u8) -> Structure {
        if (byte == b'}') != (self.containers & 1 == 1) {
            return Structure::Bad;
        }
        self.containers >>= 1;
        self.depth -= 1;
        self.state = self.after_value();
        Structure::Read
    }

    fn after_value(&self) -> State {
        if self.depth == 0 {
            State::Over
        } else {
            State::After
        }
    }
}

/// What became of a byte.
enum Structure {
    Read,
    /// It ended a number, and is to be looked at again.
    Again,
    Bad,
}

/// What half of a surrogate pair becomes.
pub(crate) const REPLACEMENT: &str = "\\ufffd";

/// The start of a text that begins with a backslash.
pub(crate) enum Escape {
    Whole(usize),
    /// Half of a surrogate pair, of 6 bytes.
    Half,
    Cut,
    Bad,
}

/// Measures an escape; the two halves of a surrogate pair count as one.
pub(crate) fn escape(text: &[u8]) -> Escape {
    match text.get(1) {
        None => return Escape::Cut,
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => return Escape::Whole(2),
        Some(b'u') => {}
        Some(_) => return Escape::Bad,
    }
    let digits = text.get(2..).unwrap_or_default();
    let Ok(code) = code_unit(digits) else {
        return Escape::Bad;
    };
    match code {
        None => Escape::Cut,
        Some(0xD800..=0xDBFF) => match text.get(6..).unwrap_or_default() {
            [] | [b'\\'] => Escape::Cut,
            [b'\\', b'u', digits @ ..] => match code_unit(digits) {
                Ok(None) => Escape::Cut,
                Ok(Some(0xDC00..=0xDFFF)) => Escape::Whole(12),
                _ => Escape::Half,
            },
            _ => Escape::Half,
        },
        Some(0xDC00..=0xDFFF) => Escape::Half,
        Some(_) => Escape::Whole(6),
    }
}

/// The code unit of four hexadecimal digits; `None` if the text ends before the fourth.
fn code_unit(digits: &[u8]) -> Result<Option<u32>, ()> {
    let mut code = 0;
    for place in 0..4 {
        let Some(digit) = digits.get(place) else {
            return Ok(None);
        };
        code = code * 16 + char::from(*digit).to_digit(16).ok_or(())?;
    }
    Ok(Some(code))
}

fn is_special(byte: u8) -> bool {
    byte == b'"' || byte == b'\\' || byte < 0x20
}

/// Emits a control character as JSON writes it.
pub(crate) fn escape_control(control: u8, emit: &mut impl FnMut(&str)) {
    match control {
        b'\n' => emit("\\n"),
        b'\r' => emit("\\r"),
        b'\t' => emit("\\t"),
        other => emit(&format!("\\u{other:04x}")),
    }
}

/// A text that is one JSON value, as the scanner emits it; `None` if it is not. Surrounding white space is not
/// included.
pub(crate) fn whole(text: &str) -> Option<String> {
    let mut scanner = Scanner::default();
    let mut json = String::with_capacity(text.len());
    let is_whole = match scanner.scan(text, &mut |piece| json.push_str(piece)) {
        Scan::Done(length) => length == text.len(),
        // Only the end of the text ends a number.
        Scan::More(length) => {
            length == text.len()
                && scanner.depth == 0
                && matches!(scanner.state, State::Number(number) if number.is_whole())
        }
        Scan::Bad(_) => false,
    };
    is_whole.then_some(json)
}

/// Emits a text as the inside of a JSON string.
pub(crate) fn write_escaped(text: &str, emit: &mut impl FnMut(&str)) {
    let mut start = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte == b'"' || byte == b'\\' || byte < 0x20 {
            emit(text.get(start..at).unwrap_or_default());
            match byte {
                b'"' => emit("\\\""),
                b'\\' => emit("\\\\"),
                control => escape_control(control, emit),
            }
            start = at + 1;
        }
    }
    emit(text.get(start..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_value(text: &str) -> bool {
        whole(text).is_some()
    }

    /// Scans a text in pieces of `size` characters; what was emitted, and how many bytes the value has.
    fn scan(text: &str, size: usize) -> (String, Option<usize>) {
        let mut scanner = Scanner::default();
        let mut emitted = String::new();
        let mut held = String::new();
        let mut position = 0;
        let characters: Vec<char> = text.chars().collect();
        for piece in characters.chunks(size) {
            held.extend(piece);
            let result = scanner.scan(&held, &mut |piece| emitted.push_str(piece));
            match result {
                Scan::More(read) => {
                    position += read;
                    held.drain(..read);
                    assert!(held.len() <= 11, "{held:?}");
                }
                Scan::Done(read) => return (emitted, Some(position + read)),
                Scan::Bad(_) => return (emitted, None),
            }
        }
        (emitted, None)
    }

    #[test]
    fn a_value_ends_where_it_ends() {
        for text in [
            r#"{}"#,
            r#"{"a": [1, -2.5e+3, 0, true, null], "b": {"c": "}\"\\"}}"#,
            r#""\ud83d\ude00 \u00e9""#,
            r#"[[], {}, [{"a": []}]]"#,
            r#""日本""#,
            "[false]",
        ] {
            for size in 1..=text.chars().count() {
                let behind = format!("{text} rest");
                assert_eq!(scan(&behind, size), (text.to_owned(), Some(text.len())));
            }
            assert!(is_value(text), "{text}");
        }
    }

    #[test]
    fn what_is_not_json_is_bad() {
        for text in [
            "{a",
            "{,",
            r#"{"a" 1"#,
            r#"{"a": 1,}"#,
            "[1,]",
            "[1 2]",
            "[}",
            "tru ",
            "[nxll]",
            "[1.]",
            "[-]",
            "01",
            "1.x",
            "-",
            "1e",
            r#""\x""#,
            r#""\u12g4""#,
            "'a'",
            "NaN",
            r#"{"a": 1]"#,
            "",
        ] {
            assert!(!is_value(text), "{text}");
        }
        for number in ["0", "-1", "1.5", "1e9", "0.1E-2"] {
            assert!(is_value(number), "{number}");
        }
    }

    #[test]
    fn half_of_a_pair_is_replaced() {
        let text = r#""\ud83dx\ude00\ud83d\ud83d\ude00\ud83d""#;
        let expected = r#""\ufffdx\ufffd\ufffd\ud83d\ude00\ufffd""#;
        for size in 1..text.len() {
            assert_eq!(scan(text, size).0, expected, "by {size}");
        }
    }

    #[test]
    fn control_characters_in_strings_are_escaped() {
        assert_eq!(scan("\"a\nb\tc\u{1}\"", 1).0, "\"a\\nb\\tc\\u0001\"");
        assert_eq!(scan("\"a\nb\tc\u{1}\"", 99).0, "\"a\\nb\\tc\\u0001\"");
    }

    #[test]
    fn nesting_is_bounded() {
        let depth = MAX_DEPTH as usize;
        assert!(is_value(&("[".repeat(depth) + &"]".repeat(depth))));
        assert!(!is_value(&("[".repeat(depth + 1) + &"]".repeat(depth + 1))));
    }
}
