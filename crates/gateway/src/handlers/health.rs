//! Liveness and readiness. The gateway is ready when at least one worker is.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;

use crate::access::Trusted;
use crate::state::AppState;

#[derive(Serialize, JsonSchema)]
pub(crate) struct Health {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    workers: Vec<WorkerHealth>,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct WorkerHealth {
    address: String,
    ready: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    /// Why requests are placed without what it reports of its caches.
    #[serde(skip_serializing_if = "str::is_empty")]
    cache: &'static str,
}

/// The process answers.
pub(crate) async fn live() -> Response {
    Json(Health {
        status: "live",
        reason: None,
        workers: Vec::new(),
    })
    .into_response()
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct Version {
    version: &'static str,
}

/// The gateway's version.
pub(crate) async fn version() -> Response {
    let version = env!("CARGO_PKG_VERSION");
    Json(Version { version }).into_response()
}

/// 200 when some worker can take a request, else 503 and why not. Where keys are required, the workers are
/// named to clients that have one.
pub(crate) async fn ready(
    State(state): State<Arc<AppState>>,
    trusted: Option<Extension<Trusted>>,
) -> Response {
    let slots = state.table.workers();
    let workers = slots.iter().map(|slot| WorkerHealth {
        address: slot.address.to_string(),
        ready: slot.is_ready(),
        reason: slot.reason(),
        cache: slot.cache_reason(),
    });
    let workers = match trusted {
        Some(_) => workers.collect(),
        None => Vec::new(),
    };
    let (code, status, reason) = if state.is_draining() {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "draining",
            Some("the gateway is shutting down"),
        )
    } else if state.table.ready() {
        (StatusCode::OK, "ready", None)
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "not_ready",
            Some("no worker is ready"),
        )
    };
    (
        code,
        Json(Health {
            status,
            reason,
            workers,
        }),
    )
        .into_response()
}
