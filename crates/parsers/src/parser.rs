//! The parser of one answer. Owns the text that is held back and the order of its parts: reasoning, then content and
//! calls. The formats themselves are in `reasoning` and `formats`.

use std::sync::Arc;

use crate::deltas::Deltas;
use crate::format::Format;
use crate::formats::Machine;
use crate::reasoning::TagParser;
use crate::sink::{Answer, Sink};
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
}

impl Default for ParserOptions {
    /// Unknown tools, reasoning not open, and 128 calls: as many as OpenAI allows tools.
    fn default() -> Self {
        Self {
            tools: None,
            is_reasoning_open: false,
            max_calls: 128,
        }
    }
}

/// Splits the text of one answer as it arrives.
///
/// The deltas of all pushes and one finish, put together, are the same wherever the text was cut. Text without
/// markers passes through at the cost of one search per piece.
#[derive(Clone, Debug)]
pub struct AnswerParser {
    /// The reasoning, while the answer is in it or before it.
    reasoning: Option<TagParser>,
    machine: Machine,
    answer: Answer,
    /// Text that could not be decided yet.
    held: String,
}

impl AnswerParser {
    /// A parser for one answer.
    pub fn new(format: Format, options: ParserOptions) -> Self {
        let is_open = options.is_reasoning_open;
        Self {
            reasoning: TagParser::new(format, is_open),
            machine: Machine::new(format, is_open),
            answer: Answer::new(options.tools, options.max_calls),
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

    /// Ends the answer: what was held back is content, or part of a call that ends incomplete.
    pub fn finish(&mut self, out: &mut Deltas) {
        let held = std::mem::take(&mut self.held);
        let mut sink = Sink::new(&mut self.answer, out);
        match &mut self.reasoning {
            Some(reasoning) => reasoning.finish(&held, &mut sink),
            None => self.machine.finish(&held, &mut sink),
        }
        sink.finish();
    }

    /// Takes what can be decided from the start of `text` and returns its length.
    fn take(&mut self, text: &str, out: &mut Deltas) -> usize {
        let mut sink = Sink::new(&mut self.answer, out);
        let mut position = 0;
        loop {
            let rest = crate::split(text, position).1;
            let taken = match &mut self.reasoning {
                Some(reasoning) => {
                    let taken = reasoning.take(rest, &mut sink);
                    if reasoning.is_over() {
                        self.reasoning = None;
                    }
                    taken
                }
                None => self.machine.take(rest, &mut sink),
            };
            match taken {
                Some(count) => position += count,
                None => return position,
            }
        }
    }
}
