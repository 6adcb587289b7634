//! Serves the metrics in OpenMetrics text.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header;
use inflight_openai::ApiError;

use crate::access::Trusted;
use crate::error;
use crate::metrics::WorkerSample;
use crate::state::AppState;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics at this moment. Where keys are required, those by worker are for clients that have one.
pub(crate) async fn metrics(
    State(state): State<Arc<AppState>>,
    trusted: Option<Extension<Trusted>>,
) -> Response {
    let workers = state.table.workers().iter().map(|slot| WorkerSample {
        address: Arc::clone(&slot.address),
        is_up: slot.is_ready(),
        active: slot.active(),
    });
    let workers: Vec<WorkerSample> = match trusted {
        Some(_) => workers.collect(),
        None => Vec::new(),
    };
    match state.metrics.encode(&workers) {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(cause) => {
            tracing::error!(%cause, "cannot encode metrics");
            error::response(&ApiError::internal())
        }
    }
}
