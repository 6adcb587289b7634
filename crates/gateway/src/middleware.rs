//! What every request passes through. Owns the order: the request gets its id, the API key is checked,
//! the handler answers, the answer is recorded. Knows no handler.

mod access_log;
mod auth;
mod request_id;

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;

use self::access_log::Requested;
pub(crate) use self::request_id::RequestContext;
use crate::error;
use crate::state::AppState;

/// Runs around every request.
pub(crate) async fn around(
    State(state): State<Arc<AppState>>,
    matched: Option<MatchedPath>,
    mut request: Request,
    next: Next,
) -> Response {
    let context = RequestContext::new(request.headers());
    let path = request.uri().path();
    let requested = Requested {
        route: access_log::route_label(matched.as_ref().map(MatchedPath::as_str)),
        is_api: path == "/v1" || path.starts_with("/v1/"),
        method: request.method().clone(),
    };
    let allowed = match requested.is_api {
        true => auth::authorize(state.api_key.as_ref(), request.headers()),
        false => Ok(()),
    };
    let mut response = match allowed {
        Ok(()) => {
            request.extensions_mut().insert(context.clone());
            next.run(request).await
        }
        Err(refused) => error::response(&refused),
    };
    access_log::record(&state.metrics, &context, &requested, &mut response);
    response
}
