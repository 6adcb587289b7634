//! Llama 3.x: the answer is `{"name": …, "parameters": {…}}`, with or without `<|python_tag|>` in front; several are
//! separated by `;`.
//!
//! Nothing marks such a call but its place and its keys. So it counts at the start of the answer, behind the tag and
//! behind another call, and, where the request's tools are known, at the start of any line. It must have the name
//! first, then the parameters; JSON of any other kind is content as soon as that shows.

use crate::arguments::Step;
use crate::call_object::CallObject;
use crate::formats::{space, text_until};
use crate::marker::{Look, look};
use crate::sink::Sink;

const TAG: &str = "<|python_tag|>";

pub(crate) const SPECIAL: &[&str] = &[TAG];

/// What announces a call; one without the tag is not looked for within reasoning.
pub(crate) const STARTS: &[&str] = &[TAG];

#[derive(Clone, Debug, Default)]
pub(crate) struct LlamaJson {
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// Where a call may start; what `is_held` was read so far.
    Start {
        is_held: bool,
    },
    /// Within a line.
    Text,
    Call(CallObject),
}

impl Default for State {
    fn default() -> Self {
        Self::Start { is_held: false }
    }
}

impl LlamaJson {
    pub(crate) fn take(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        match &mut self.state {
            State::Start { is_held } => {
                let is_held = *is_held;
                self.start(text, is_held, sink)
            }
            State::Text => {
                // A line matters only where names distinguish calls from other JSON.
                let markers: &[&str] = if sink.tools().is_some() {
                    &[TAG, "\n"]
                } else {
                    &[TAG]
                };
                let (marker, taken) = text_until(text, markers, sink)?;
                match marker {
                    Some(0) => {
                        sink.keep_undecided_token(TAG);
                        self.state = State::Start { is_held: true };
                    }
                    Some(_) => {
                        sink.content("\n");
                        self.state = State::Start { is_held: false };
                    }
                    None => {}
                }
                Some(taken)
            }
            State::Call(call) => match call.take(text, sink) {
                Step::More => None,
                Step::Took(taken) => Some(taken),
                Step::Done(taken) => {
                    self.state = State::Start { is_held: true };
                    Some(taken)
                }
                Step::Bad(taken) => self.leave(taken, sink),
            },
        }
    }

    fn start(&mut self, text: &str, is_held: bool, sink: &mut Sink<'_>) -> Option<usize> {
        let passed = if is_held {
            // Behind a call: its separator.
            let rest = text.trim_start_matches(|character| {
                matches!(character, ';' | ',') || crate::is_space(character)
            });
            text.len() - rest.len()
        } else {
            space(text)
        };
        if passed > 0 {
            let passed_text = crate::split(text, passed).0;
            if !is_held {
                sink.content(passed_text);
            } else if let Err(kept) = sink.keep_undecided(passed_text) {
                return self.leave(kept, sink);
            }
            return Some(passed);
        }
        match look(text.as_bytes(), &["{", TAG]) {
            Look::Partial => None,
            Look::Whole(0) => {
                self.state = State::Call(CallObject::strict());
                Some(0)
            }
            Look::Whole(_) => match sink.keep_undecided(TAG) {
                Ok(()) => {
                    self.state = State::Start { is_held: true };
                    Some(TAG.len())
                }
                Err(kept) => self.leave(kept, sink),
            },
            Look::Other => self.leave(0, sink),
        }
    }

    /// What comes is text.
    fn leave(&mut self, taken: usize, sink: &mut Sink<'_>) -> Option<usize> {
        sink.give_up();
        self.state = State::Text;
        Some(taken)
    }
}
