//! Answers in the shapes of Anthropic's API: an event stream polled by the connection's own task, or one
//! message. Owns which events there are and why an answer ended; their bytes are inflight-anthropic's. How
//! events gather into writes is as in `body`.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use inflight_anthropic::{ContentBlock, Events, Message, StopReason, Usage};
use inflight_openai::{ApiError, FinishReason};
use inflight_parsers::Delta;

use super::active_request::ActiveRequest;
use super::choice::{Choice, Stopped};

/// What an answer tells besides what the model generates.
#[derive(Debug)]
pub(crate) struct Answer {
    /// `msg_…`
    pub id: String,
    pub model: String,
    /// The request's `stop_sequences`.
    pub stop: Vec<String>,
    pub max_tokens: Option<u32>,
    /// Tokens that the model's context holds, where that is known.
    pub context: Option<usize>,
}

impl Answer {
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

/// A response body of server-sent events.
#[derive(Debug)]
pub(crate) struct MessageBody {
    request: ActiveRequest,
    answer: Answer,
    events: Events,
    buffer: BytesMut,
    over: bool,
}

impl MessageBody {
    /// A body for a request that has started: the message's start and its first output are written together.
    pub(crate) fn new(request: ActiveRequest, answer: Answer) -> Self {
        let mut buffer = BytesMut::with_capacity(1024);
        let usage = usage(&request, None);
        let events = Events::start(&mut buffer, &answer.id, &answer.model, &usage);
        let mut body = Self {
            request,
            answer,
            events,
            buffer,
            over: false,
        };
        body.write_ready();
        body
    }

    /// Writes all that may be shown, then the end.
    fn write_ready(&mut self) {
        // There is one choice.
        let Some(choice) = self.request.choices.first_mut() else {
            return;
        };
        let out = &mut self.buffer;
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
        if self.request.is_done()
            && let Some(choice) = self.request.choices.first()
        {
            let (reason, stop) = self.answer.end(&self.request, choice);
            let usage = usage(&self.request, Some(choice));
            self.events.end(&mut self.buffer, reason, stop, &usage);
            self.over = true;
        }
    }

    fn write_failure(&mut self, error: &ApiError) {
        let id = self.request.request_id();
        self.events.fail(&mut self.buffer, error, id);
        self.over = true;
    }
}

impl Body for MessageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        while self.buffer.is_empty() && !self.over {
            match self.request.poll_output(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => self.write_ready(),
                Poll::Ready(Err(error)) => self.write_failure(&error),
            }
        }
        if self.buffer.is_empty() {
            return Poll::Ready(None);
        }
        let bytes = self.buffer.split().freeze();
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.over && self.buffer.is_empty()
    }
}

/// A finished answer in one piece.
pub(crate) fn whole(request: &ActiveRequest, answer: Answer) -> Message {
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
