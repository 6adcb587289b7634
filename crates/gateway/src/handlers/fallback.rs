//! Answers for what is not there, in the same envelope as everything else.

use axum::extract::Request;
use axum::response::Response;
use inflight_openai::ApiError;

use crate::error;

/// 404 for a path that no route has.
pub(crate) async fn unknown_route(request: Request) -> Response {
    error::response(&ApiError::not_found(
        request.method().as_str(),
        request.uri().path(),
    ))
}

/// 405 for a route that has no such method.
pub(crate) async fn wrong_method(request: Request) -> Response {
    error::response(&ApiError::method_not_allowed(
        request.method().as_str(),
        request.uri().path(),
    ))
}
