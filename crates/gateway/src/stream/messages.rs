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
            (_, Some(Stopped::Text(index))) => {
                let stop = self.stop.get(index).map(String::as_str);
                (StopReason::StopSequence, stop)
            }
            _ => (StopReason::EndTurn, None),
        }
    }
}

fn usage(request: &ActiveRequest, generated: u64) -> Usage {
    let (prompt, cached) = request.prompt_counts();
    Usage::new(prompt, cached, generated)
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
        let usage = usage(&request, 0);
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

    /// Writes all text that may be shown, then the end.
    fn write_ready(&mut self) {
        // There is one choice.
        let Some(choice) = self.request.choices.first_mut() else {
            return;
        };
        for event in choice.events() {
            if let Delta::Content(text) = event.delta {
                self.events.text(&mut self.buffer, text);
            }
        }
        choice.clear_ready();
        if self.request.is_done()
            && let Some(choice) = self.request.choices.first()
        {
            let (reason, stop) = self.answer.end(&self.request, choice);
            let usage = usage(&self.request, choice.tokens);
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
pub(crate) fn whole(request: &mut ActiveRequest, answer: Answer) -> Message {
    let mut content = Vec::new();
    // There is one choice.
    if let Some(choice) = request.choices.first() {
        let events = choice.events().filter_map(|event| match event.delta {
            Delta::Content(text) => Some(text),
            _ => None,
        });
        let text: String = events.collect();
        if !text.is_empty() {
            content.push(ContentBlock::text(text));
        }
    }
    let (mut reason, mut stop, mut generated) = (StopReason::EndTurn, None, 0);
    if let Some(choice) = request.choices.first() {
        let ended = answer.end(request, choice);
        reason = ended.0;
        stop = ended.1.map(str::to_owned);
        generated = choice.tokens;
    }
    let usage = usage(request, generated);
    Message::new(answer.id, answer.model, content, reason, stop, usage)
}
