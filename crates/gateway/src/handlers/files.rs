//! `/v1/files`: what clients upload for batches, and the results of those. Each sees its key's files alone.

mod upload;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, Uri, header};
use inflight_batches::{FileId, FileList, FileObject, Page, Position, Purpose, Stored};
use inflight_openai::{ApiError, ListQuery, PageLimit};

use super::named::{PathId, object, owner, text};
use crate::batches::{self, Batches};
use crate::client::Owner;
use crate::error::HttpError;
use crate::query;
use crate::state::AppState;

/// OpenAI's.
const FILES: PageLimit = PageLimit {
    usual: 10_000,
    most: 10_000,
};

/// The store.
///
/// # Errors
/// 404: the gateway has none.
pub(super) fn enabled(state: &AppState) -> Result<&Arc<Batches>, ApiError> {
    state.batches.as_ref().ok_or_else(ApiError::no_files)
}

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
    let list =
        move |store: &inflight_batches::Store| store.files(&owner, purpose, &page, batches::now());
    let (files, has_more) = batches.ask(&named, list).await?;
    Ok(object(&FileList::new(&files, has_more)))
}

/// `GET /v1/files/{id}`.
pub(crate) async fn retrieve_file(
    State(state): State<Arc<AppState>>,
    id: PathId,
    request: Request,
) -> Result<Response, HttpError> {
    let (_, stored) = find(&state, id, owner(&request)).await?;
    Ok(object(&FileObject::from(&stored.file)))
}

/// `GET /v1/files/{id}/content`.
pub(crate) async fn file_content(
    State(state): State<Arc<AppState>>,
    id: PathId,
    request: Request,
) -> Result<Response, HttpError> {
    let (batches, stored) = find(&state, id, owner(&request)).await?;
    let length = stored.file.bytes;
    let reading = (Arc::clone(batches), Arc::new(stored), Position::default());
    let body = stream::try_unfold(reading, |(batches, stored, position)| async move {
        let file = Arc::clone(&stored);
        let read = batches
            .run(move |store| store.read_file(&file, position))
            .await?;
        let next = read.map(|(piece, position)| (Bytes::from(piece), (batches, stored, position)));
        Ok::<_, inflight_batches::StoreError>(next)
    });
    Ok(content(Body::from_stream(body), Some(length)))
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
    let batches = enabled(&state)?;
    let owner = owner(&request).files();
    let id = text(id);
    let file = parse(&id)?;
    batches
        .ask(&id, move |store| {
            store.delete_file(&owner, file, batches::now())
        })
        .await?;
    let body = serde_json::json!({"id": id, "object": "file", "deleted": true});
    Ok(object(&body))
}

async fn find(
    state: &AppState,
    id: PathId,
    owner: Owner,
) -> Result<(&Arc<Batches>, Stored), ApiError> {
    let batches = enabled(state)?;
    let owner = owner.files();
    let id = text(id);
    let file = parse(&id)?;
    let stored = batches
        .ask(&id, move |store| store.file(&owner, file, batches::now()))
        .await?;
    Ok((batches, stored))
}

fn parse(id: &str) -> Result<FileId, ApiError> {
    FileId::parse(id).ok_or_else(|| ApiError::file_not_found(id))
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
