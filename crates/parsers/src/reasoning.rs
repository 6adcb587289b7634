//! Reasoning between tags. Owns where reasoning starts and ends; which tags there are is in `format`.
//!
//! An opening tag counts only at the start of the answer: text that mentions one later is text. Reasoning that the
//! prompt opened may open again. It ends at its closing tag, or where a call starts: some models forget the tag then.
//! A special token that starts calls is enough. Of any other mark, the tool format decides whether a call follows.

use crate::format::{Format, Tags};
use crate::is_space;
use crate::marker::{Found, Look, find, look};
use crate::sink::Sink;

/// The part of an answer up to the end of its reasoning.
#[derive(Clone, Debug)]
pub(crate) struct TagParser {
    tags: Tags,
    /// What ends the reasoning: its closing tags, then the markers that start a call, then those that may.
    ends: Vec<&'static str>,
    /// How many of them end it for certain.
    certain: usize,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Only white space so far; whether the prompt opened the reasoning.
    Start {
        is_open: bool,
    },
    Inside,
    /// At a mark that may start a call.
    AtCall,
    /// Behind the closing tag, where a tag may open the answer.
    Closed,
    Over,
}

impl TagParser {
    /// A parser for the reasoning of this format, if tags mark it.
    pub(crate) fn new(format: Format, is_open: bool) -> Option<Self> {
        let tags = format.reasoning?.tags().filter(|_| !format.is_harmony())?;
        let calls = format.tools.map_or(&[][..], |tools| tools.call_tokens());
        let marks = format.tools.map_or(&[][..], |tools| tools.call_marks());
        let ends = tags.close.iter().chain(calls).chain(marks);
        Some(Self {
            tags,
            ends: ends.copied().collect(),
            certain: tags.close.len() + calls.len(),
            state: State::Start { is_open },
        })
    }

    /// Whether the rest of the text is the answer's.
    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Whether the tool format has to decide whether a call ends the reasoning here.
    pub(crate) fn is_at_call(&self) -> bool {
        self.state == State::AtCall
    }

    /// No call came: what was read for it was reasoning, which continues.
    pub(crate) fn resume(&mut self) {
        self.state = State::Inside;
    }

    /// The length of the text before the closing tag, and whether the tag is whole.
    pub(crate) fn before_close(&self, text: &str) -> (usize, bool) {
        match find(text, self.tags.close) {
            Found::Whole { at, .. } => (at, true),
            Found::Partial { at } => (at, false),
            Found::Nowhere => (text.len(), false),
        }
    }

    /// Takes what can be decided from the start of `text`: its length, or `None` if more text is needed.
    pub(crate) fn take(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        match self.state {
            State::Start { is_open } => self.start(text, is_open, sink),
            State::Inside => self.inside(text, sink),
            State::Closed => self.closed(text, sink),
            State::AtCall | State::Over => Some(0),
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
        if marker >= self.certain {
            self.state = State::AtCall;
            return Some(before);
        }
        sink.end_reasoning();
        self.state = State::Closed;
        // A marker that starts a call is left to the tool format.
        let close = self.tags.close.get(marker).map_or(0, |close| close.len());
        Some(before + close)
    }

    fn closed(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        let space = text.len() - text.trim_start_matches(is_space).len();
        if space > 0 {
            return Some(space);
        }
        let mut is_partial = false;
        for (open, close) in self.tags.answer {
            match look(text.as_bytes(), &[open]) {
                Look::Whole(_) => {
                    sink.wrap_answer(close);
                    self.state = State::Over;
                    return Some(open.len());
                }
                Look::Partial => is_partial = true,
                Look::Other => {}
            }
        }
        if is_partial {
            return None;
        }
        self.state = State::Over;
        Some(0)
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
