//! What KServe's HTTP clients find here: whether the server is live and ready, and errors in the flat form that they
//! read. Inference over KServe is the workers', over gRPC.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use http::StatusCode;
use serde_json::json;

use crate::access::Trusted;
use crate::state::AppState;

/// Characters of a name that an error repeats.
const LONGEST_NAME: usize = 64;
const NOT_SERVED: &str = "the gateway does not serve KServe over HTTP; send KServe requests to a worker's gRPC port, \
                          or use `/v1/completions`";

/// The process answers: 200 without a body, as from Triton.
pub(crate) async fn live() -> StatusCode {
    StatusCode::OK
}

/// 200 when some worker can take a request. KServe wants a 4xx otherwise.
pub(crate) async fn ready(State(state): State<Arc<AppState>>) -> StatusCode {
    match !state.is_draining() && state.table.ready() {
        true => StatusCode::OK,
        false => StatusCode::BAD_REQUEST,
    }
}

/// Everything else of KServe's HTTP API. Where keys are required, which models there are is for clients that have one.
pub(crate) async fn not_served(
    State(state): State<Arc<AppState>>,
    trusted: Option<Extension<Trusted>>,
    request: Request,
) -> Response {
    let named = model_in(request.uri().path()).filter(|_| trusted.is_some());
    let unknown = named.filter(|name| !state.table.models().contains_key(*name));
    let (status, error) = match unknown {
        Some(name) => {
            let name: String = name.chars().take(LONGEST_NAME).collect();
            // Clients look for these words of Triton's.
            let error = format!("Request for unknown model: '{name}' is not found");
            (StatusCode::NOT_FOUND, error)
        }
        None => (StatusCode::NOT_IMPLEMENTED, NOT_SERVED.to_owned()),
    };
    (status, Json(json!({ "error": error }))).into_response()
}

/// The model that a path names: `/v2/models/NAME/…`.
fn model_in(path: &str) -> Option<&str> {
    let rest = path.strip_prefix("/v2/models/")?;
    rest.split('/').next().filter(|name| !name.is_empty())
}
