//! Answers in the shapes of Anthropic's API: an event stream, or one message. Owns which events there are and why an
//! answer ended; their bytes are inflight-anthropic's.

use bytes::BytesMut;
use inflight_anthropic::{ContentBlock, Events, Message, StopReason, Usage};
use inflight_openai::{ApiError, FinishReason};
use inflight_parsers::Delta;

use super::active_request::ActiveRequest;
use super::body::EventWriter;
use super::choice::{Choice, Stopped};

/// What an answer contains besides what the model generates.
#[derive(Debug)]
pub struct MessageFacts {
    /// `msg_…`
    pub id: String,
    pub model: String,
    /// The request's `stop_sequences`.
    pub stop: Vec<String>,
    pub max_tokens: Option<u32>,
    /// Tokens that the model's context holds, where that is known.
    pub context: Option<usize>,
}

impl MessageFacts {
    /// Why the answer ended, and the stop sequence that ended it.
    fn end(&self, request: &ActiveRequest, choice: &Choice) -> (StopReason, Option<&str>) {
        match (choice.finish, choice.stop_reason()) {
            (Some(FinishReason::Length), _) => {
                let asked = self.max_tokens.map_or(u64::MAX, u64::from);
                let total = request
                    .prompt_counts()
                    .0
                    .map(|prompt| prompt + choice.tokens);
                let is_full = total
                    .zip(self.context)
                    .is_some_and(|(total, context)| total >= context as u64);
                match is_full && choice.tokens < asked {
                    true => (StopReason::ModelContextWindowExceeded, None),
                    false => (StopReason::MaxTokens, None),
                }
            }
            (Some(FinishReason::ToolCalls), _) => (StopReason::ToolUse, None),
            (_, Some(Stopped::Text(index))) => {
                let stop = self.stop.get(index).map(String::as_str);
                (StopReason::StopSequence, stop)
            }
            _ => (StopReason::EndTurn, None),
        }
    }
}

/// The usage at the end of `choice`, or before it.
fn usage(request: &ActiveRequest, choice: Option<&Choice>) -> Usage {
    let (prompt, cached) = request.prompt_counts();
    let (generated, thought) =
        choice.map_or((0, 0), |choice| (choice.tokens, choice.reasoning_tokens()));
    Usage::new(prompt, cached, generated).with_thinking(thought)
}

/// Writes the events of a message.
#[derive(Debug)]
pub struct MessageWriter {
    answer: MessageFacts,
    events: Events,
}

impl MessageWriter {
    /// Writes the message's start.
    pub fn begin(request: &ActiveRequest, answer: MessageFacts, out: &mut BytesMut) -> Self {
        let usage = usage(request, None);
        let events = Events::start(out, &answer.id, &answer.model, &usage);
        Self { answer, events }
    }
}

impl EventWriter for MessageWriter {
    fn write_ready(&mut self, request: &mut ActiveRequest, out: &mut BytesMut) -> bool {
        // There is one choice.
        let Some(choice) = request.choices.first_mut() else {
            return false;
        };
        for event in choice.events() {
            match event.delta {
                Delta::Content(text) => self.events.text(out, text),
                Delta::Reasoning(text) => self.events.thinking(out, text),
                Delta::CallBegin { id, name, .. } => {
                    self.events.tool_use(out, id.unwrap_or_default(), name);
                }
                Delta::CallArguments { json, .. } => self.events.input(out, json),
                Delta::CallEnd { .. } => {}
            }
        }
        choice.clear_ready();
        let Some(choice) = request.choices.first().filter(|_| request.is_done()) else {
            return false;
        };
        let (reason, stop) = self.answer.end(request, choice);
        let usage = usage(request, Some(choice));
        self.events.end(out, reason, stop, &usage);
        true
    }

    fn write_failure(&mut self, request: &ActiveRequest, error: &ApiError, out: &mut BytesMut) {
        self.events.fail(out, error, request.request_id());
    }
}

/// A finished answer in one piece.
pub fn whole(request: &ActiveRequest, answer: MessageFacts) -> Message {
    // There is one choice.
    let choice = request.choices.first();
    let content = choice.map(blocks).unwrap_or_default();
    let ended = choice.map(|choice| answer.end(request, choice));
    let (reason, stop) = ended.unwrap_or((StopReason::EndTurn, None));
    let stop = stop.map(str::to_owned);
    let usage = usage(request, choice);
    Message::new(answer.id, answer.model, content, reason, stop, usage)
}

/// A block as its pieces are put together.
enum Draft {
    Text(String),
    Thinking(String),
    ToolUse {
        id: String,
        name: String,
        input: String,
    },
}

/// The blocks of a finished choice.
fn blocks(choice: &Choice) -> Vec<ContentBlock> {
    let mut drafts: Vec<Draft> = Vec::new();
    for event in choice.events() {
        match (event.delta, drafts.last_mut()) {
            (Delta::Content("") | Delta::Reasoning("") | Delta::CallEnd { .. }, _) => {}
            (Delta::Content(more), Some(Draft::Text(text)))
            | (Delta::Reasoning(more), Some(Draft::Thinking(text)))
            | (Delta::CallArguments { json: more, .. }, Some(Draft::ToolUse { input: text, .. })) =>
            {
                text.push_str(more);
            }
            (Delta::Content(text), _) => drafts.push(Draft::Text(text.to_owned())),
            (Delta::Reasoning(text), _) => drafts.push(Draft::Thinking(text.to_owned())),
            (Delta::CallBegin { id, name, .. }, _) => drafts.push(Draft::ToolUse {
                id: id.unwrap_or_default().to_owned(),
                name: name.to_owned(),
                input: String::new(),
            }),
            // A call begins before its arguments.
            (Delta::CallArguments { .. }, _) => {}
        }
    }
    let blocks = drafts.into_iter().map(|draft| match draft {
        Draft::Text(text) => ContentBlock::text(text),
        Draft::Thinking(text) => ContentBlock::thinking(text),
        Draft::ToolUse { id, name, input } => ContentBlock::tool_use(id, name, &input),
    });
    blocks.collect()
}
