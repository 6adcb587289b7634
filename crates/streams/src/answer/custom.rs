//! The input of a custom tool's call: the text in the only argument that the model was shown, out of the JSON that a
//! call's arguments are. Owns the decoding, as the JSON comes, and the match with the tool's grammar.

use inflight_guides::checks::{Fit, TextMatch};
use inflight_openai::ApiError;
use inflight_openai::chat::CUSTOM_INPUT;

/// The call of one custom tool.
#[derive(Debug)]
pub(super) struct CustomInput {
    place: Place,
    /// Bytes of the key that were read.
    key: usize,
    escape: Escape,
    /// The first half of a pair of UTF-16.
    high: Option<u16>,
    /// `None`: any text will do.
    grammar: Option<TextMatch>,
}

/// Where in `{"input": "…"}` the JSON is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Object,
    Key,
    Name,
    Colon,
    Value,
    Text,
    End,
    Closed,
    /// It is something else.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Slash,
    Hex { digits: u8, value: u16 },
}

impl CustomInput {
    pub(super) fn new(grammar: Option<TextMatch>) -> Self {
        Self {
            place: Place::Object,
            key: 0,
            escape: Escape::None,
            high: None,
            grammar,
        }
    }

    /// Takes more of the JSON and adds the text in it to `out`.
    ///
    /// # Errors
    /// What it will not be a call for, whatever follows.
    pub(super) fn push(&mut self, json: &str, out: &mut String) -> Result<(), Violation> {
        let start = out.len();
        for character in json.chars() {
            self.take(character, out);
        }
        let fresh = out.get(start..).unwrap_or_default();
        if self.place == Place::Other {
            return Err(Violation::NoText);
        }
        match &mut self.grammar {
            Some(grammar) => match grammar.push(fresh) {
                Fit::May => Ok(()),
                Fit::Never => Err(Violation::Grammar),
                Fit::Unknown => Err(Violation::Ambiguous),
            },
            None => Ok(()),
        }
    }

    /// Checks the call that has ended.
    ///
    /// # Errors
    /// It has no text, or one that does not match the tool's grammar.
    pub(super) fn end(&mut self) -> Result<(), Violation> {
        if self.place != Place::Closed {
            return Err(Violation::NoText);
        }
        match self.grammar.as_mut().is_none_or(TextMatch::is_whole) {
            true => Ok(()),
            false => Err(Violation::Grammar),
        }
    }

    fn take(&mut self, character: char, out: &mut String) {
        if self.place == Place::Text {
            return self.take_text(character, out);
        }
        if self.place == Place::Name {
            let expected = CUSTOM_INPUT.as_bytes().get(self.key).copied();
            self.place = match (expected.map(char::from), character) {
                (Some(expected), found) if expected == found => {
                    self.key += 1;
                    Place::Name
                }
                (None, '"') => Place::Colon,
                _ => Place::Other,
            };
            return;
        }
        if character.is_ascii_whitespace() {
            return;
        }
        self.place = match (self.place, character) {
            (Place::Object, '{') => Place::Key,
            (Place::Key, '"') => Place::Name,
            (Place::Colon, ':') => Place::Value,
            (Place::Value, '"') => Place::Text,
            (Place::End, '}') => Place::Closed,
            _ => Place::Other,
        };
    }

    /// Models often leave line breaks as they are, so control characters are text.
    fn take_text(&mut self, character: char, out: &mut String) {
        match (self.escape, character) {
            (Escape::None, '\\') => self.escape = Escape::Slash,
            (Escape::None, '"') => {
                self.end_pair(out);
                self.place = Place::End;
            }
            (Escape::None, character) => {
                self.end_pair(out);
                out.push(character);
            }
            (Escape::Slash, 'u') => {
                self.escape = Escape::Hex {
                    digits: 0,
                    value: 0,
                };
            }
            (Escape::Slash, letter) => {
                self.escape = Escape::None;
                self.end_pair(out);
                match letter {
                    '"' | '\\' | '/' => out.push(letter),
                    'b' => out.push('\u{8}'),
                    'f' => out.push('\u{c}'),
                    'n' => out.push('\n'),
                    'r' => out.push('\r'),
                    't' => out.push('\t'),
                    _ => self.place = Place::Other,
                }
            }
            (Escape::Hex { digits, value }, digit) => match digit.to_digit(16) {
                Some(digit) => {
                    let value = value << 4 | digit as u16;
                    self.escape = Escape::Hex {
                        digits: digits + 1,
                        value,
                    };
                    if digits == 3 {
                        self.escape = Escape::None;
                        self.take_unit(value, out);
                    }
                }
                None => self.place = Place::Other,
            },
        }
    }

    /// Takes a unit of UTF-16.
    fn take_unit(&mut self, unit: u16, out: &mut String) {
        if let Some(high) = self.high.take() {
            let mut pair = char::decode_utf16([high, unit]);
            if let Some(Ok(character)) = pair.next() {
                out.push(character);
                return;
            }
            out.push(char::REPLACEMENT_CHARACTER);
        }
        match char::from_u32(unit.into()) {
            Some(character) => out.push(character),
            None if (0xd800..0xdc00).contains(&unit) => self.high = Some(unit),
            None => out.push(char::REPLACEMENT_CHARACTER),
        }
    }

    /// A half that is alone.
    fn end_pair(&mut self, out: &mut String) {
        if self.high.take().is_some() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Why a call does not fit its custom tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    NoText,
    Grammar,
    /// Nobody knows whether the text matches the grammar.
    Ambiguous,
}

impl Violation {
    /// 502, for a call of the tool `name`.
    pub(super) fn error(self, name: &str) -> ApiError {
        let what = match self {
            Self::NoText => "with input that is not a string. Retry",
            Self::Grammar => "with a text that does not match its grammar. Retry",
            Self::Ambiguous => {
                "with a text that took too long to check. Make the tool's grammar less ambiguous"
            }
        };
        ApiError::invalid_answer(format!("The model called the custom tool `{name}` {what}."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of these pieces, and what became of them.
    fn read(pieces: &[&str]) -> Result<String, Violation> {
        let mut input = CustomInput::new(None);
        let mut out = String::new();
        for piece in pieces {
            input.push(piece, &mut out)?;
        }
        input.end().map(|()| out)
    }

    #[test]
    fn a_text_is_the_same_however_its_json_is_cut() {
        for (json, expected) in [
            (r#"{"input": ""}"#, Ok("")),
            (
                r#"{"input":"a\"b\\c\/\n\t\u00e4€🦀"}"#,
                Ok("a\"b\\c/\n\tä€🦀"),
            ),
            (r#" { "input" : "\ud83e\udd80x" } "#, Ok("🦀x")),
            (r#"{"input":"\ud83e"}"#, Ok("\u{fffd}")),
            (r#"{"input":"\ud83ea\udd80"}"#, Ok("\u{fffd}a\u{fffd}")),
            (r#"{"input":"\ud83e\ud83e\udd80"}"#, Ok("\u{fffd}🦀")),
            ("{\"input\":\"two\nlines\"}", Ok("two\nlines")),
            (r#"{"input":"a"#, Err(Violation::NoText)),
            (r#"{"input":"a","input":"b"}"#, Err(Violation::NoText)),
            (r#"{"input":5}"#, Err(Violation::NoText)),
            (r#"{"inputs":"a"}"#, Err(Violation::NoText)),
            (r#"{"in":"a"}"#, Err(Violation::NoText)),
            (r#"{}"#, Err(Violation::NoText)),
            (r#""a""#, Err(Violation::NoText)),
            (r#"{"input":"\x"}"#, Err(Violation::NoText)),
            (r#"{"input":"\u12x4"}"#, Err(Violation::NoText)),
            ("", Err(Violation::NoText)),
        ] {
            let expected = expected.map(str::to_owned);
            assert_eq!(read(&[json]), expected, "{json}");
            let each: Vec<&str> = json.split_inclusive(|_: char| true).collect();
            assert_eq!(read(&each), expected, "{json}");
            for (cut, _) in json.char_indices() {
                let (before, after) = json.split_at(cut);
                assert_eq!(read(&[before, after]), expected, "{json} at {cut}");
            }
        }
    }
}
