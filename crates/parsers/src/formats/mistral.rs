//! Mistral: `[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]` of older tokenizers, and
//! `[TOOL_CALLS]name[ARGS]{…}` of newer ones, with or without `[CALL_ID]id` and `[ARGS]`, once per call.

use crate::MAX_NAME;
use crate::arguments::{Arguments, Step};
use crate::call_object::CallObject;
use crate::formats::{Header, header_until, space, text_until};
use crate::sink::Sink;

const CALLS: &str = "[TOOL_CALLS]";
const ARGUMENTS: &str = "[ARGS]";
const ID: &str = "[CALL_ID]";

pub(crate) const SPECIAL: &[&str] = &[CALLS, ARGUMENTS, ID];

/// The special token that starts calls.
pub(crate) const STARTS: &[&str] = &[CALLS];

#[derive(Clone, Debug, Default)]
pub(crate) struct Mistral {
    state: State,
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Text,
    /// Behind the marker.
    Open,
    /// Behind `[` or `,` of an array.
    Item {
        is_first: bool,
    },
    /// An object, in an array or alone.
    Call(CallObject, bool),
    /// Behind an object of an array.
    Between,
    /// Behind a name and `[CALL_ID]`.
    Id(String),
    /// Behind `[ARGS]`: the object may start.
    ArgumentsStart(String, Option<String>),
    Arguments(Arguments),
}

impl Mistral {
    pub(crate) fn take(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        match &mut self.state {
            State::Text => {
                let (marker, taken) = text_until(text, &[CALLS], sink)?;
                if marker.is_some() {
                    sink.keep_undecided_token(CALLS);
                    self.state = State::Open;
                }
                Some(taken)
            }
            State::Call(call, is_in_array) => match call.take(text, sink) {
                Step::More => None,
                Step::Took(taken) => Some(taken),
                Step::Done(taken) => {
                    self.state = if *is_in_array {
                        State::Between
                    } else {
                        sink.forget();
                        State::Text
                    };
                    Some(taken)
                }
                Step::Bad(taken) => self.leave(taken, sink),
            },
            State::Arguments(arguments) => match arguments.take(text, sink) {
                Step::More => None,
                Step::Took(taken) => Some(taken),
                Step::Done(taken) => {
                    sink.forget();
                    self.state = State::Text;
                    Some(taken)
                }
                Step::Bad(taken) => self.leave(taken, sink),
            },
            _ => match space(text) {
                0 => self.structure(text, sink),
                space => match sink.keep_undecided(crate::split(text, space).0) {
                    Ok(()) => Some(space),
                    Err(kept) => self.leave(kept, sink),
                },
            },
        }
    }

    /// Reads what is around objects.
    fn structure(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        let first = text.bytes().next()?;
        let next = match (&mut self.state, first) {
            (State::Open, b'[') => State::Item { is_first: true },
            (State::Between, b',') => {
                self.state = State::Item { is_first: false };
                return match sink.keep_undecided(",") {
                    Ok(()) => Some(1),
                    Err(kept) => self.leave(kept, sink),
                };
            }
            (State::Between, b']') | (State::Item { is_first: false }, b']') => {
                sink.forget();
                self.state = State::Text;
                return Some(1);
            }
            (State::Open, b'{') => return self.go(State::Call(CallObject::marked(), false)),
            (State::Item { .. }, b'{') => return self.go(State::Call(CallObject::marked(), true)),
            (State::Open, _) => return self.name(text, sink),
            (State::Id(name), _) => {
                let name = std::mem::take(name);
                return self.id(name, text, sink);
            }
            (State::ArgumentsStart(name, id), b'{') => {
                sink.begin(id.as_deref(), name);
                return self.go(State::Arguments(Arguments::default()));
            }
            _ => return self.leave(0, sink),
        };
        sink.keep_undecided_token(crate::split(text, 1).0);
        self.state = next;
        Some(1)
    }

    fn name(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        match header_until(text, &[ARGUMENTS, ID, "{"], MAX_NAME) {
            Header::More => None,
            Header::Whole(name, marker, length) if sink.may_call(name) => {
                let name = name.to_owned();
                let (state, length) = match marker {
                    0 => (State::ArgumentsStart(name, None), length),
                    1 => (State::Id(name), length),
                    // The brace is the arguments' own.
                    _ => (State::ArgumentsStart(name, None), length - 1),
                };
                sink.keep_undecided_token(crate::split(text, length).0);
                self.state = state;
                Some(length)
            }
            _ => self.leave(0, sink),
        }
    }

    fn id(&mut self, name: String, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        match header_until(text, &[ARGUMENTS], MAX_NAME) {
            Header::More => {
                self.state = State::Id(name);
                None
            }
            Header::Whole(id, _, length) => {
                self.state = State::ArgumentsStart(name, Some(id.to_owned()));
                sink.keep_undecided_token(crate::split(text, length).0);
                Some(length)
            }
            Header::Bad => self.leave(0, sink),
        }
    }

    fn go(&mut self, state: State) -> Option<usize> {
        self.state = state;
        Some(0)
    }

    /// What comes is text.
    fn leave(&mut self, taken: usize, sink: &mut Sink<'_>) -> Option<usize> {
        sink.give_up();
        self.state = State::Text;
        Some(taken)
    }
}
