//! Serves the metrics in OpenMetrics text.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header;
use inflight_openai::ApiError;

use crate::error;
use crate::metrics::WorkerSample;
use crate::state::AppState;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics at this moment.
pub(crate) async fn metrics(State(state): State<Arc<AppState>>) -> Response {
    let workers = state.table.workers().iter().map(|slot| WorkerSample {
        address: Arc::clone(&slot.address),
        is_up: slot.is_ready(),
        active: slot.active(),
    });
    let workers: Vec<WorkerSample> = workers.collect();
    match state.metrics.encode(&workers) {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(cause) => {
            tracing::error!(%cause, "cannot encode metrics");
            error::response(&ApiError::internal())
        }
    }
}
