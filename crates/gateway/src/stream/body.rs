//! The event stream of a response, polled by the connection's own task. Owns the order of frames; the
//! frames' bytes are inflight-openai's, and their content the request's.
//!
//! Everything ready at a poll becomes one HTTP frame, with one event for each token and choice: clients count on
//! it. Only a client that is hundreds of tokens behind gets the rest of them in one event. Nothing ever waits for
//! more. Dropping the body stops the request at its worker.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use inflight_openai::ApiError;
use inflight_openai::chunk::{self, ChunkTemplate, DONE, FrameDelta, FrameExtras, FrameLogprobs};
use inflight_parsers::Delta;

use super::active_request::ActiveRequest;
use super::choice::{Choice, Piece};
pub(crate) use super::tells::Shape;
use super::tells::{PromptCounts, Tells};

/// A response body of server-sent events.
#[derive(Debug)]
pub(crate) struct EventBody {
    request: ActiveRequest,
    shape: Shape,
    /// One per choice.
    templates: Vec<ChunkTemplate>,
    /// Choices whose last frame is written.
    ended: Vec<bool>,
    include_usage: bool,
    tells: Tells,
    buffer: BytesMut,
    over: bool,
}

impl EventBody {
    /// A body for a request that has started: the role and its first output make the first frame.
    pub(crate) fn new(
        request: ActiveRequest,
        shape: Shape,
        templates: Vec<ChunkTemplate>,
        include_usage: bool,
        tells: Tells,
    ) -> Self {
        let mut body = Self {
            ended: vec![false; templates.len()],
            request,
            shape,
            templates,
            include_usage,
            tells,
            buffer: BytesMut::with_capacity(1024),
            over: false,
        };
        let counts = body.request.prompt_counts();
        for (index, template) in body.templates.iter().enumerate() {
            match body.tells.prompt(index) {
                None if !body.tells.usage => template.write_role(&mut body.buffer),
                prompt_token_ids => {
                    let extras = FrameExtras {
                        prompt_token_ids,
                        usage: body.tells.usage_after(0, counts),
                        ..FrameExtras::default()
                    };
                    template.write_role_with(&mut body.buffer, extras);
                }
            }
        }
        body.write_ready();
        body
    }

    /// Writes all text that may be shown, then what has ended.
    fn write_ready(&mut self) {
        let counts = self.request.prompt_counts();
        let has_extras = self.tells.has_extras();
        let choices = self.request.choices.iter_mut().enumerate();
        for (((index, choice), template), ended) in
            choices.zip(&self.templates).zip(&mut self.ended)
        {
            if *ended {
                continue;
            }
            let buffer = &mut self.buffer;
            if choice.has_answer() {
                write_events(choice, template, &self.tells, index, counts, buffer);
            }
            let mut from = Piece::default();
            for piece in choice.pieces.iter().copied() {
                let text = choice.ready.get(from.text_end..piece.text_end);
                let text = text.unwrap_or_default();
                let count = piece.log_probs_end - from.log_probs_end;
                from = piece;
                let log_probs = choice.log_probs.as_mut().filter(|_| count > 0);
                if log_probs.is_none() && !has_extras {
                    template.write_content(buffer, text, None);
                    continue;
                }
                let extras = match has_extras {
                    true => self.tells.extras(
                        self.shape,
                        index,
                        piece.tokens_end,
                        choice.ids.as_mut(),
                        counts,
                    ),
                    false => FrameExtras::default(),
                };
                match (log_probs, self.shape) {
                    (None, _) => template.write_content_with(buffer, text, None, extras),
                    (Some(log_probs), Shape::Chat) => {
                        let values = log_probs.take_chat(count);
                        let values = Some(FrameLogprobs::Chat(&values));
                        template.write_content_with(buffer, text, values, extras);
                    }
                    (Some(log_probs), Shape::Completion) => {
                        let values = log_probs.take_completion(count);
                        let values = Some(FrameLogprobs::Completion(&values));
                        template.write_content_with(buffer, text, values, extras);
                    }
                }
            }
            choice.clear_ready();
            if let Some(reason) = choice.finish {
                let stopped = choice.stop_reason();
                let stopped = stopped.map(|stopped| stopped.told(&self.tells.stop));
                let tokens = choice.tokens as usize;
                let ids = choice.ids.as_mut();
                let extras = self.tells.extras(self.shape, index, tokens, ids, counts);
                template.write_finish(buffer, reason, stopped.as_ref(), extras);
                *ended = true;
            }
        }
        if self.request.is_done() {
            let template = self.templates.first().filter(|_| self.include_usage);
            if let Some((template, usage)) = template.zip(self.request.usage()) {
                template.write_usage(&mut self.buffer, &usage);
            }
            self.buffer.extend_from_slice(DONE);
            self.over = true;
        }
    }

    fn write_failure(&mut self, error: &ApiError) {
        chunk::write_error(&mut self.buffer, error);
        self.buffer.extend_from_slice(DONE);
        self.over = true;
    }
}

/// Writes what a choice tells beyond text. Only chat has such choices.
fn write_events(
    choice: &mut Choice,
    template: &ChunkTemplate,
    tells: &Tells,
    index: usize,
    counts: PromptCounts,
    buffer: &mut BytesMut,
) {
    let mut told = 0;
    // Taking log probabilities and tokens changes the choice.
    let mut ids = choice.ids.take();
    let mut log_probs = choice.log_probs.take();
    for event in choice.events() {
        let delta = match event.delta {
            Delta::Content(text) => FrameDelta::Content(text),
            Delta::Reasoning(text) => FrameDelta::Reasoning(text),
            Delta::CallBegin { index, id, name } => FrameDelta::CallBegin {
                index,
                id: id.unwrap_or_default(),
                name,
            },
            Delta::CallArguments { index, json } => FrameDelta::CallArguments { index, json },
            Delta::CallEnd { .. } => continue,
        };
        let count = event.log_probs_end.saturating_sub(told);
        told = told.max(event.log_probs_end);
        let values = log_probs.as_mut().filter(|_| count > 0);
        let values = values.map(|log_probs| log_probs.take_chat(count));
        let extras = match tells.has_extras() {
            true => tells.extras(Shape::Chat, index, event.tokens_end, ids.as_mut(), counts),
            false => FrameExtras::default(),
        };
        let values = values.as_ref().map(FrameLogprobs::Chat);
        template.write_delta(buffer, delta, values, extras);
    }
    choice.ids = ids;
    choice.log_probs = log_probs;
}

impl Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // Output may bring nothing to show: half a character, or what may become a stop string.
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

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
