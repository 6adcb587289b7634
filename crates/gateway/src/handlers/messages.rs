//! Anthropic's Messages API. A request is translated into a chat request and prepared as one; owns what its
//! errors call the fields, and the answer's head. Its bytes are inflight-streams'.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use inflight_anthropic::{TokenCount, request};
use inflight_openai::ApiError;
use inflight_streams::body::EventBody;
use inflight_streams::messages::{MessageFacts, MessageWriter, whole};

use super::asking::Asking;
use super::generate;
use super::prepared::Prepared;
use super::{answering, chat, count};
use crate::error::HttpError;
use crate::state::AppState;

/// `POST /v1/messages`.
pub(crate) async fn create_message(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, HttpError> {
    let received = generate::receive(&state, request).await?;
    let (prepared, arrival) = received.prepare(&state, state.rendering(), prepare).await?;
    let request = answering::begin(&state, &prepared, arrival).await?;
    let timing = answering::timing(&request, &prepared);
    let resumed = request.resumed();
    let answer = answer(&prepared);
    let response = match prepared.generation.stream {
        true => answering::events(EventBody::new(request, |request, out| {
            MessageWriter::begin(request, answer, out)
        })),
        false => answering::json(&whole(&request, answer))?,
    };
    Ok(answering::finish(response, &prepared, timing, resumed))
}

/// `POST /v1/messages/count_tokens`.
pub(crate) async fn count_tokens(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, HttpError> {
    let received = generate::receive(&state, request).await?;
    let work = |state: &Asking<'_>, body: &[u8]| {
        count::tokens(state, request::parse_count(body)?).map_err(named)
    };
    let ((input_tokens, ignored), arrival) = received.work(&state, state.rendering(), work).await?;
    drop(arrival);
    Ok(count::answer(
        &state,
        &TokenCount { input_tokens },
        &ignored,
    )?)
}

fn prepare(asking: &Asking<'_>, body: &[u8]) -> Result<Prepared, ApiError> {
    chat::prepare_parsed(asking, request::parse(body)?).map_err(named)
}

/// An error about a field of the chat request, in terms of this API.
fn named(error: ApiError) -> ApiError {
    match error.param.as_deref() {
        Some("continue_final_message") => ApiError::invalid_request(
            "messages",
            "The last message's text does not appear in the rendered prompt, so it cannot be continued. End \
             with a message of the role `user`.",
        ),
        _ => error,
    }
}

/// What the answer contains besides what the model generates.
fn answer(prepared: &Prepared) -> MessageFacts {
    let generation = &prepared.generation;
    MessageFacts {
        id: format!("msg_{:032x}", rand::random::<u128>()),
        model: generation.model.clone(),
        stop: generation.stop.clone(),
        max_tokens: generation.max_tokens,
        context: prepared.model.served.context(),
    }
}
