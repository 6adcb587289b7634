//! A call that is written as one JSON object: `{"name": …, "arguments": {…}}`. Owns the order of its keys and when
//! the call begins; what is around the object is the formats'.
//!
//! `parameters` is `arguments` under another name. Arguments may also be `null`, which means no arguments, or a
//! string that holds the object. Other keys are skipped, except `id`.

use crate::arguments::{Arguments, Step};
use crate::json::{Scan, Scanner};
use crate::marker::{Look, look};
use crate::sink::Sink;
use crate::{MAX_NAME, skip_space};

/// One such object as it is read. Until the call begins, all that was read is held in the sink.
#[derive(Clone, Debug)]
pub(crate) struct CallObject {
    /// Whether the object has to be a call and nothing else: its name first, then its arguments, which must be
    /// there. So that JSON which is the answer itself is recognized early.
    is_strict: bool,
    state: State,
    name: Option<String>,
    id: Option<String>,
    /// Arguments that came before the name.
    early: Option<String>,
    has_begun: bool,
}

#[derive(Clone, Debug)]
enum State {
    Open,
    /// Behind `{` or `,`.
    Key {
        is_first: bool,
    },
    /// Behind a key.
    Colon(Key),
    Value(Key),
    /// Arguments that go straight to the client.
    Arguments(Arguments),
    /// Arguments or anything else that cannot: what they are, and their text if it is needed.
    Skipped(Key, Scanner, String),
    AfterValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Name,
    Arguments,
    Id,
    Type,
    Other,
}

impl CallObject {
    /// An object that a marker has announced as a call.
    pub(crate) fn marked() -> Self {
        Self::new(false)
    }

    /// An object that may be a call or any other JSON.
    pub(crate) fn strict() -> Self {
        Self::new(true)
    }

    fn new(is_strict: bool) -> Self {
        Self {
            is_strict,
            state: State::Open,
            name: None,
            id: None,
            early: None,
            has_begun: false,
        }
    }

    /// Reads on. Behind [`Step::Bad`] the caller must [give up](Sink::give_up).
    pub(crate) fn take(&mut self, text: &str, sink: &mut Sink<'_>) -> Step {
        if let State::Arguments(arguments) = &mut self.state {
            return match arguments.take(text, sink) {
                Step::Done(read) => {
                    self.state = State::AfterValue;
                    Step::Took(read)
                }
                other => other,
            };
        }
        let step = self.step(text, sink);
        let (Step::Took(read) | Step::Done(read) | Step::Bad(read)) = step else {
            return step;
        };
        if !self.has_begun
            && let Err(kept) = sink.keep_undecided(crate::split(text, read).0)
        {
            return Step::Bad(kept);
        }
        match step {
            Step::Done(read) if !self.end(sink) => Step::Bad(read),
            step => step,
        }
    }

    fn step(&mut self, text: &str, sink: &mut Sink<'_>) -> Step {
        if let State::Skipped(key, scanner, read) = &mut self.state {
            let is_kept = matches!(key, Key::Arguments);
            let scan = scanner.scan(text, &mut |json| {
                if is_kept {
                    read.push_str(json);
                }
            });
            return match scan {
                Scan::More(0) => Step::More,
                Scan::More(length) => Step::Took(length),
                Scan::Bad(length) => Step::Bad(length),
                Scan::Done(length) => {
                    if is_kept {
                        match whole_object(std::mem::take(read)) {
                            Some(object) => self.early = Some(object),
                            None => return Step::Bad(length),
                        }
                    }
                    self.state = State::AfterValue;
                    Step::Took(length)
                }
            };
        }
        let rest = skip_space(text);
        let space = text.len() - rest.len();
        if space > 0 {
            return Step::Took(space);
        }
        let Some(first) = text.bytes().next() else {
            return Step::More;
        };
        match (&self.state, first) {
            (State::Open, b'{') => {
                // From here on what is held is this call's.
                sink.keep_undecided_token("");
                self.go(State::Key { is_first: true }, 1)
            }
            (State::Key { is_first: true }, b'}') | (State::AfterValue, b'}') => Step::Done(1),
            (State::Key { .. }, b'"') => match string(text) {
                Token::Whole(length, key) => match self.key(&key) {
                    Some(key) => self.go(State::Colon(key), length),
                    None => Step::Bad(0),
                },
                Token::Cut => Step::More,
                Token::Bad => Step::Bad(0),
            },
            (State::Colon(key), b':') => self.go(State::Value(*key), 1),
            (State::AfterValue, b',') => self.go(State::Key { is_first: false }, 1),
            (State::Value(key), _) => self.value(*key, text, first, sink),
            _ => Step::Bad(0),
        }
    }

    fn go(&mut self, state: State, length: usize) -> Step {
        self.state = state;
        Step::Took(length)
    }

    /// What a key means; `None`: it is not allowed here.
    fn key(&self, key: &str) -> Option<Key> {
        let key = match key {
            "name" => Key::Name,
            "arguments" | "parameters" => Key::Arguments,
            "id" => Key::Id,
            "type" => Key::Type,
            _ => Key::Other,
        };
        let has_arguments = self.has_begun || self.early.is_some();
        let may_stand = match key {
            Key::Name => self.name.is_none(),
            Key::Arguments => !has_arguments && (!self.is_strict || self.name.is_some()),
            Key::Other => !self.is_strict || self.has_begun,
            Key::Id | Key::Type => true,
        };
        may_stand.then_some(key)
    }

    fn value(&mut self, key: Key, text: &str, first: u8, sink: &mut Sink<'_>) -> Step {
        match (key, first) {
            (Key::Name, b'"') | (Key::Id | Key::Type, b'"') if self.has_short_strings(key) => {
                match string(text) {
                    Token::Whole(length, value) => {
                        if key == Key::Name && !sink.may_call(&value) {
                            return Step::Bad(0);
                        }
                        match key {
                            Key::Name => self.name = Some(value),
                            Key::Id => self.id = Some(value),
                            _ => {}
                        }
                        self.go(State::AfterValue, length)
                    }
                    Token::Cut => Step::More,
                    Token::Bad => Step::Bad(0),
                }
            }
            (Key::Name, _) => Step::Bad(0),
            (Key::Id | Key::Type, _) if self.is_strict && !self.has_begun => Step::Bad(0),
            (Key::Arguments, b'{') => match self.name.take() {
                Some(name) => {
                    sink.begin(self.id.as_deref(), &name);
                    self.name = Some(name);
                    self.has_begun = true;
                    self.go(State::Arguments(Arguments::default()), 0)
                }
                None => self.go(State::Skipped(key, Scanner::default(), String::new()), 0),
            },
            (Key::Arguments, b'"') => {
                self.go(State::Skipped(key, Scanner::default(), String::new()), 0)
            }
            (Key::Arguments, _) => match look(text.as_bytes(), &["null"]) {
                Look::Whole(_) => {
                    self.early = Some("{}".to_owned());
                    self.go(State::AfterValue, "null".len())
                }
                Look::Partial => Step::More,
                Look::Other => Step::Bad(0),
            },
            _ => self.go(
                State::Skipped(Key::Other, Scanner::default(), String::new()),
                0,
            ),
        }
    }

    /// Whether this value is a short string, which is read whole. Behind the start of the call nobody needs it.
    fn has_short_strings(&self, key: Key) -> bool {
        key == Key::Name || !self.has_begun
    }

    /// The object is over: a call that has not begun does so now, if it can. Whether it was a call.
    fn end(&mut self, sink: &mut Sink<'_>) -> bool {
        if self.has_begun {
            return true;
        }
        let Some(name) = &self.name else {
            return false;
        };
        if self.is_strict && self.early.is_none() {
            return false;
        }
        sink.begin(self.id.as_deref(), name);
        sink.arguments(self.early.as_deref().unwrap_or("{}"));
        sink.end(true);
        true
    }
}

/// A string at the start of a text.
enum Token {
    /// Its length with quotes, and its value.
    Whole(usize, String),
    Cut,
    /// It is too long or not JSON.
    Bad,
}

/// Reads a short JSON string whole.
fn string(text: &str) -> Token {
    let mut scanner = Scanner::default();
    let mut json = String::new();
    match scanner.scan(text, &mut |piece| json.push_str(piece)) {
        Scan::Done(length) if length <= MAX_NAME => match serde_json::from_str(&json) {
            Ok(value) => Token::Whole(length, value),
            Err(_) => Token::Bad,
        },
        Scan::More(_) if text.len() <= MAX_NAME => Token::Cut,
        _ => Token::Bad,
    }
}

/// The arguments of a JSON value that is an object, or a string that holds one.
fn whole_object(json: String) -> Option<String> {
    if json.starts_with('{') {
        return Some(json);
    }
    let text: String = serde_json::from_str(&json).ok()?;
    crate::json::whole(text.trim_matches(crate::is_space)).filter(|json| json.starts_with('{'))
}
