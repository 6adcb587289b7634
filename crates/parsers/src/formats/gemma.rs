//! Gemma 4: `<|tool_call>call:name{key:<|"|>text<|"|>,count:42}<tool_call|>`. Owns the tags around the arguments; how
//! those are written is in `gemma_object`.

use crate::MAX_NAME;
use crate::formats::gemma_object::{DELIMITER, Object};
use crate::formats::{Header, header_until, space, text_until};
use crate::json::Scan;
use crate::marker::{Look, look};
use crate::sink::Sink;

const OPEN: &str = "<|tool_call>";
const CLOSE: &str = "<tool_call|>";
/// Before the name.
const CALL: &str = "call:";

pub(crate) const SPECIAL: &[&str] = &[OPEN, CLOSE, DELIMITER];

/// What announces a call.
pub(crate) const STARTS: &[&str] = &[OPEN];

#[derive(Clone, Debug, Default)]
pub(crate) struct Gemma {
    state: State,
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Text,
    Name,
    Arguments(Object),
    /// Behind the arguments: only the closing tag may come.
    Close,
}

impl Gemma {
    pub(crate) fn take(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        match &mut self.state {
            State::Text => {
                let (marker, taken) = text_until(text, &[OPEN], sink)?;
                if marker.is_some() {
                    sink.keep_undecided_token(OPEN);
                    self.state = State::Name;
                }
                Some(taken)
            }
            State::Name => match header_until(text, &["{"], MAX_NAME) {
                Header::More => None,
                Header::Whole(header, _, length) => {
                    let name = header.strip_prefix(CALL).map(str::trim_start);
                    let Some(name) = name.filter(|name| sink.may_call(name)) else {
                        return self.leave(0, sink);
                    };
                    // The brace is the arguments' own.
                    sink.begin(None, name);
                    self.state = State::Arguments(Object::default());
                    Some(length - 1)
                }
                Header::Bad => self.leave(0, sink),
            },
            State::Arguments(object) => match object.scan(text, &mut |json| sink.arguments(json)) {
                Scan::More(0) => None,
                Scan::More(read) => Some(read),
                Scan::Done(read) => {
                    sink.end(true);
                    self.state = State::Close;
                    Some(read)
                }
                Scan::Bad(read) => self.leave(read, sink),
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
