//! GLM 4.5: `<tool_call>name\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>…</tool_call>`. Values are exact;
//! line ends between the tags are the format's.

use crate::MAX_NAME;
use crate::formats::{Header, before_marker, header_until, space, text_until};
use crate::marker::{Look, look};
use crate::sink::Sink;
use crate::values::{ObjectWriter, ValueWriter};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";

pub(crate) const SPECIAL: &[&str] = &[OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END];

/// What announces a call.
pub(crate) const STARTS: &[&str] = &[OPEN];

#[derive(Clone, Debug, Default)]
pub(crate) struct Glm {
    state: State,
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Text,
    /// Behind the opening tag: the name.
    Name,
    /// Between parameters.
    Parameters(ObjectWriter),
    Key(ObjectWriter),
    /// Behind a key.
    ValueOpen(ObjectWriter, String),
    Value(ObjectWriter, ValueWriter),
}

impl Glm {
    pub(crate) fn take(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        // An empty text decides nothing, and no state may be lost over it.
        if text.is_empty() {
            return None;
        }
        match std::mem::take(&mut self.state) {
            State::Text => {
                let (marker, taken) = text_until(text, &[OPEN], sink)?;
                if marker.is_some() {
                    sink.keep_undecided_token(OPEN);
                    self.state = State::Name;
                }
                Some(taken)
            }
            State::Name => match header_until(text, &[KEY, CLOSE], MAX_NAME) {
                Header::More => self.wait(State::Name),
                Header::Whole(name, marker, length) if sink.may_call(name) => {
                    let object = ObjectWriter::begin(name, sink);
                    // The marker is the parameters' own.
                    let marker = if marker == 0 { KEY } else { CLOSE };
                    self.go(State::Parameters(object), length - marker.len())
                }
                _ => self.leave(0, sink),
            },
            State::Parameters(object) => match space(text) {
                0 => match look(text.as_bytes(), &[KEY, CLOSE]) {
                    Look::Partial => self.wait(State::Parameters(object)),
                    Look::Whole(0) => self.go(State::Key(object), KEY.len()),
                    Look::Whole(_) => {
                        object.end(sink);
                        sink.forget();
                        self.go(State::Text, CLOSE.len())
                    }
                    Look::Other => self.leave(0, sink),
                },
                space => self.go(State::Parameters(object), space),
            },
            State::Key(object) => match header_until(text, &[KEY_END], MAX_NAME) {
                Header::More => self.wait(State::Key(object)),
                Header::Whole(key, _, length) => {
                    self.go(State::ValueOpen(object, key.to_owned()), length)
                }
                Header::Bad => self.leave(0, sink),
            },
            State::ValueOpen(mut object, key) => match space(text) {
                0 => match look(text.as_bytes(), &[VALUE]) {
                    Look::Partial => self.wait(State::ValueOpen(object, key)),
                    Look::Whole(_) => {
                        let value = object.key(&key, sink);
                        self.go(State::Value(object, value), VALUE.len())
                    }
                    Look::Other => self.leave(0, sink),
                },
                space => self.go(State::ValueOpen(object, key), space),
            },
            State::Value(object, mut value) => {
                let Some((before, end)) = before_marker(text, &[VALUE_END]) else {
                    return self.wait(State::Value(object, value));
                };
                value.push(crate::split(text, before).0, sink);
                if end.is_some() {
                    value.end(sink);
                    return self.go(State::Parameters(object), before + VALUE_END.len());
                }
                self.go(State::Value(object, value), before)
            }
        }
    }

    fn go(&mut self, state: State, taken: usize) -> Option<usize> {
        self.state = state;
        Some(taken)
    }

    fn wait(&mut self, state: State) -> Option<usize> {
        self.state = state;
        None
    }

    /// What comes is text.
    fn leave(&mut self, taken: usize, sink: &mut Sink<'_>) -> Option<usize> {
        sink.give_up();
        self.go(State::Text, taken)
    }
}
