//! DeepSeek V3, V3.1 and Kimi K2: a section of calls between special tokens, and each call a header and one JSON
//! object between special tokens. What the tokens are and how a header names the function is a table.
//!
//! DeepSeek V3: `<｜tool▁call▁begin｜>function<｜tool▁sep｜>name`, then the object in a fence ```` ```json ````.
//! V3.1: `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}`. What follows the separator shows which it is.
//! Kimi K2: `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}`; the header is the call's id.

use crate::MAX_NAME;
use crate::arguments::{Arguments, Step};
use crate::formats::{Header, header_until, space, text_until};
use crate::marker::{Look, look};
use crate::sink::Sink;

const FENCE: &str = "```";
const LANGUAGE: &str = "json";

/// The tokens of a format.
#[derive(Debug)]
pub(crate) struct Tokens {
    /// What may start a section, the last one being the start of a call without one.
    starts: &'static [&'static str],
    call: &'static str,
    separator: &'static str,
    /// What may follow the object, the last one being the end of the call.
    ends: &'static [&'static str],
    section_end: &'static [&'static str],
    /// Whether the header is an id that holds the name.
    has_ids: bool,
}

pub(crate) const DEEPSEEK: Tokens = Tokens {
    starts: &["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"],
    call: "<｜tool▁call▁begin｜>",
    separator: "<｜tool▁sep｜>",
    ends: &[FENCE, "<｜tool▁call▁end｜>"],
    section_end: &["<｜tool▁calls▁end｜>"],
    has_ids: false,
};

pub(crate) const KIMI: Tokens = Tokens {
    starts: &[
        "<|tool_calls_section_begin|>",
        "<|tool_call_section_begin|>",
        "<|tool_call_begin|>",
    ],
    call: "<|tool_call_begin|>",
    separator: "<|tool_call_argument_begin|>",
    ends: &["<|tool_call_end|>"],
    section_end: &["<|tool_calls_section_end|>", "<|tool_call_section_end|>"],
    has_ids: true,
};

pub(crate) const DEEPSEEK_SPECIAL: &[&str] = &[
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
];

pub(crate) const KIMI_SPECIAL: &[&str] = &[
    "<|tool_calls_section_begin|>",
    "<|tool_call_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_section_end|>",
];

/// The special tokens that start calls: those of [`Tokens::starts`].
pub(crate) const DEEPSEEK_STARTS: &[&str] = DEEPSEEK.starts;
pub(crate) const KIMI_STARTS: &[&str] = KIMI.starts;

#[derive(Clone, Debug)]
pub(crate) struct Sections {
    tokens: &'static Tokens,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Text,
    /// Within a section, before a call or the end.
    Section {
        has_calls: bool,
    },
    /// Behind the token that starts a call.
    Header,
    /// Behind the separator; the header.
    Separated(String),
    /// Behind the name, in a fence.
    Fenced(String),
    Arguments(Arguments),
    /// Behind the object.
    End,
}

impl Sections {
    pub(crate) fn new(tokens: &'static Tokens) -> Self {
        Self {
            tokens,
            state: State::Text,
        }
    }

    pub(crate) fn take(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        match &mut self.state {
            State::Text => {
                let (marker, taken) = text_until(text, self.tokens.starts, sink)?;
                if let Some(start) = marker.and_then(|marker| self.tokens.starts.get(marker)) {
                    sink.keep_undecided_token(start);
                    let is_call = *start == self.tokens.call;
                    self.state = if is_call {
                        State::Header
                    } else {
                        State::Section { has_calls: false }
                    };
                }
                Some(taken)
            }
            State::Arguments(arguments) => match arguments.take(text, sink) {
                Step::More => None,
                Step::Took(taken) => Some(taken),
                Step::Done(taken) => {
                    self.state = State::End;
                    Some(taken)
                }
                Step::Bad(taken) => self.leave(taken, sink),
            },
            _ => match space(text) {
                0 if text.is_empty() => None,
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
        let tokens = self.tokens;
        match &mut self.state {
            State::Header => match header_until(text, &[tokens.separator], MAX_NAME) {
                Header::More => None,
                Header::Bad => self.leave(0, sink),
                Header::Whole(header, _, length) => {
                    self.state = State::Separated(header.to_owned());
                    Self::hold(text, length, sink)
                }
            },
            State::Separated(header) if text.starts_with('{') => {
                let header = std::mem::take(header);
                let name = if tokens.has_ids {
                    name_of_id(&header)
                } else {
                    &header
                };
                let id = tokens.has_ids.then_some(header.as_str());
                self.begin(id, name, sink)
            }
            State::Separated(header) if header == "function" && !tokens.has_ids => {
                match header_until(text, &[FENCE], MAX_NAME) {
                    Header::More => None,
                    Header::Bad => self.leave(0, sink),
                    Header::Whole(name, _, length) => {
                        self.state = State::Fenced(name.to_owned());
                        Self::hold(text, length, sink)
                    }
                }
            }
            State::Fenced(name) if text.starts_with('{') => {
                let name = std::mem::take(name);
                self.begin(None, &name, sink)
            }
            State::Fenced(_) => match look(text.as_bytes(), &[LANGUAGE]) {
                Look::Partial => None,
                Look::Whole(_) => match sink.keep_undecided(LANGUAGE) {
                    Ok(()) => Some(LANGUAGE.len()),
                    Err(kept) => self.leave(kept, sink),
                },
                Look::Other => self.leave(0, sink),
            },
            State::End => match look(text.as_bytes(), tokens.ends) {
                Look::Partial => None,
                Look::Other => self.next(true, text, sink),
                Look::Whole(end) => {
                    let is_last = end + 1 == tokens.ends.len();
                    let token = tokens.ends.get(end).copied().unwrap_or_default();
                    if is_last {
                        sink.forget();
                        self.state = State::Section { has_calls: true };
                        return Some(token.len());
                    }
                    match sink.keep_undecided(token) {
                        Ok(()) => Some(token.len()),
                        Err(kept) => self.leave(kept, sink),
                    }
                }
            },
            State::Section { has_calls } => {
                let has_calls = *has_calls;
                self.next(has_calls, text, sink)
            }
            _ => self.leave(0, sink),
        }
    }

    /// Reads the start of the next call, or the end of the section.
    fn next(&mut self, has_calls: bool, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        let tokens = self.tokens;
        match (
            look(text.as_bytes(), &[tokens.call]),
            look(text.as_bytes(), tokens.section_end),
        ) {
            (Look::Whole(_), _) => {
                self.state = State::Header;
                Self::hold(text, tokens.call.len(), sink)
            }
            (_, Look::Whole(end)) => {
                let end = tokens.section_end.get(end).copied().unwrap_or_default();
                if has_calls {
                    sink.forget();
                    self.state = State::Text;
                    return Some(end.len());
                }
                // A section of nothing is text.
                sink.keep_undecided_token(end);
                self.leave(end.len(), sink)
            }
            (Look::Partial, _) | (_, Look::Partial) => None,
            _ => self.leave(0, sink),
        }
    }

    fn begin(&mut self, id: Option<&str>, name: &str, sink: &mut Sink<'_>) -> Option<usize> {
        if !sink.may_call(name) {
            return self.leave(0, sink);
        }
        sink.begin(id, name);
        self.state = State::Arguments(Arguments::default());
        Some(0)
    }

    fn hold(text: &str, length: usize, sink: &mut Sink<'_>) -> Option<usize> {
        sink.keep_undecided_token(crate::split(text, length).0);
        Some(length)
    }

    /// What comes is text.
    fn leave(&mut self, taken: usize, sink: &mut Sink<'_>) -> Option<usize> {
        sink.give_up();
        self.state = State::Text;
        Some(taken)
    }
}

/// The name in an id such as `functions.name:0`.
fn name_of_id(id: &str) -> &str {
    let name = id.strip_prefix("functions.").unwrap_or(id);
    match name.rsplit_once(':') {
        Some((name, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    }
}
