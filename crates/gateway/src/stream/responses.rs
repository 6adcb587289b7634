//! The answer to a request of `/v1/responses`, as an event stream or in one piece. Owns when what is written and
//! that a finished response is kept; the bytes are inflight-openai's.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use inflight_openai::FinishReason;
use inflight_openai::responses::{AnswerWriter, Outcome};
use inflight_parsers::Delta;

use super::active_request::ActiveRequest;
use super::choice::Choice;
use crate::response_store::Keeping;

/// A response body of server-sent events. As [`super::body::EventBody`]: everything ready at a poll becomes one
/// HTTP frame, with one event for each token.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    request: ActiveRequest,
    writer: AnswerWriter,
    /// Taken once the response is kept; `None` if it is not to be.
    keeping: Option<Keeping>,
    buffer: BytesMut,
    over: bool,
}

impl ResponseBody {
    /// A body for a request that has started: what is known already and its first output make the first frame.
    pub(crate) fn new(
        request: ActiveRequest,
        mut writer: AnswerWriter,
        keeping: Option<Keeping>,
    ) -> Self {
        let mut buffer = BytesMut::with_capacity(4096);
        writer.begin(&mut buffer);
        let mut body = Self {
            request,
            writer,
            keeping,
            buffer,
            over: false,
        };
        body.write_ready();
        body
    }

    fn write_ready(&mut self) {
        if let Some(choice) = self.request.choices.first_mut() {
            write_choice(choice, &mut self.writer, &mut self.buffer);
        }
        if self.request.is_done() {
            let keeping = self.keeping.take();
            finish(&self.request, &mut self.writer, &mut self.buffer, keeping);
            self.over = true;
        }
    }
}

impl Body for ResponseBody {
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
                Poll::Ready(Err(error)) => {
                    let this = &mut *self;
                    this.writer.fail(&mut this.buffer, &error);
                    this.over = true;
                }
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

/// The response object of a finished answer, in JSON.
pub(crate) fn whole(
    request: &mut ActiveRequest,
    mut writer: AnswerWriter,
    keeping: Option<Keeping>,
) -> Bytes {
    let mut nothing = BytesMut::new();
    if let Some(choice) = request.choices.first_mut() {
        write_choice(choice, &mut writer, &mut nothing);
    }
    finish(request, &mut writer, &mut nothing, keeping)
}

/// Writes all that may be shown.
fn write_choice(choice: &mut Choice, writer: &mut AnswerWriter, buffer: &mut BytesMut) {
    let mut told = 0;
    // Taking log probabilities changes the choice.
    let mut log_probs = choice.log_probs.take();
    for event in choice.events() {
        let count = event.log_probs_end.saturating_sub(told);
        told = told.max(event.log_probs_end);
        let values = log_probs.as_mut().filter(|_| count > 0);
        let values = values.map(|log_probs| log_probs.take_chat(count).content);
        match event.delta {
            Delta::Content(text) => writer.content(buffer, text, values.unwrap_or_default()),
            // Only text has log probabilities here.
            Delta::Reasoning(text) => writer.reasoning(buffer, text),
            Delta::CallBegin { id, name, .. } => writer.call(buffer, id, name),
            Delta::CallArguments { json, .. } => writer.arguments(buffer, json),
            Delta::CallEnd { .. } => {}
        }
    }
    choice.log_probs = log_probs;
    choice.clear_ready();
}

fn finish(
    request: &ActiveRequest,
    writer: &mut AnswerWriter,
    buffer: &mut BytesMut,
    keeping: Option<Keeping>,
) -> Bytes {
    let reason = request.choices.first().and_then(|choice| choice.finish);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let outcome = Outcome {
        reason: reason.unwrap_or(FinishReason::Stop),
        usage: request.usage(),
        now: now.map_or(0, |now| now.as_secs()),
    };
    let json = writer.finish(buffer, outcome);
    if let Some(keeping) = keeping {
        keeping.keep(json.clone(), writer.take_items());
    }
    json
}
