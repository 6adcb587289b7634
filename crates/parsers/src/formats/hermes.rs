//! Hermes and Qwen: `<tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>`, any number of them in any text. The
//! embedded model writes this too.

use crate::arguments::Step;
use crate::call_object::CallObject;
use crate::formats::{space, text_until};
use crate::marker::{Look, look};
use crate::sink::Sink;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

pub(crate) const SPECIAL: &[&str] = &[OPEN, CLOSE];

/// What announces a call.
pub(crate) const STARTS: &[&str] = &[OPEN];

#[derive(Clone, Debug, Default)]
pub(crate) struct Hermes {
    state: State,
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Text,
    Call(CallObject),
    /// Behind the object: only the closing tag may come.
    Close,
}

impl Hermes {
    pub(crate) fn take(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        match &mut self.state {
            State::Text => {
                let (marker, taken) = text_until(text, &[OPEN], sink)?;
                if marker.is_some() {
                    sink.keep_undecided_token(OPEN);
                    self.state = State::Call(CallObject::marked());
                }
                Some(taken)
            }
            State::Call(call) => match call.take(text, sink) {
                Step::More => None,
                Step::Took(taken) => Some(taken),
                Step::Done(taken) => {
                    self.state = State::Close;
                    Some(taken)
                }
                Step::Bad(taken) => self.leave(taken, sink),
            },
            State::Close => match space(text) {
                0 => match look(text.as_bytes(), &[CLOSE]) {
                    Look::Partial => None,
                    Look::Whole(_) => {
                        sink.forget();
                        self.state = State::Text;
                        Some(CLOSE.len())
                    }
                    // The closing tag is missing.
                    Look::Other => self.leave(0, sink),
                },
                space => match sink.keep_undecided(crate::split(text, space).0) {
                    Ok(()) => Some(space),
                    Err(kept) => self.leave(kept, sink),
                },
            },
        }
    }

    /// What comes is text.
    fn leave(&mut self, taken: usize, sink: &mut Sink<'_>) -> Option<usize> {
        sink.give_up();
        self.state = State::Text;
        Some(taken)
    }
}
