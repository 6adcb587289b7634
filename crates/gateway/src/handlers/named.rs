//! What handlers of things with names share: the name in a path, and whose request it is.

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, header};
use inflight_clients::client::{Client, Owner};
use serde::Serialize;

/// The id in a path; one that is not text is nobody's.
pub(super) type PathId = Result<Path<String>, PathRejection>;

pub(super) fn text(id: PathId) -> String {
    id.map(|Path(id)| id).unwrap_or_default()
}

pub(super) fn owner(request: &Request) -> Owner {
    let client = Client::of(request.extensions());
    client.map(|client| client.owner()).unwrap_or_default()
}

/// An answer in JSON.
pub(super) fn json(body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    let content_type = HeaderValue::from_static("application/json");
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    response
}

/// An answer that is `value` in JSON.
pub(super) fn object(value: &impl Serialize) -> Response {
    // Names, numbers and texts: nothing that cannot be written.
    json(serde_json::to_vec(value).unwrap_or_default().into())
}
