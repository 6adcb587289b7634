//! `/v1/batches`: batches of a file's lines. Each client sees its key's batches alone; the lines are run by
//! `batch_runner`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::Uri;
use inflight_base::wall_clock::unix_seconds;
use inflight_batches::{
    BatchId, BatchList, BatchObject, Dialect, FileId, NewBatch, Owner, Page, Store, StoreError,
    Window,
};
use inflight_clients::admission::Work;
use inflight_openai::batches::BatchRequest;
use inflight_openai::{ApiError, ListQuery, PageLimit};
use serde_json::value::RawValue;

use super::asking::Asking;
use super::generate;
use super::kept::{Kept, enabled};
use super::named::{PathId, object, owner};
use crate::batches;
use crate::error::HttpError;
use crate::query;
use crate::state::AppState;

/// OpenAI's.
const BATCHES: PageLimit = PageLimit {
    usual: 20,
    most: 100,
};

/// `POST /v1/batches`.
pub(crate) async fn create_batch(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, HttpError> {
    let batches = enabled(&state)?;
    let owner = owner(&request).files();
    let received = generate::receive(&state, request).await?;
    let parse = |_: &Asking<'_>, body: &[u8]| BatchRequest::parse(body);
    let (asked, _arrival) = received.work(&state, Work::Computes, parse).await?;
    let window = asked.completion_window.parse::<Window>().map_err(|hint| {
        let given = inflight_openai::reader::shortened(&asked.completion_window);
        ApiError::invalid_request(
            "completion_window",
            format!("Invalid value for `completion_window`: `{given}`; {hint}."),
        )
    })?;
    let input = FileId::parse(&asked.input_file_id);
    let input = input.ok_or_else(|| no_input(&asked.input_file_id))?;
    let metadata =
        (!asked.metadata.is_empty()).then(|| serde_json::Value::from(asked.metadata).to_string());
    let new = NewBatch {
        owner,
        dialect: Dialect::OpenAi,
        endpoint: asked.endpoint.to_owned(),
        window,
        metadata: metadata.and_then(|text| RawValue::from_string(text).ok()),
        results_age: asked.results_age,
        created: unix_seconds(),
    };
    let created = batches
        .serve(move |store| store.create_batch(&new, input))
        .await;
    let batch = created.map_err(|error| match error {
        StoreError::NoFile => no_input(&asked.input_file_id),
        error => batches::failure(&error, ""),
    })?;
    batches.wake();
    Ok(object(&BatchObject::from(&batch)))
}

fn no_input(id: &str) -> ApiError {
    let id = inflight_openai::reader::shortened(id);
    ApiError::invalid_request(
        "input_file_id",
        format!(
            "No file `{id}` with the purpose `batch` was found. Upload it with `/v1/files` first."
        ),
    )
}

/// `GET /v1/batches`.
pub(crate) async fn list_batches(
    State(state): State<Arc<AppState>>,
    uri: Uri,
    request: Request,
) -> Result<Response, HttpError> {
    let batches = enabled(&state)?;
    let owner = owner(&request).files();
    let query = ListQuery::read(&query::pairs(&uri), BATCHES)?;
    let named = query.after.clone().unwrap_or_default();
    let page = Page {
        after: query.after,
        before: None,
        limit: query.limit,
        is_descending: true,
    };
    let list = move |store: &Store| store.batches(&owner, Dialect::OpenAi, &page);
    let (list, has_more) = batches.ask(&named, list).await?;
    Ok(object(&BatchList::new(&list, has_more)))
}

/// `GET /v1/batches/{id}`.
pub(crate) async fn retrieve_batch(
    State(state): State<Arc<AppState>>,
    id: PathId,
    request: Request,
) -> Result<Response, HttpError> {
    let kept = Kept::new(&state, id, &request)?;
    let find = |store: &Store, owner: &Owner, batch| store.batch(owner, Dialect::OpenAi, batch);
    let batch = kept.batch(BatchId::parse, find).await?;
    Ok(object(&BatchObject::from(&batch)))
}

/// `POST /v1/batches/{id}/cancel`.
pub(crate) async fn cancel_batch(
    State(state): State<Arc<AppState>>,
    id: PathId,
    request: Request,
) -> Result<Response, HttpError> {
    let kept = Kept::new(&state, id, &request)?;
    let batch = kept.cancel(BatchId::parse, Dialect::OpenAi).await?;
    Ok(object(&BatchObject::from(&batch)))
}
