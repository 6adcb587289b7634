//! Calls that are JSON objects behind a marker, most often in one array: `marker [{"name": …, "arguments": {…}}, …]`.
//! Phi-4-mini, Granite 3, Jamba, Hunyuan A13B, MiniMax M1, xLAM and InternLM differ only in what is around the
//! objects, which is a table.
//!
//! A single object, and several in a row, count too. What closes the list may be missing.

use crate::arguments::Step;
use crate::call_object::CallObject;
use crate::formats::{space, text_until};
use crate::marker::{Look, look};
use crate::sink::Sink;

const FENCE: &str = "```";
/// What may follow an opening fence.
const LANGUAGE: &str = "json";

/// What is around the objects.
#[derive(Debug)]
pub(crate) struct Marks {
    starts: &'static [&'static str],
    ends: &'static [&'static str],
    /// Whether an array at the start of the answer counts without a marker, and the markers announce other JSON too.
    /// Then the name has to come first.
    is_bare: bool,
}

pub(crate) const PHI4_MINI: Marks = Marks {
    starts: &["functools", "<|tool_call|>"],
    ends: &["<|/tool_call|>"],
    is_bare: false,
};

pub(crate) const GRANITE: Marks = Marks {
    starts: &["<|tool_call|>", "<tool_call>"],
    ends: &["</tool_call>"],
    is_bare: false,
};

pub(crate) const JAMBA: Marks = Marks {
    starts: &["<tool_calls>"],
    ends: &["</tool_calls>"],
    is_bare: false,
};

pub(crate) const XLAM: Marks = Marks {
    starts: &[FENCE, "[TOOL_CALLS]", "<tool_call>"],
    ends: &[FENCE, "</tool_call>"],
    is_bare: true,
};

pub(crate) const INTERNLM: Marks = Marks {
    starts: &["<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"],
    ends: &["<|action_end|>"],
    is_bare: false,
};

/// What announces calls; an array without a marker is not looked for within reasoning.
pub(crate) const PHI4_MINI_STARTS: &[&str] = PHI4_MINI.starts;
pub(crate) const GRANITE_STARTS: &[&str] = GRANITE.starts;
pub(crate) const JAMBA_STARTS: &[&str] = JAMBA.starts;
pub(crate) const XLAM_STARTS: &[&str] = XLAM.starts;
pub(crate) const INTERNLM_STARTS: &[&str] = INTERNLM.starts;

pub(crate) const PHI4_MINI_SPECIAL: &[&str] = &["<|tool_call|>", "<|/tool_call|>"];
pub(crate) const GRANITE_SPECIAL: &[&str] = &["<|tool_call|>", "<tool_call>", "</tool_call>"];
pub(crate) const JAMBA_SPECIAL: &[&str] = &["<tool_calls>", "</tool_calls>"];
pub(crate) const XLAM_SPECIAL: &[&str] = &["[TOOL_CALLS]", "<tool_call>", "</tool_call>"];
pub(crate) const INTERNLM_SPECIAL: &[&str] = &["<|action_start|>", "<|plugin|>", "<|action_end|>"];

#[derive(Clone, Debug)]
pub(crate) struct Objects {
    marks: &'static Marks,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// At the start of the answer.
    Start,
    Text,
    /// Behind the marker.
    Open,
    /// Behind `[` or `,`.
    Item {
        is_first: bool,
    },
    /// An object, in an array or not.
    Call(CallObject, bool),
    /// Behind an object, in an array or not.
    Between {
        is_in_array: bool,
    },
    /// Behind the array.
    Close,
}

impl Objects {
    pub(crate) fn new(marks: &'static Marks) -> Self {
        let state = if marks.is_bare {
            State::Start
        } else {
            State::Text
        };
        Self { marks, state }
    }

    pub(crate) fn take(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        match &mut self.state {
            State::Start => match space(text) {
                0 if text.is_empty() => None,
                0 if text.starts_with('[') => match look(text.as_bytes(), &["[TOOL_CALLS]"]) {
                    Look::Partial => None,
                    Look::Whole(_) => self.go(State::Text, 0),
                    _ => self.go(State::Open, 0),
                },
                0 => self.go(State::Text, 0),
                space => {
                    sink.content(crate::split(text, space).0);
                    Some(space)
                }
            },
            State::Text => {
                let (marker, taken) = text_until(text, self.marks.starts, sink)?;
                if let Some(start) = marker.and_then(|marker| self.marks.starts.get(marker)) {
                    sink.keep_undecided_token(start);
                    self.state = State::Open;
                }
                Some(taken)
            }
            State::Call(call, is_in_array) => match call.take(text, sink) {
                Step::More => None,
                Step::Took(taken) => Some(taken),
                Step::Done(taken) => {
                    let is_in_array = *is_in_array;
                    self.go(State::Between { is_in_array }, taken)
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
        match (&self.state, first) {
            (State::Open, b'[') => {
                sink.keep_undecided_token("[");
                self.go(State::Item { is_first: true }, 1)
            }
            (State::Open | State::Between { is_in_array: false }, b'{') => self.call(false),
            (State::Open, b'j') if self.marks.is_bare => match look(text.as_bytes(), &[LANGUAGE]) {
                Look::Partial => None,
                Look::Whole(_) => match sink.keep_undecided(LANGUAGE) {
                    Ok(()) => Some(LANGUAGE.len()),
                    Err(kept) => self.leave(kept, sink),
                },
                Look::Other => self.leave(0, sink),
            },
            (State::Item { .. }, b'{') => self.call(true),
            (State::Between { is_in_array: true }, b',') => match sink.keep_undecided(",") {
                Ok(()) => self.go(State::Item { is_first: false }, 1),
                Err(kept) => self.leave(kept, sink),
            },
            (State::Between { is_in_array: true } | State::Item { is_first: false }, b']') => {
                sink.forget();
                self.go(State::Close, 1)
            }
            (State::Between { is_in_array: false } | State::Close, _) => {
                match look(text.as_bytes(), self.marks.ends) {
                    Look::Partial => None,
                    Look::Whole(end) => {
                        sink.forget();
                        let length = self.marks.ends.get(end).map_or(0, |end| end.len());
                        self.go(State::Text, length)
                    }
                    Look::Other => self.leave(0, sink),
                }
            }
            _ => self.leave(0, sink),
        }
    }

    fn call(&mut self, is_in_array: bool) -> Option<usize> {
        let call = if self.marks.is_bare {
            CallObject::strict()
        } else {
            CallObject::marked()
        };
        self.go(State::Call(call, is_in_array), 0)
    }

    fn go(&mut self, state: State, taken: usize) -> Option<usize> {
        self.state = state;
        Some(taken)
    }

    /// What comes is text.
    fn leave(&mut self, taken: usize, sink: &mut Sink<'_>) -> Option<usize> {
        sink.give_up();
        self.go(State::Text, taken)
    }
}
