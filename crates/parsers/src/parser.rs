//! The parser of one answer. Owns the text that is held back and the order of its parts: reasoning, then content and
//! calls. The formats themselves are in `reasoning` and `machine`.

use std::sync::Arc;

use crate::deltas::Deltas;
use crate::format::Format;
use crate::machine::Machine;
use crate::reasoning::TagParser;
use crate::sink::{AnswerState, Attempt, Sink};
use crate::tools::Tools;

/// What a parser needs to know about the request.
#[derive(Clone, Debug)]
pub struct ParserOptions {
    /// The request's tools. A call of any other name is content. `None`: not known, so any name is a call.
    pub tools: Option<Arc<Tools>>,
    /// Whether the prompt has opened the reasoning already, so that the answer starts within it: see
    /// [`Format::opens_reasoning`].
    pub is_reasoning_open: bool,
    /// Calls that one answer may hold; what comes after them is content.
    pub max_calls: usize,
    /// Whether a call is held until it is whole. Then one that turns out malformed, or that the model does not
    /// finish, is content and was never a call. For answers in one piece: in a stream, arguments would come late.
    pub holds_calls: bool,
}

impl Default for ParserOptions {
    /// Unknown tools, reasoning not open, and 128 calls: as many as OpenAI allows tools.
    fn default() -> Self {
        Self {
            tools: None,
            is_reasoning_open: false,
            max_calls: 128,
            holds_calls: false,
        }
    }
}

/// Splits the text of one answer as it arrives.
///
/// The deltas of all pushes and one finish, put together, are the same wherever the text was cut. Text without
/// markers passes through at the cost of one search per piece.
#[derive(Clone, Debug)]
pub struct AnswerParser {
    format: Format,
    /// The reasoning, while the answer is in it or before it.
    reasoning: Option<TagParser>,
    machine: Machine,
    answer: AnswerState,
    /// Text that could not be decided yet.
    held: String,
}

impl AnswerParser {
    /// A parser for one answer.
    pub fn new(format: Format, options: ParserOptions) -> Self {
        let is_open = options.is_reasoning_open;
        Self {
            format,
            reasoning: TagParser::new(format, is_open),
            machine: Machine::new(format, is_open),
            answer: AnswerState::new(options.tools, options.max_calls, options.holds_calls),
            held: String::new(),
        }
    }

    /// Takes the next piece of text and appends the events that are now certain to `out`.
    pub fn push(&mut self, text: &str, out: &mut Deltas) {
        if self.held.is_empty() {
            let taken = self.take(text, out);
            self.held.push_str(crate::split(text, taken).1);
            return;
        }
        let mut held = std::mem::take(&mut self.held);
        held.push_str(text);
        let taken = self.take(&held, out);
        held.drain(..taken.min(held.len()));
        self.held = held;
    }

    /// Ends an answer that did not end by itself: at its last token, or at a stop string. This is
    /// [`finish`](Self::finish), but for a call that was [held](ParserOptions::holds_calls): it goes out as far as it
    /// came, incomplete.
    pub fn cut(&mut self, out: &mut Deltas) {
        self.answer.cut();
        self.finish(out);
    }

    /// Ends the answer: what was held back is content, or part of a call that ends incomplete.
    pub fn finish(&mut self, out: &mut Deltas) {
        let mut held = std::mem::take(&mut self.held);
        if self.machine.end_text() {
            let taken = self.take(&held, out);
            held.drain(..taken.min(held.len()));
        }
        let mut sink = Sink::new(&mut self.answer, out);
        match &mut self.reasoning {
            Some(reasoning) if !reasoning.is_at_call() => reasoning.finish(&held, &mut sink),
            _ => {
                self.machine.finish(&held, &mut sink);
                sink.settle(&held);
            }
        }
        sink.finish();
    }

    /// Takes what can be decided from the start of `text` and returns its length.
    fn take(&mut self, text: &str, out: &mut Deltas) -> usize {
        let mut sink = Sink::new(&mut self.answer, out);
        let mut position = 0;
        // Where the reasoning's closing tag is, once that matters.
        let mut close = None;
        loop {
            let rest = crate::split(text, position).1;
            let taken = match &mut self.reasoning {
                None => {
                    let taken = self.machine.take(rest, &mut sink);
                    sink.settle(crate::split(rest, taken.unwrap_or(0)).0);
                    taken
                }
                Some(reasoning) if reasoning.is_at_call() => {
                    let (end, is_whole) = *close.get_or_insert_with(|| {
                        let (length, is_whole) = reasoning.before_close(rest);
                        (position + length, is_whole)
                    });
                    // No call that has not begun reaches beyond the closing tag.
                    let shown = crate::split(rest, end.saturating_sub(position)).0;
                    let mut taken = self.machine.take(shown, &mut sink);
                    if taken.is_none() && is_whole {
                        sink.give_up();
                        sink.content(shown);
                        taken = Some(shown.len());
                    }
                    sink.settle(crate::split(rest, taken.unwrap_or(0)).0);
                    match sink.attempt() {
                        Attempt::Open => {}
                        Attempt::Failed => {
                            sink.end_attempt();
                            reasoning.resume();
                            self.machine = Machine::new(self.format, false);
                        }
                        Attempt::None => self.reasoning = None,
                    }
                    taken
                }
                Some(reasoning) => {
                    let taken = reasoning.take(rest, &mut sink);
                    if reasoning.is_at_call() {
                        sink.begin_attempt();
                    }
                    if reasoning.is_over() {
                        self.reasoning = None;
                    }
                    taken
                }
            };
            match taken {
                Some(count) => position += count,
                None => return position,
            }
        }
    }
}
