//! How many tokens a conversation is to a model, which answers none of it: `/v1/chat/completions/input_tokens`,
//! `/v1/responses/input_tokens` and Anthropic's `/v1/messages/count_tokens`. Owns the counting; what a body means is
//! its endpoint's.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use inflight_openai::chat::{self as chat_body, ChatRequest};
use inflight_openai::responses::in_own_words;
use inflight_openai::{ApiError, IgnoredFields, InputTokens, Parsed};

use super::asking::Asking;
use super::generate;
use super::locate::{Located, locate_for_text};
use super::{answering, chat, responses};
use crate::error::HttpError;
use crate::state::AppState;

/// `POST /v1/chat/completions/input_tokens`, as in llama.cpp's server.
pub(crate) async fn count_chat(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, HttpError> {
    let received = generate::receive(&state, request).await?;
    let work = |asking: &Asking<'_>, body: &[u8]| tokens(asking, chat_body::parse(body)?);
    let ((count, ignored), arrival) = received.work(&state, state.rendering(), work).await?;
    drop(arrival);
    Ok(answer(&state, &InputTokens::of_chat(count), &ignored)?)
}

/// `POST /v1/responses/input_tokens`.
pub(crate) async fn count_response(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, HttpError> {
    let counted = responses::chat_request(&state, request, tokens).await;
    let (count, ignored) = counted.map_err(in_own_words)?;
    Ok(answer(&state, &InputTokens::of_response(count), &ignored)?)
}

/// The tokens of a conversation as the model is given it.
///
/// # Errors
/// 404 or 503 without a model; 400 where it has no tokenizer here, or the prompt cannot be made.
pub(super) fn tokens(
    state: &Asking<'_>,
    parsed: Parsed<ChatRequest>,
) -> Result<(u64, IgnoredFields), ApiError> {
    let Parsed {
        mut request,
        mut ignored,
    } = parsed;
    let Located { served, entry, .. } = locate_for_text(state, &mut request.generation.model)?;
    let ids = chat::call_ids(state.formats.of(&entry.name, served.text.as_deref()));
    let scope = state.scope_of(&request.generation);
    let tokens = chat::tokens(&served, request, ids, &mut ignored, scope)?;
    Ok((tokens.len() as u64, ignored))
}

/// The answer, which names the fields that had no effect.
///
/// # Errors
/// See [`answering::json`].
pub(super) fn answer(
    state: &AppState,
    count: &impl serde::Serialize,
    ignored: &IgnoredFields,
) -> Result<Response, ApiError> {
    generate::count_ignored(state, ignored);
    let mut response = answering::json(count)?;
    answering::report_ignored(&mut response, ignored);
    Ok(response)
}
