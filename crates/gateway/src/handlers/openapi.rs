//! `/openapi.json` and `/docs`: what the gateway serves, for programs and for people.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, header};

use crate::openapi;

/// Nothing on the page runs, and nothing is fetched for it.
const POLICY: HeaderValue =
    HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'");

/// `GET /openapi.json`.
pub(crate) async fn document() -> Response {
    answer(openapi::json(), "application/json")
}

/// `GET /docs`.
pub(crate) async fn page() -> Response {
    let mut response = answer(openapi::page(), "text/html; charset=utf-8");
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY);
    response
}

fn answer(body: Bytes, media_type: &'static str) -> Response {
    let mut response = Response::new(Body::from(body));
    let media_type = HeaderValue::from_static(media_type);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, media_type);
    response
}
