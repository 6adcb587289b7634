//! Qwen3-Coder: `<tool_call><function=name><parameter=key>\nvalue\n</parameter>…</function></tool_call>`.
//!
//! Seed-OSS writes the same within `<seed:tool_call>`. A value loses one line end at its start and one at its end,
//! which are the format's. The outer tag may be missing. So may the tag that closes a parameter: the value then ends
//! where another parameter of the tool starts, or where the function and its outer tag close.

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
/// What ends a value where its closing tag is missing, if what follows fits.
const MISSING_ENDS: [&str; 4] = [
    "\n<parameter=",
    "<parameter=",
    "\n</function>",
    "</function>",
];
/// All of them.
const VALUE_ENDS: [&str; 6] = [
    PARAMETER_ENDS[0],
    PARAMETER_ENDS[1],
    MISSING_ENDS[0],
    MISSING_ENDS[1],
    MISSING_ENDS[2],
    MISSING_ENDS[3],
];

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
    /// Within a value, behind one of [`MISSING_ENDS`].
    Doubt(ObjectWriter, ValueWriter, &'static str),
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
                    sink.keep_undecided_token(STARTS.get(marker).copied().unwrap_or_default());
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
                let Some((before, end)) = before_marker(text, &VALUE_ENDS) else {
                    return self.wait(State::Value(object, value));
                };
                value.push(crate::split(text, before).0, sink);
                match end.and_then(|end| VALUE_ENDS.get(end)) {
                    Some(end) if PARAMETER_ENDS.contains(end) => {
                        value.end(sink);
                        self.go(State::Parameters(object), before + end.len())
                    }
                    Some(end) => self.go(State::Doubt(object, value, end), before + end.len()),
                    None => self.go(State::Value(object, value), before),
                }
            }
            State::Doubt(object, value, end) => self.doubt(text, object, value, end, sink),
        }
    }

    /// Decides whether a value whose closing tag may be missing has ended.
    fn doubt(
        &mut self,
        text: &str,
        mut object: ObjectWriter,
        mut value: ValueWriter,
        end: &'static str,
        sink: &mut Sink<'_>,
    ) -> Option<usize> {
        if end.ends_with(FUNCTION_END) {
            let rest = crate::skip_space(text);
            let space = text.len() - rest.len();
            let look = look(rest.as_bytes(), &CLOSE);
            if space <= MAX_NAME && look == Look::Partial {
                return self.wait(State::Doubt(object, value, end));
            }
            if let (Look::Whole(_), true) = (look, space <= MAX_NAME) {
                value.end(sink);
                object.end(sink);
                return self.go(State::Open { is_first: false }, 0);
            }
        } else {
            match header_until(text, &[">"], MAX_NAME) {
                Header::More => return self.wait(State::Doubt(object, value, end)),
                Header::Whole(key, _, length)
                    if object.may_follow(key, is_new_line(end) && is_key(key), sink) =>
                {
                    value.end(sink);
                    let value = object.key(key, sink);
                    return self.go(State::ValueStart(object, value), length);
                }
                _ => {}
            }
        }
        value.push(end, sink);
        self.go(State::Value(object, value), 0)
    }

    fn open(&mut self, text: &str, is_first: bool, sink: &mut Sink<'_>) -> Option<usize> {
        let space = space(text);
        if space > 0 {
            if let Err(kept) = sink.keep_undecided(crate::split(text, space).0) {
                return self.leave(kept, sink);
            }
            return self.go(State::Open { is_first }, space);
        }
        match look(text.as_bytes(), &[FUNCTION, CLOSE[0], CLOSE[1]]) {
            Look::Partial => self.wait(State::Open { is_first }),
            Look::Whole(0) => {
                sink.keep_undecided_token(FUNCTION);
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

/// Whether a marker starts with the line end that is the format's.
fn is_new_line(marker: &str) -> bool {
    marker.starts_with('\n')
}

/// Whether a text looks like the name of a parameter.
fn is_key(text: &str) -> bool {
    !text.is_empty() && text.chars().all(crate::sink::is_name_character)
}

/// The length of an outer closing tag.
fn close_length(close: usize) -> usize {
    CLOSE.get(close).map_or(0, |close| close.len())
}
