//! Gemma 4's objects as JSON, incrementally: `{key:<|"|>text<|"|>,list:[1,true],other:{…}}`. Owns that notation:
//! strings are between tokens and are exact, keys are bare, and a bare value that is not a number or a constant is a
//! string.

use crate::formats::{Header, before_marker, header_until};
use crate::json::{Scan, Scanner, whole, write_escaped};
use crate::marker::{Look, look};
use crate::{MAX_DEPTH, MAX_NAME};

/// What is around strings.
pub(crate) const DELIMITER: &str = "<|\"|>";

/// The longest value without delimiters.
const MAX_BARE: usize = 1024;

/// Reads one object, piece by piece, and emits it as JSON.
#[derive(Clone, Debug, Default)]
pub(crate) struct Object {
    /// The open containers, the innermost one in the lowest bit: 1 is an object.
    containers: u128,
    depth: u32,
    state: State,
}

#[derive(Clone, Debug, Default)]
enum State {
    /// A value: at the very start, or behind a key.
    #[default]
    Value,
    /// Behind an opening bracket.
    First,
    /// Behind `,`: an item or the end.
    Next,
    Colon,
    /// Behind an item.
    After,
    String {
        is_key: bool,
    },
    /// A string between plain quotes, as JSON has it.
    Json(Scanner),
    Over,
}

/// What became of the start of a text.
enum Read {
    Took(usize),
    /// More text is needed to decide.
    Cut,
    Bad,
}

impl Object {
    /// Reads on. The text starts with `{` the first time. Bytes that were not read must come again at the start of
    /// the next text: those of a delimiter, a key or a bare value.
    pub(crate) fn scan(&mut self, text: &str, emit: &mut impl FnMut(&str)) -> Scan {
        let mut position = 0;
        loop {
            if matches!(self.state, State::Over) {
                return Scan::Done(position);
            }
            let rest = crate::split(text, position).1;
            if rest.is_empty() {
                return Scan::More(position);
            }
            match self.step(rest, emit) {
                Read::Took(length) => position += length,
                Read::Cut => return Scan::More(position),
                Read::Bad => return Scan::Bad(position),
            }
        }
    }

    fn step(&mut self, text: &str, emit: &mut impl FnMut(&str)) -> Read {
        match &mut self.state {
            State::String { is_key } => {
                let is_key = *is_key;
                return self.string(text, is_key, emit);
            }
            State::Json(scanner) => {
                return match scanner.scan(text, emit) {
                    Scan::More(0) => Read::Cut,
                    Scan::Bad(0) => Read::Bad,
                    // What comes before a fault was emitted.
                    Scan::More(length) | Scan::Bad(length) => Read::Took(length),
                    Scan::Done(length) => {
                        self.end_value();
                        Read::Took(length)
                    }
                };
            }
            _ => {}
        }
        let space = crate::formats::space(text);
        if space > 0 {
            return Read::Took(space);
        }
        let Some(first) = text.bytes().next() else {
            return Read::Cut;
        };
        let is_object = self.containers & 1 == 1;
        match (&self.state, first) {
            (State::First | State::Next | State::After, b'}' | b']') => {
                self.close(first, is_object, emit)
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
            (State::First | State::Next, _) if is_object => self.key(text, emit),
            (State::First | State::Next | State::Value, _) => self.value(text, first, emit),
            _ => Read::Bad,
        }
    }

    /// Separates an item from the one before it.
    fn separate(&self, emit: &mut impl FnMut(&str)) {
        if matches!(self.state, State::Next) {
            emit(", ");
        }
    }

    fn key(&mut self, text: &str, emit: &mut impl FnMut(&str)) -> Read {
        match look(text.as_bytes(), &[DELIMITER]) {
            Look::Partial => Read::Cut,
            Look::Whole(_) => {
                self.separate(emit);
                emit("\"");
                self.state = State::String { is_key: true };
                Read::Took(DELIMITER.len())
            }
            Look::Other => match header_until(text, &[":"], MAX_NAME) {
                Header::More => Read::Cut,
                Header::Whole(key, _, length) if is_key(key) => {
                    self.separate(emit);
                    emit("\"");
                    emit(key);
                    emit("\"");
                    self.state = State::Colon;
                    Read::Took(length - 1)
                }
                _ => Read::Bad,
            },
        }
    }

    fn value(&mut self, text: &str, first: u8, emit: &mut impl FnMut(&str)) -> Read {
        match first {
            b'{' | b'[' if self.depth < MAX_DEPTH => {
                self.separate(emit);
                emit(if first == b'{' { "{" } else { "[" });
                self.depth += 1;
                self.containers = self.containers << 1 | u128::from(first == b'{');
                self.state = State::First;
                return Read::Took(1);
            }
            b'"' => {
                self.separate(emit);
                self.state = State::Json(Scanner::default());
                return Read::Took(0);
            }
            _ => {}
        }
        match look(text.as_bytes(), &[DELIMITER]) {
            Look::Partial => return Read::Cut,
            Look::Whole(_) => {
                self.separate(emit);
                emit("\"");
                self.state = State::String { is_key: false };
                return Read::Took(DELIMITER.len());
            }
            Look::Other => {}
        }
        let near = crate::split_near(text, MAX_BARE).0;
        let Some(length) = near.find([',', '}', ']', '{', '[', '<']) else {
            return if near.len() < text.len() {
                Read::Bad
            } else {
                Read::Cut
            };
        };
        let word = crate::split(near, length).0.trim_matches(crate::is_space);
        if word.is_empty() {
            return Read::Bad;
        }
        self.separate(emit);
        match word {
            "None" | "none" | "nil" => emit("null"),
            _ => match whole(word) {
                Some(json) => emit(&json),
                None => {
                    emit("\"");
                    write_escaped(word, emit);
                    emit("\"");
                }
            },
        }
        self.end_value();
        Read::Took(length)
    }

    fn string(&mut self, text: &str, is_key: bool, emit: &mut impl FnMut(&str)) -> Read {
        let Some((before, end)) = before_marker(text, &[DELIMITER]) else {
            return Read::Cut;
        };
        write_escaped(crate::split(text, before).0, emit);
        if end.is_none() {
            return Read::Took(before);
        }
        emit("\"");
        if is_key {
            self.state = State::Colon;
        } else {
            self.end_value();
        }
        Read::Took(before + DELIMITER.len())
    }

    fn close(&mut self, byte: u8, is_object: bool, emit: &mut impl FnMut(&str)) -> Read {
        if self.depth == 0 || (byte == b'}') != is_object {
            return Read::Bad;
        }
        emit(if is_object { "}" } else { "]" });
        self.containers >>= 1;
        self.depth -= 1;
        self.end_value();
        Read::Took(1)
    }

    fn end_value(&mut self) {
        self.state = if self.depth == 0 {
            State::Over
        } else {
            State::After
        };
    }
}

/// Whether a text can be a key as it is.
fn is_key(text: &str) -> bool {
    let is_plain = |character: char| !matches!(character, '"' | '\\') && !character.is_control();
    !text.is_empty() && text.chars().all(is_plain)
}
