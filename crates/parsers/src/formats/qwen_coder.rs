//! Qwen3-Coder: `<tool_call><function=name><parameter=key>\nvalue\n</parameter>…</function></tool_call>`.
//!
//! Seed-OSS writes the same within `<seed:tool_call>`. A value loses one line end at its start and one at its end, which are the format's. The outer tag may be missing.

use crate::MAX_NAME;
use crate::formats::{Header, before_marker, header_until, space, text_until};
use crate::marker::{Look, look};
use crate::sink::Sink;
use crate::values::{ObjectWriter, ValueWriter};

/// The outer tags: those of Qwen and of Seed-OSS.
const OPEN: [&str; 2] = ["<tool_call>", "<seed:tool_call>"];
const CLOSE: [&str; 2] = ["</tool_call>", "</seed:tool_call>"];
const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
/// What ends a value; the line end before it is the format's.
const PARAMETER_ENDS: [&str; 2] = ["\n</parameter>", "</parameter>"];

pub(crate) const SPECIAL: &[&str] = &[OPEN[0], OPEN[1], CLOSE[0], CLOSE[1]];

/// What announces a call.
pub(crate) const STARTS: &[&str] = &[OPEN[0], OPEN[1], FUNCTION];

#[derive(Clone, Debug, Default)]
pub(crate) struct QwenCoder {
    state: State,
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Text,
    /// Behind the outer tag, or behind a function.
    Open {
        is_first: bool,
    },
    Name,
    /// Between parameters.
    Parameters(ObjectWriter),
    Key(ObjectWriter),
    /// Before the value's first line end.
    ValueStart(ObjectWriter, ValueWriter),
    Value(ObjectWriter, ValueWriter),
}

impl QwenCoder {
    pub(crate) fn take(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        // An empty text decides nothing, and no state may be lost over it.
        if text.is_empty() {
            return None;
        }
        match std::mem::take(&mut self.state) {
            State::Text => {
                let (marker, taken) = text_until(text, STARTS, sink)?;
                if let Some(marker) = marker {
                    sink.hold_token(STARTS.get(marker).copied().unwrap_or_default());
                    self.state = match OPEN.get(marker) {
                        Some(_) => State::Open { is_first: true },
                        None => State::Name,
                    };
                }
                Some(taken)
            }
            State::Open { is_first } => self.open(text, is_first, sink),
            State::Name => match header_until(text, &[">"], MAX_NAME) {
                Header::More => self.wait(State::Name),
                Header::Whole(name, _, length) if sink.may_call(name) => {
                    self.go(State::Parameters(ObjectWriter::begin(name, sink)), length)
                }
                _ => self.leave(0, sink),
            },
            State::Parameters(object) => self.parameters(text, object, sink),
            State::Key(mut object) => match header_until(text, &[">"], MAX_NAME) {
                Header::More => self.wait(State::Key(object)),
                Header::Whole(key, _, length) => {
                    let value = object.key(key, sink);
                    self.go(State::ValueStart(object, value), length)
                }
                Header::Bad => self.leave(0, sink),
            },
            State::ValueStart(object, value) => {
                let length = usize::from(text.starts_with('\n'));
                self.go(State::Value(object, value), length)
            }
            State::Value(object, mut value) => {
                let Some((before, end)) = before_marker(text, &PARAMETER_ENDS) else {
                    return self.wait(State::Value(object, value));
                };
                value.push(crate::split(text, before).0, sink);
                match end.and_then(|end| PARAMETER_ENDS.get(end)) {
                    Some(end) => {
                        value.end(sink);
                        self.go(State::Parameters(object), before + end.len())
                    }
                    None => self.go(State::Value(object, value), before),
                }
            }
        }
    }

    fn open(&mut self, text: &str, is_first: bool, sink: &mut Sink<'_>) -> Option<usize> {
        let space = space(text);
        if space > 0 {
            if let Err(kept) = sink.hold(crate::split(text, space).0) {
                return self.leave(kept, sink);
            }
            return self.go(State::Open { is_first }, space);
        }
        match look(text.as_bytes(), &[FUNCTION, CLOSE[0], CLOSE[1]]) {
            Look::Partial => self.wait(State::Open { is_first }),
            Look::Whole(0) => {
                sink.hold_token(FUNCTION);
                self.go(State::Name, FUNCTION.len())
            }
            Look::Whole(close) if !is_first => {
                sink.forget();
                self.go(State::Text, close_length(close - 1))
            }
            _ => self.leave(0, sink),
        }
    }

    fn parameters(
        &mut self,
        text: &str,
        object: ObjectWriter,
        sink: &mut Sink<'_>,
    ) -> Option<usize> {
        let space = space(text);
        if space > 0 {
            return self.go(State::Parameters(object), space);
        }
        match look(
            text.as_bytes(),
            &[PARAMETER, FUNCTION_END, CLOSE[0], CLOSE[1]],
        ) {
            Look::Partial => self.wait(State::Parameters(object)),
            Look::Whole(0) => self.go(State::Key(object), PARAMETER.len()),
            Look::Whole(1) => {
                object.end(sink);
                self.go(State::Open { is_first: false }, FUNCTION_END.len())
            }
            // The inner closing tag is missing.
            Look::Whole(close) => {
                object.end(sink);
                sink.forget();
                self.go(State::Text, close_length(close - 2))
            }
            Look::Other => self.leave(0, sink),
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

/// The length of an outer closing tag.
fn close_length(close: usize) -> usize {
    CLOSE.get(close).map_or(0, |close| close.len())
}
