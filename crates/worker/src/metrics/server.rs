//! The metrics port: `/metrics`, `/health/live`, `/health/ready`, and nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::engine::Engine;
use crate::health;

/// What Prometheus' text format is called.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// A scrape must not hang behind an executor that is busy in its own lock; the page then shows the
/// last iteration known.
const STATS_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves until `stop` is notified. Connections that are open then are dropped: a scraper comes again.
pub(crate) async fn serve(listener: TcpListener, engine: Arc<Engine>, stop: Arc<Notify>) {
    let begun = Instant::now();
    let state = engine.health();
    let ready = async move || health::ready(&state.borrow(), begun.elapsed());
    let router = Router::new()
        .route("/metrics", get(page))
        .route("/health/live", get(async || health::live()))
        .route("/health/ready", get(ready))
        .with_state(engine);
    tokio::select! {
        served = async { axum::serve(listener, router).await } => {
            if let Err(error) = served {
                tracing::error!("the metrics port ended: {error}");
            }
        }
        () = stop.notified() => {}
    }
}

async fn page(State(engine): State<Arc<Engine>>) -> Response {
    let executor = Arc::clone(engine.executor());
    // A Python executor takes its GIL here, so not on the runtime's own threads.
    let stats = tokio::task::spawn_blocking(move || executor.stats());
    if let Ok(Ok(Ok(stats))) = tokio::time::timeout(STATS_TIMEOUT, stats).await {
        engine.metrics.iterations(stats);
    }
    let page = engine.metrics.page(engine.live(), engine.pending());
    ([(CONTENT_TYPE, TEXT_FORMAT)], page).into_response()
}
