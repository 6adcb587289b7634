//! `/v1/messages/batches`, Anthropic's: batches whose requests come with them, and whose results are read from them.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderValue, Uri, header};
use inflight_anthropic::PageQuery;
use inflight_anthropic::batches as requests;
use inflight_base::wall_clock::unix_seconds;
use inflight_batches::{
    Batch, BatchId, Dialect, InputError, MessageBatch, MessageBatchList, NewBatch, Owner, Page,
    Store, StoreError, Window, check_lines,
};
use inflight_clients::admission::Work;
use inflight_openai::ApiError;
use jiff::Timestamp;

use super::asking::Asking;
use super::files::content;
use super::generate;
use super::kept::{Kept, enabled, pieces};
use super::named::{PathId, object, owner};
use crate::error::HttpError;
use crate::query;
use crate::state::AppState;

/// `POST /v1/messages/batches`.
pub(crate) async fn create_message_batch(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, HttpError> {
    let batches = enabled(&state)?;
    let owner = owner(&request).files();
    let received = generate::receive(&state, request).await?;
    let parse = |state: &Asking<'_>, body: &[u8]| {
        let lines = requests::lines(body)?;
        let (endpoint, body_name) = (requests::ENDPOINT, requests::BODY);
        let wrong = check_lines(&lines, endpoint, body_name, state.max_body_bytes);
        match wrong.data.first() {
            None => Ok(lines),
            Some(error) => Err(wrong_request(error)),
        }
    };
    let (lines, _arrival) = received.work(&state, Work::Computes, parse).await?;
    let new = NewBatch {
        owner,
        dialect: Dialect::Anthropic,
        endpoint: requests::ENDPOINT.to_owned(),
        window: Window::DAY,
        metadata: None,
        results_age: None,
        created: unix_seconds(),
    };
    let batch = batches
        .ask("", move |store| store.create_batch_of(&new, &lines))
        .await?;
    batches.wake();
    Ok(shown(&batch))
}

/// 400: one of the requests cannot be run.
fn wrong_request(error: &InputError) -> ApiError {
    let place = error.line.map_or(0, |line| line - 1);
    let param = match &error.param {
        Some(param) => format!("requests[{place}].{param}"),
        None => format!("requests[{place}]"),
    };
    ApiError::invalid_request(param, error.message.clone())
}

/// `GET /v1/messages/batches`.
pub(crate) async fn list_message_batches(
    State(state): State<Arc<AppState>>,
    uri: Uri,
    request: Request,
) -> Result<Response, HttpError> {
    let batches = enabled(&state)?;
    let owner = owner(&request).files();
    let query = PageQuery::read(&query::pairs(&uri))?;
    let page = Page {
        after: query.after().map(str::to_owned),
        before: query.before().map(str::to_owned),
        limit: query.limit(),
        is_descending: true,
    };
    let named = page
        .after
        .clone()
        .or(page.before.clone())
        .unwrap_or_default();
    let list = move |store: &Store| store.batches(&owner, Dialect::Anthropic, &page);
    let (list, has_more) = batches.ask(&named, list).await?;
    Ok(object(&MessageBatchList::new(&list, has_more, time)))
}

/// `GET /v1/messages/batches/{id}`.
pub(crate) async fn retrieve_message_batch(
    State(state): State<Arc<AppState>>,
    id: PathId,
    request: Request,
) -> Result<Response, HttpError> {
    let kept = Kept::new(&state, id, &request)?;
    Ok(shown(&kept.batch(NAME, found).await?))
}

/// `POST /v1/messages/batches/{id}/cancel`.
pub(crate) async fn cancel_message_batch(
    State(state): State<Arc<AppState>>,
    id: PathId,
    request: Request,
) -> Result<Response, HttpError> {
    let kept = Kept::new(&state, id, &request)?;
    Ok(shown(&kept.cancel(NAME, Dialect::Anthropic).await?))
}

/// `DELETE /v1/messages/batches/{id}`.
pub(crate) async fn delete_message_batch(
    State(state): State<Arc<AppState>>,
    id: PathId,
    request: Request,
) -> Result<Response, HttpError> {
    let kept = Kept::new(&state, id, &request)?;
    let delete =
        |store: &Store, owner: &Owner, batch| store.delete_batch(owner, Dialect::Anthropic, batch);
    kept.batch(NAME, delete).await?;
    kept.batches.purge();
    let body = serde_json::json!({"id": kept.id, "type": "message_batch_deleted"});
    Ok(object(&body))
}

/// `GET /v1/messages/batches/{id}/results`.
pub(crate) async fn message_batch_results(
    State(state): State<Arc<AppState>>,
    id: PathId,
    request: Request,
) -> Result<Response, HttpError> {
    let kept = Kept::new(&state, id, &request)?;
    let batch = kept.batch(NAME, found).await?;
    if !batch.status.is_final() {
        let message =
            "The batch has not ended: its results are there once `processing_status` is `ended`.";
        return Err(HttpError::from(ApiError::invalid_body(message)));
    }
    let (owner, id) = (kept.owner, batch.id);
    let read =
        move |store: &Store, position| store.read_results(&owner, Dialect::Anthropic, id, position);
    let body = pieces(kept.batches, &kept.id, read).await?;
    let mut response = content(body, None);
    let media_type = HeaderValue::from_static("application/x-jsonl");
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, media_type);
    Ok(response)
}

/// How its batches are named.
const NAME: fn(&str) -> Option<BatchId> = BatchId::parse_anthropics;

fn found(store: &Store, owner: &Owner, batch: BatchId) -> Result<Batch, StoreError> {
    store.batch(owner, Dialect::Anthropic, batch)
}

fn shown(batch: &Batch) -> Response {
    object(&MessageBatch::new(batch, time))
}

/// Seconds since the epoch as RFC 3339 has them.
fn time(seconds: i64) -> String {
    Timestamp::from_second(seconds)
        .unwrap_or(Timestamp::MAX)
        .to_string()
}
