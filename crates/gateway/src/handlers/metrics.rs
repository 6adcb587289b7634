//! Serves the metrics: OpenMetrics to who asks for it, as Prometheus does, and else Prometheus' older text.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use http::header;
use inflight_openai::ApiError;

use crate::access::Trusted;
use crate::error;
use crate::metrics::{WorkerSample, classic};
use crate::state::AppState;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics at this moment. Where keys are required, those by worker are for clients that have one.
pub(crate) async fn metrics(
    State(state): State<Arc<AppState>>,
    trusted: Option<Extension<Trusted>>,
    headers: HeaderMap,
) -> Response {
    let accepts = headers.get_all(header::ACCEPT).iter();
    let is_open = accepts
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains("application/openmetrics-text"));
    let slots = state.table.workers();
    let workers = slots.iter().map(|slot| WorkerSample {
        address: Arc::clone(&slot.address),
        is_up: slot.is_ready(),
        active: slot.active(),
        unread_bytes: slot.unread_bytes(),
    });
    let workers: Vec<WorkerSample> = match trusted {
        Some(_) => workers.collect(),
        None => Vec::new(),
    };
    match state.metrics.encode(&workers) {
        Ok(text) if !is_open => ([(header::CONTENT_TYPE, CLASSIC)], classic(&text)).into_response(),
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(cause) => {
            tracing::error!(%cause, "cannot encode metrics");
            error::response(&ApiError::internal())
        }
    }
}
