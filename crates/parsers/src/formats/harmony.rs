//! Harmony, the format of gpt-oss: messages `<|start|>assistant<|channel|>…<|message|>…<|end|>`. The channel
//! `analysis` is reasoning, a message to a function is a call, and everything else is content.
//!
//! The prompt ends with `<|start|>assistant`, so an answer starts within a header. Text outside messages, and an
//! answer without any header, is content. Messages of one kind are joined by a line end. A header that the end of the
//! answer cut is dropped.

use crate::arguments::{Arguments, Step};
use crate::formats::{Header, before_marker, header_until, space};
use crate::marker::{Look, look};
use crate::sink::Sink;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
const MESSAGE: &str = "<|message|>";
const END: &str = "<|end|>";
const RETURN: &str = "<|return|>";
const CALL: &str = "<|call|>";
/// What starts a recipient.
const TO: &str = "to=";

/// The longest header in bytes.
const MAX_HEADER: usize = 512;

pub(crate) const SPECIAL: &[&str] = &[START, CHANNEL, CONSTRAIN, MESSAGE, END, RETURN, CALL];

/// A prompt that ends with this has opened the reasoning.
pub(crate) const OPEN: &str = "<|channel|>analysis<|message|>";

#[derive(Clone, Debug)]
pub(crate) struct Harmony {
    has_calls: bool,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// Before the first message.
    Start,
    /// Behind a message.
    Between,
    /// At the start of a header, of which nothing is taken before it is whole.
    Header,
    Body(Kind),
    /// Behind the header of a call to this function.
    Call(String),
    Arguments(Arguments),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Content,
    /// Content, and nothing of it was read.
    NewContent,
    NewReasoning,
}

impl Harmony {
    /// A machine that takes messages to functions for calls, or for content.
    pub(crate) fn new(has_calls: bool, is_reasoning_open: bool) -> Self {
        let state = if is_reasoning_open {
            State::Body(Kind::NewReasoning)
        } else {
            State::Start
        };
        Self { has_calls, state }
    }

    pub(crate) fn take(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        match &mut self.state {
            State::Body(kind) => {
                let kind = *kind;
                self.body(kind, text, sink)
            }
            State::Header => self.header(text, sink),
            State::Arguments(arguments) => match arguments.take(text, sink) {
                Step::More => None,
                Step::Took(taken) => Some(taken),
                Step::Done(taken) => self.go(State::Between, taken),
                Step::Bad(taken) => self.leave(taken, sink),
            },
            State::Call(_) => self.call(text, sink),
            State::Start | State::Between => self.between(text, sink),
        }
    }

    /// Ends the answer; whether the held text is dealt with.
    pub(crate) fn finish(&mut self, held: &str, sink: &mut Sink<'_>) -> bool {
        match self.state {
            State::Header => {
                if !held.starts_with("<|") {
                    sink.content(held);
                }
                true
            }
            State::Body(Kind::Reasoning | Kind::NewReasoning) => {
                sink.reasoning(held);
                true
            }
            _ => false,
        }
    }

    fn between(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        let is_start = matches!(self.state, State::Start);
        let space = space(text);
        if space > 0 {
            if is_start {
                sink.content(crate::split(text, space).0);
            }
            return Some(space);
        }
        if text.is_empty() {
            return None;
        }
        let markers = [CHANNEL, START, MESSAGE, END, RETURN, CALL, TO];
        let markers = if is_start {
            &markers[..]
        } else {
            &markers[..6]
        };
        match look(text.as_bytes(), markers) {
            Look::Partial => None,
            Look::Whole(0 | 1 | 2 | 6) => self.go(State::Header, 0),
            Look::Whole(end) => {
                let length = markers.get(end).map_or(0, |end| end.len());
                self.go(State::Between, length)
            }
            Look::Other => self.go(State::Body(Kind::NewContent), 0),
        }
    }

    fn header(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        let (header, length) = match header_until(text, &[MESSAGE, END, RETURN, CALL], MAX_HEADER) {
            Header::More => return None,
            Header::Whole(header, 0, length) => (header, length),
            // No header: its first marker, if it has one, is text too.
            _ => {
                let marker = [START, CHANNEL]
                    .into_iter()
                    .find(|marker| text.starts_with(marker));
                sink.keep_undecided_token(marker.unwrap_or_default());
                return self.leave(marker.map_or(0, str::len), sink);
            }
        };
        let recipient = header.find(TO).map(|at| word(header.get(at + TO.len()..)));
        let recipient = recipient.filter(|name| !matches!(*name, "assistant" | "user" | "all"));
        let channel = header
            .rfind(CHANNEL)
            .map(|at| word(header.get(at + CHANNEL.len()..)));
        if let Some(recipient) = recipient {
            sink.keep_undecided_token(crate::split(text, length).0);
            let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
            if !self.has_calls || !sink.may_call(name) {
                return self.leave(length, sink);
            }
            return self.go(State::Call(name.to_owned()), length);
        }
        let kind = match channel {
            Some("analysis") => Kind::NewReasoning,
            _ => Kind::NewContent,
        };
        self.go(State::Body(kind), length)
    }

    fn body(&mut self, kind: Kind, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        match kind {
            Kind::NewContent => {
                sink.break_content();
                return self.go(State::Body(Kind::Content), 0);
            }
            Kind::NewReasoning => {
                sink.begin_reasoning();
                return self.go(State::Body(Kind::Reasoning), 0);
            }
            _ => {}
        }
        let (before, marker) = before_marker(text, &[END, RETURN, CALL, START, CHANNEL])?;
        let body = crate::split(text, before).0;
        if kind == Kind::Content {
            sink.content(body);
        } else {
            sink.reasoning(body);
        }
        let Some(marker) = marker else {
            return Some(before);
        };
        if kind == Kind::Reasoning {
            sink.end_reasoning();
        }
        match [END, RETURN, CALL].get(marker) {
            Some(end) => self.go(State::Between, before + end.len()),
            // The end is missing.
            None => self.go(State::Header, before),
        }
    }

    fn call(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        let space = space(text);
        if space > 0 {
            if let Err(kept) = sink.keep_undecided(crate::split(text, space).0) {
                return self.leave(kept, sink);
            }
            return Some(space);
        }
        let State::Call(name) = &self.state else {
            return None;
        };
        match look(text.as_bytes(), &["{", CALL, END, RETURN]) {
            Look::Partial => None,
            Look::Whole(0) => {
                sink.begin(None, name);
                self.go(State::Arguments(Arguments::default()), 0)
            }
            Look::Whole(_) => {
                sink.begin(None, name);
                sink.arguments("{}");
                sink.end(true);
                self.go(State::Between, 0)
            }
            Look::Other => self.leave(0, sink),
        }
    }

    fn go(&mut self, state: State, taken: usize) -> Option<usize> {
        self.state = state;
        Some(taken)
    }

    /// What was held, and what comes, is content.
    fn leave(&mut self, taken: usize, sink: &mut Sink<'_>) -> Option<usize> {
        sink.break_content();
        sink.give_up();
        self.go(State::Body(Kind::Content), taken)
    }
}

/// The first word of a text, which ends at a marker too.
fn word(text: Option<&str>) -> &str {
    let text = text.unwrap_or_default();
    let end = text.find(|character| character == '<' || crate::is_space(character));
    crate::split(text, end.unwrap_or(text.len())).0
}
