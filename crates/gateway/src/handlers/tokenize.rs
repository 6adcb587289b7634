//! `/tokenize`, `/detokenize` and `/tokenizer_info`: what the gateway itself does with a prompt, without a
//! worker.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::Uri;
use inflight_clients::admission::Work;
use inflight_models::served::ServedModel;
use inflight_openai::tokenize::{
    DetokenizeResponse, TokenizeInput, TokenizeResponse, TokenizerInfo, parse_detokenize,
    parse_tokenize,
};
use inflight_openai::{ApiError, IgnoredFields};
use inflight_text::{ChatTemplate, TextModel};
use inflight_translate::error::outside_vocabulary;

use super::asking::Asking;
use super::generate;
use super::locate::{Located, locate_or_only};
use super::prompt::SpecialTokens;
use super::{answering, chat, prompt};
use crate::error::HttpError;
use crate::query;
use crate::state::AppState;

/// `POST /tokenize`.
pub(crate) async fn tokenize(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, HttpError> {
    let received = generate::receive(&state, request).await?;
    let (answer, arrival) = received.work(&state, state.rendering(), tokens_of).await?;
    drop(arrival);
    Ok(answered(&state, answer))
}

/// `POST /detokenize`.
pub(crate) async fn detokenize(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, HttpError> {
    let received = generate::receive(&state, request).await?;
    let (answer, arrival) = received.work(&state, Work::Computes, text_of).await?;
    drop(arrival);
    Ok(answered(&state, answer))
}

/// `GET /tokenizer_info`, with `?model=` where several are served. Always on: what a chat template writes can be
/// read with `/tokenize` and `/detokenize` as well, so leaving this out would hide nothing.
pub(crate) async fn tokenizer_info(
    State(state): State<Arc<AppState>>,
    uri: Uri,
) -> Result<Response, HttpError> {
    let mut name = query::value(&uri, "model").unwrap_or_default();
    let found = locate_or_only(&state, &mut name);
    let Located { served, .. } = found.map_err(in_the_query)?;
    let model = files(&served, "model")?;
    let templates = served.chat_template().and_then(ChatTemplate::jinja);
    let info = TokenizerInfo::new(model.tokenizer_config(), templates);
    Ok(Json(info).into_response())
}

/// The error of a missing model where the query has a name.
fn in_the_query(mut error: ApiError) -> ApiError {
    if error.status() == 400 {
        error.message.push_str(" Add `?model=NAME`.");
    }
    error
}

fn answered<T: serde::Serialize>(
    state: &AppState,
    (answer, ignored): (T, IgnoredFields),
) -> Response {
    generate::count_ignored(state, &ignored);
    let mut response = Json(answer).into_response();
    answering::report_ignored(&mut response, &ignored);
    response
}

fn tokens_of(
    state: &Asking<'_>,
    body: &[u8],
) -> Result<(TokenizeResponse, IgnoredFields), ApiError> {
    let parsed = parse_tokenize(body)?;
    let (mut request, mut ignored) = (parsed.request, parsed.ignored);
    let Located { served, entry, .. } = locate_or_only(state, &mut request.model)?;
    let (field, adds) = match request.input {
        TokenizeInput::Text(_) => ("prompt", true),
        TokenizeInput::Chat(..) => (
            "messages",
            SpecialTokens::after_template(&served) == SpecialTokens::Added,
        ),
    };
    let model = files(&served, field)?;
    let text = match request.input {
        TokenizeInput::Text(text) => text,
        TokenizeInput::Chat(messages, options) => {
            let ids = chat::call_ids(state.formats.of(&entry.name, served.text.as_deref()));
            chat::render(&served, messages, ids, &options, &mut ignored)?
        }
    };
    let adds = request.add_special_tokens.unwrap_or(adds);
    let tokens = prompt::tokenize(&served, model, field, &text, adds, state.scope())?;
    let name = |id: &u32| model.tokenizer().raw_token(*id).unwrap_or_default();
    let answer = TokenizeResponse {
        count: tokens.len(),
        max_model_len: served.context(),
        token_strs: request
            .return_token_strs
            .then(|| tokens.iter().map(name).collect()),
        tokens,
    };
    Ok((answer, ignored))
}

fn text_of(
    state: &Asking<'_>,
    body: &[u8],
) -> Result<(DetokenizeResponse, IgnoredFields), ApiError> {
    let parsed = parse_detokenize(body)?;
    let mut request = parsed.request;
    let Located { served, .. } = locate_or_only(state, &mut request.model)?;
    let tokenizer = files(&served, "tokens")?.tokenizer();
    // Rows that only pad the vocabulary have no text.
    let size = served.vocabulary().unwrap_or(0) as usize;
    let size = u32::try_from(size.max(tokenizer.vocab_size())).unwrap_or(u32::MAX);
    let strange = |id: &&u32| **id >= size && !tokenizer.contains(**id);
    if let Some(id) = request.tokens.iter().find(strange) {
        return Err(outside_vocabulary("tokens", i64::from(*id), size));
    }
    let text = tokenizer.decode(&request.tokens, false);
    let prompt = text.map_err(|error| ApiError::invalid_request("tokens", format!("{error}.")))?;
    Ok((DetokenizeResponse { prompt }, parsed.ignored))
}

fn files<'a>(served: &'a ServedModel, field: &'static str) -> Result<&'a TextModel, ApiError> {
    served.text.as_deref().ok_or_else(|| {
        ApiError::invalid_request(
            field,
            "The gateway has no tokenizer for this model. Start the gateway with `--tokenizer`.",
        )
    })
}
