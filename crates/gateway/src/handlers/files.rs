//! `/v1/files`: what clients upload for batches, and the results of those. Each sees its key's files alone.

mod upload;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderValue, Uri, header};
use inflight_base::wall_clock::unix_seconds;
use inflight_batches::{
    FileId, FileList, FileObject, Owner, Page, Purpose, Store, StoreError, Stored,
};
use inflight_openai::{ApiError, ListQuery, PageLimit};

use super::kept::{Kept, enabled, pieces};
use super::named::{PathId, object, owner};
use crate::error::HttpError;
use crate::query;
use crate::state::AppState;

/// OpenAI's.
const FILES: PageLimit = PageLimit {
    usual: 10_000,
    most: 10_000,
};

/// `POST /v1/files`.
pub(crate) async fn upload_file(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, HttpError> {
    let batches = enabled(&state)?;
    let file = upload::receive(&state, batches, request).await?;
    Ok(object(&FileObject::from(&file)))
}

/// `GET /v1/files`.
pub(crate) async fn list_files(
    State(state): State<Arc<AppState>>,
    uri: Uri,
    request: Request,
) -> Result<Response, HttpError> {
    let batches = enabled(&state)?;
    let owner = owner(&request).files();
    let purpose = query::value(&uri, "purpose").map(|text| purpose(&text));
    let purpose = purpose.transpose()?;
    let ListQuery {
        is_descending,
        limit,
        after,
    } = ListQuery::read(&query::pairs(&uri), FILES)?;
    let named = after.clone().unwrap_or_default();
    let page = Page {
        after,
        before: None,
        limit,
        is_descending,
    };
    let list = move |store: &Store| store.files(&owner, purpose, &page, unix_seconds());
    let (files, has_more) = batches.ask(&named, list).await?;
    Ok(object(&FileList::new(&files, has_more)))
}

/// `GET /v1/files/{id}`.
pub(crate) async fn retrieve_file(
    State(state): State<Arc<AppState>>,
    id: PathId,
    request: Request,
) -> Result<Response, HttpError> {
    let kept = Kept::new(&state, id, &request)?;
    let stored = kept.file(found).await?;
    Ok(object(&FileObject::from(&stored.file)))
}

/// `GET /v1/files/{id}/content`.
pub(crate) async fn file_content(
    State(state): State<Arc<AppState>>,
    id: PathId,
    request: Request,
) -> Result<Response, HttpError> {
    let kept = Kept::new(&state, id, &request)?;
    let stored = Arc::new(kept.file(found).await?);
    let length = stored.file.bytes;
    let read = move |store: &Store, position| store.read_file(&stored, position);
    let body = pieces(kept.batches, &kept.id, read).await?;
    Ok(content(body, Some(length)))
}

/// An answer that is a file.
pub(super) fn content(body: Body, length: Option<i64>) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let media_type = HeaderValue::from_static("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, media_type);
    // What a client uploaded is never a page of this server.
    let guard = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, guard);
    if let Some(length) = length {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}

/// `DELETE /v1/files/{id}`.
pub(crate) async fn delete_file(
    State(state): State<Arc<AppState>>,
    id: PathId,
    request: Request,
) -> Result<Response, HttpError> {
    let kept = Kept::new(&state, id, &request)?;
    kept.file(|store, owner, file| store.delete_file(owner, file, unix_seconds()))
        .await?;
    kept.batches.purge();
    let body = serde_json::json!({"id": kept.id, "object": "file", "deleted": true});
    Ok(object(&body))
}

fn found(store: &Store, owner: &Owner, file: FileId) -> Result<Stored, StoreError> {
    store.file(owner, file, unix_seconds())
}

fn purpose(text: &str) -> Result<Purpose, ApiError> {
    Purpose::parse(text).ok_or_else(|| {
        let known = Purpose::GIVEN.map(|known| format!("`{}`", known.as_str()));
        ApiError::invalid_request(
            "purpose",
            format!(
                "Invalid value for `purpose`: `{}`. Send one of {}.",
                inflight_openai::reader::shortened(text),
                known.join(", ")
            ),
        )
    })
}
