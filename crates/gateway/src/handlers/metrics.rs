//! Serves the metrics in OpenMetrics text.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header;
use inflight_openai::ApiError;

use crate::app::App;
use crate::error;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics at this moment.
pub async fn metrics(State(app): State<Arc<App>>) -> Response {
    match app.metrics.encode(&app.table) {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(cause) => {
            tracing::error!(%cause, "cannot encode metrics");
            error::response(&ApiError::internal())
        }
    }
}
