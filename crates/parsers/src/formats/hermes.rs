//! Hermes and Qwen: `<tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>`, any number of them in any text. The
//! embedded model writes this too.

use crate::arguments::Step;
use crate::call_object::CallObject;
use crate::formats::text_until;
use crate::marker::{Look, look};
use crate::sink::Sink;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

pub(crate) const SPECIAL: &[&str] = &[OPEN, CLOSE];

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
                    let _ = sink.hold(OPEN);
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
                Step::Bad(taken) => {
                    sink.give_up();
                    self.state = State::Text;
                    Some(taken)
                }
            },
            State::Close => {
                let space = text.len() - crate::skip_space(text).len();
                if space > 0 {
                    if !sink.hold(crate::split(text, space).0) {
                        self.leave(sink);
                    }
                    return Some(space);
                }
                match look(text.as_bytes(), &[CLOSE]) {
                    Look::Partial => None,
                    Look::Whole(_) => {
                        sink.forget();
                        self.state = State::Text;
                        Some(CLOSE.len())
                    }
                    Look::Other => {
                        self.leave(sink);
                        Some(0)
                    }
                }
            }
        }
    }

    /// Takes what stands behind the object for text: the closing tag is missing.
    fn leave(&mut self, sink: &mut Sink<'_>) {
        sink.give_up();
        self.state = State::Text;
    }
}
