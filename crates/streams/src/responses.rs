//! The answer to a request of `/v1/responses`, as an event stream or in one piece. Owns when what is written and
//! that a finished response is kept; the bytes are inflight-openai's.

use bytes::{Bytes, BytesMut};
use inflight_base::wall_clock::since_epoch;
use inflight_openai::responses::{AnswerWriter, Outcome, Unanswered};
use inflight_openai::{ApiError, FinishReason};
use inflight_parsers::Delta;
use inflight_response_store::Keeper;

use super::active_request::ActiveRequest;
use super::body::EventWriter;
use super::choice::Choice;

/// Writes the events of a response.
#[derive(Debug)]
pub struct ResponseWriter {
    writer: AnswerWriter,
    /// `None`: the response is not kept.
    keeper: Option<Keeper>,
}

impl ResponseWriter {
    /// Writes what is known already.
    pub fn begin(mut writer: AnswerWriter, keeper: Option<Keeper>, out: &mut BytesMut) -> Self {
        writer.begin(out);
        Self { writer, keeper }
    }

    /// Continues behind what `writer` has begun.
    pub fn begun(writer: AnswerWriter, keeper: Keeper) -> Self {
        let keeper = Some(keeper);
        Self { writer, keeper }
    }
}

impl EventWriter for ResponseWriter {
    fn write_ready(&mut self, request: &mut ActiveRequest, out: &mut BytesMut) -> bool {
        if let Some(choice) = request.choices.first_mut() {
            write_choice(choice, &mut self.writer, out);
        }
        let is_done = request.is_done();
        if is_done {
            finish(request, &mut self.writer, out, self.keeper.as_ref());
        }
        is_done
    }

    fn write_failure(&mut self, _request: &ActiveRequest, error: &ApiError, out: &mut BytesMut) {
        self.writer.fail(out, error);
        if let Some(keeper) = &self.keeper {
            keeper.keep_unanswered(Unanswered::Failed(error));
        }
    }
}

/// The response object of a finished answer, in JSON.
pub fn whole(
    request: &mut ActiveRequest,
    mut writer: AnswerWriter,
    keeper: Option<&Keeper>,
) -> Bytes {
    let mut nothing = BytesMut::new();
    if let Some(choice) = request.choices.first_mut() {
        write_choice(choice, &mut writer, &mut nothing);
    }
    finish(request, &mut writer, &mut nothing, keeper)
}

/// Writes all that may be shown.
fn write_choice(choice: &mut Choice, writer: &mut AnswerWriter, buffer: &mut BytesMut) {
    let mut reported = 0;
    // Taking log probabilities changes the choice.
    let mut log_probs = choice.log_probs.take();
    for event in choice.events() {
        let count = event.log_probs_end.saturating_sub(reported);
        reported = reported.max(event.log_probs_end);
        let values = log_probs.as_mut().filter(|_| count > 0);
        let values = values.map(|log_probs| log_probs.take_chat(count).content);
        match event.delta {
            Delta::Content(text) => writer.content(buffer, text, values.unwrap_or_default()),
            // Only text has log probabilities here.
            Delta::Reasoning(text) => writer.reasoning(buffer, text),
            Delta::CallBegin { id, name, .. } if event.is_custom => {
                writer.custom_call(buffer, id, name);
            }
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
    keeper: Option<&Keeper>,
) -> Bytes {
    let reason = request.choices.first().and_then(|choice| choice.finish);
    let outcome = Outcome {
        reason: reason.unwrap_or(FinishReason::Stop),
        usage: request.usage(),
        now: since_epoch().as_secs(),
    };
    let json = writer.finish(buffer, outcome);
    if let Some(keeper) = keeper {
        keeper.keep(json.clone(), writer.take_items());
    }
    json
}
