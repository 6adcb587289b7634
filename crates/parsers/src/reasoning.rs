//! Reasoning between tags. Owns where reasoning starts and ends; which tags there are is in `format`.
//!
//! An opening tag counts only at the start of the answer: text that mentions one later is text. Reasoning that the
//! prompt opened may open again. It ends at its closing tag, or where a call starts with a special token, which no
//! prose holds: some models forget the tag then.

use crate::format::Format;
use crate::is_space;
use crate::marker::{Found, Look, find, look};
use crate::sink::Sink;

/// The tags of a format. All of them must start with at most two different bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tags {
    pub(crate) open: &'static [&'static str],
    pub(crate) close: &'static [&'static str],
}

/// The part of an answer up to the end of its reasoning.
#[derive(Clone, Debug)]
pub(crate) struct TagParser {
    tags: Tags,
    /// What ends the reasoning: its closing tags, then the markers that start a call.
    ends: Vec<&'static str>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Only white space so far; whether the prompt opened the reasoning.
    Start {
        is_open: bool,
    },
    Inside,
    Over,
}

impl TagParser {
    /// A parser for the reasoning of this format, if tags mark it.
    pub(crate) fn new(format: Format, is_open: bool) -> Option<Self> {
        let tags = format.reasoning?.tags().filter(|_| !format.is_harmony())?;
        let calls = format.tools.map_or(&[][..], |tools| tools.call_tokens());
        Some(Self {
            tags,
            ends: tags.close.iter().chain(calls).copied().collect(),
            state: State::Start { is_open },
        })
    }

    /// Whether the rest of the text is the answer's.
    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Takes what can be decided from the start of `text`: its length, or `None` if more text is needed.
    pub(crate) fn take(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        match self.state {
            State::Start { is_open } => self.start(text, is_open, sink),
            State::Inside => self.inside(text, sink),
            State::Over => Some(0),
        }
    }

    fn start(&mut self, text: &str, is_open: bool, sink: &mut Sink<'_>) -> Option<usize> {
        let space = text.len() - text.trim_start_matches(is_space).len();
        if space > 0 {
            // Content, if no reasoning follows.
            if !is_open {
                sink.content(crate::split(text, space).0);
            }
            return Some(space);
        }
        match look(text.as_bytes(), self.tags.open) {
            Look::Whole(index) => {
                sink.begin_reasoning();
                self.state = State::Inside;
                self.tags.open.get(index).map(|open| open.len())
            }
            Look::Partial => None,
            Look::Other if is_open => {
                sink.begin_reasoning();
                self.state = State::Inside;
                Some(0)
            }
            Look::Other => {
                self.state = State::Over;
                Some(0)
            }
        }
    }

    fn inside(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        let (before, marker) = match find(text, &self.ends) {
            Found::Whole { at, marker } => (at, Some(marker)),
            Found::Partial { at: 0 } => return None,
            Found::Partial { at } => (at, None),
            Found::Nowhere if text.is_empty() => return None,
            Found::Nowhere => (text.len(), None),
        };
        sink.reasoning(crate::split(text, before).0);
        let Some(marker) = marker else {
            return Some(before);
        };
        sink.end_reasoning();
        self.state = State::Over;
        // A marker that starts a call is left to the tool format.
        let close = self.tags.close.get(marker).map_or(0, |close| close.len());
        Some(before + close)
    }

    /// Ends the answer here.
    pub(crate) fn finish(&self, held: &str, sink: &mut Sink<'_>) {
        match self.state {
            State::Inside => sink.reasoning(held),
            State::Start { is_open: true } => {
                sink.begin_reasoning();
                sink.reasoning(held);
            }
            _ => sink.content(held),
        }
    }
}
