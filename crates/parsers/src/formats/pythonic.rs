//! Llama 3.2 and 4 "pythonic": the answer is `[name(key="value", …), …]`, in Llama 4 between `<|python_start|>` and
//! `<|python_end|>`. LFM2 writes the same between `<|tool_call_start|>` and `<|tool_call_end|>`. Olmo 3
//! writes one call a line, without brackets, between `<function_calls>` and `</function_calls>`.
//!
//! Nothing else marks such calls, so they count at the start of the answer and behind the token, and, where the
//! request's tools are known, at the start of any line. A list that does not start with a call is content.

use crate::MAX_NAME;
use crate::formats::python::{Literal, is_key_character};
use crate::formats::{Header, header_until, space, text_until};
use crate::json::Scan;
use crate::marker::{Look, look};
use crate::sink::{Sink, is_name_character};

/// What may precede a list: the tokens of Llama 4, of LFM2 and of Olmo 3.
const OPEN: [&str; 3] = ["<|python_start|>", "<|tool_call_start|>", LINES];
const CLOSE: [&str; 3] = ["<|python_end|>", "<|tool_call_end|>", LINES_END];
/// What is around calls in lines.
const LINES: &str = "<function_calls>";
const LINES_END: &str = "</function_calls>";

pub(crate) const SPECIAL: &[&str] = &[OPEN[0], OPEN[1], OPEN[2], CLOSE[0], CLOSE[1], CLOSE[2]];

/// What announces a list of calls; one without the token is not looked for within reasoning.
pub(crate) const STARTS: &[&str] = &OPEN;

#[derive(Clone, Debug, Default)]
pub(crate) struct Pythonic {
    state: State,
    /// Whether the calls are in lines, without brackets.
    is_lined: bool,
}

#[derive(Clone, Debug)]
enum State {
    /// Where a list may start; whether the token was there.
    Start {
        is_held: bool,
    },
    /// Within a line.
    Text,
    /// Behind `[` or `,`: a name.
    Name {
        is_first: bool,
    },
    /// Behind `(` or `,`: a key. The name, until the call has begun.
    Key(Option<String>),
    Value(Literal),
    /// Behind a value.
    AfterValue,
    /// Behind `)`.
    AfterCall,
    /// Behind `]`.
    Close,
}

impl Default for State {
    fn default() -> Self {
        Self::Start { is_held: false }
    }
}

impl Pythonic {
    pub(crate) fn take(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        match &mut self.state {
            State::Text => {
                // A line matters only where names distinguish calls from other lists.
                let markers = [OPEN[0], OPEN[1], OPEN[2], "\n"];
                let count = if sink.tools().is_some() { 4 } else { 3 };
                let markers = markers.get(..count).unwrap_or_default();
                let (marker, taken) = text_until(text, markers, sink)?;
                match marker.map(|marker| OPEN.get(marker)) {
                    Some(Some(open)) => {
                        sink.keep_undecided_token(open);
                        self.is_lined = *open == LINES;
                        self.state = State::Start { is_held: true };
                    }
                    Some(None) => {
                        sink.content("\n");
                        self.state = State::Start { is_held: false };
                    }
                    None => {}
                }
                Some(taken)
            }
            State::Value(literal) => match literal.scan(text, &mut |json| sink.arguments(json)) {
                Scan::More(0) => None,
                Scan::More(read) => Some(read),
                Scan::Done(read) => self.go(State::AfterValue, read),
                Scan::Bad(read) => self.leave(read, sink),
            },
            state => {
                let space = space(text);
                if space == 0 {
                    return self.structure(text, sink);
                }
                let space_text = crate::split(text, space).0;
                if matches!(state, State::Start { is_held: false }) {
                    sink.content(space_text);
                } else if !sink.is_call_open()
                    && let Err(kept) = sink.keep_undecided(space_text)
                {
                    return self.leave(kept, sink);
                }
                Some(space)
            }
        }
    }

    /// No more text comes. Whether that may decide what was not taken.
    pub(crate) fn end_text(&mut self) -> bool {
        match &mut self.state {
            State::Value(literal) => {
                literal.end_text();
                true
            }
            _ => false,
        }
    }

    /// Reads what is around values.
    fn structure(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        let first = text.bytes().next()?;
        match (&mut self.state, first) {
            (State::Start { .. }, b'[') => {
                self.is_lined = false;
                sink.keep_undecided_token("[");
                self.go(State::Name { is_first: true }, 1)
            }
            (State::Start { .. }, first) if self.is_lined && first != b'<' => {
                self.go(State::Name { is_first: true }, 0)
            }
            (State::Start { .. }, _) => match look(text.as_bytes(), &OPEN) {
                Look::Partial => None,
                Look::Other => self.leave(0, sink),
                Look::Whole(open) => {
                    let open = OPEN.get(open).copied().unwrap_or_default();
                    self.is_lined = open == LINES;
                    match sink.keep_undecided(open) {
                        Ok(()) => self.go(State::Start { is_held: true }, open.len()),
                        Err(kept) => self.leave(kept, sink),
                    }
                }
            },
            (State::Name { is_first: false }, b']') | (State::AfterCall, b']') => {
                sink.forget();
                self.go(State::Close, 1)
            }
            (State::Name { .. }, _) => self.name(text, sink),
            (State::Key(name), b')') => {
                if let Some(name) = name.take() {
                    sink.begin(None, &name);
                    sink.arguments("{");
                }
                self.end_call(sink)
            }
            (State::Key(name), _) => {
                let name = name.take();
                self.key(name, text, sink)
            }
            (State::AfterValue, b',') => self.go(State::Key(None), 1),
            (State::AfterValue, b')') => self.end_call(sink),
            (State::AfterCall, b',') => {
                self.state = State::Name { is_first: false };
                match sink.keep_undecided(",") {
                    Ok(()) => Some(1),
                    Err(kept) => self.leave(kept, sink),
                }
            }
            (State::AfterCall, _) if self.is_lined => match look(text.as_bytes(), &[LINES_END]) {
                Look::Partial => None,
                Look::Whole(_) => {
                    sink.forget();
                    self.is_lined = false;
                    self.go(State::Text, LINES_END.len())
                }
                Look::Other => {
                    // From here on what is held is not the last call's.
                    sink.keep_undecided_token("");
                    self.go(State::Name { is_first: false }, 0)
                }
            },
            (State::Close, _) => match look(text.as_bytes(), &CLOSE) {
                Look::Partial => None,
                Look::Whole(close) => {
                    sink.forget();
                    let length = CLOSE.get(close).map_or(0, |close| close.len());
                    self.go(State::Text, length)
                }
                // Perhaps another list.
                Look::Other => {
                    sink.give_up();
                    self.go(State::Start { is_held: false }, 0)
                }
            },
            _ => self.leave(0, sink),
        }
    }

    fn name(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        let name = text.trim_start_matches(is_name_character);
        if !name.is_empty() && !name.starts_with('(') {
            return self.leave(0, sink);
        }
        match header_until(text, &["("], MAX_NAME) {
            Header::More => None,
            Header::Whole(name, _, length) if sink.may_call(name) => {
                sink.keep_undecided_token(crate::split(text, length).0);
                self.go(State::Key(Some(name.to_owned())), length)
            }
            _ => self.leave(0, sink),
        }
    }

    /// Reads a key; the first one of a call begins it.
    fn key(&mut self, name: Option<String>, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        let behind = text.trim_start_matches(is_key_character);
        let length = text.len() - behind.len();
        let behind_space = crate::skip_space(behind);
        let space = behind.len() - behind_space.len();
        let is_key = (1..=MAX_NAME).contains(&length) && space <= MAX_NAME;
        if !is_key || !(behind_space.is_empty() || behind_space.starts_with('=')) {
            return self.leave(0, sink);
        }
        if behind_space.is_empty() {
            self.state = State::Key(name);
            return None;
        }
        match name {
            Some(name) => {
                sink.begin(None, &name);
                sink.arguments("{\"");
            }
            None => sink.arguments(", \""),
        }
        sink.arguments(crate::split(text, length).0);
        sink.arguments("\": ");
        let read = text.len() - behind_space.len() + 1;
        self.go(State::Value(Literal::argument()), read)
    }

    fn end_call(&mut self, sink: &mut Sink<'_>) -> Option<usize> {
        sink.arguments("}");
        sink.end(true);
        self.go(State::AfterCall, 1)
    }

    fn go(&mut self, state: State, taken: usize) -> Option<usize> {
        self.state = state;
        Some(taken)
    }

    /// What comes is text.
    fn leave(&mut self, taken: usize, sink: &mut Sink<'_>) -> Option<usize> {
        sink.give_up();
        self.is_lined = false;
        self.go(State::Text, taken)
    }
}
