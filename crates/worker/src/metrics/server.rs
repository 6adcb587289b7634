//! The metrics port: `/metrics`, `/health/live`, `/health/ready`, and nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;

use super::gpu::Gpus;
use super::host::Host;
use super::page::Page;
use crate::engine::Engine;
use crate::health;

/// What Prometheus' text format is called.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// A scrape must not hang behind an executor that is busy in its own lock, nor behind a driver; the page then
/// shows the last iteration known, or nothing of the machine.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// The machine that the worker runs on.
#[derive(Debug)]
struct Machine {
    gpus: Gpus,
    host: Host,
}

#[derive(Clone)]
struct Sources {
    engine: Arc<Engine>,
    /// `None` until it has been opened.
    machine: Arc<Mutex<Option<Machine>>>,
}

/// Serves until `stop` is notified. Connections that are open then are dropped: a scraper comes again.
pub(crate) async fn serve(listener: TcpListener, engine: Arc<Engine>, stop: Arc<Notify>) {
    let begun = Instant::now();
    let state = engine.health();
    let ready = async move || health::ready(&state.borrow(), begun.elapsed());
    let machine: Arc<Mutex<Option<Machine>>> = Arc::default();
    let opened = Arc::clone(&machine);
    // Loading a driver takes a moment, and energy is counted from here.
    spawn_blocking(move || {
        let gpus = Gpus::open();
        let host = Host::default();
        *opened.lock() = Some(Machine { gpus, host });
    });
    let router = Router::new()
        .route("/metrics", get(page))
        .route("/health/live", get(async || health::live()))
        .route("/health/ready", get(ready))
        .with_state(Sources { engine, machine });
    tokio::select! {
        served = async { axum::serve(listener, router).await } => {
            if let Err(error) = served {
                tracing::error!("the metrics port ended: {error}");
            }
        }
        () = stop.notified() => {}
    }
}

async fn page(State(Sources { engine, machine }): State<Sources>) -> Response {
    let executor = Arc::clone(engine.executor());
    // A Python executor takes its GIL here, so not on the runtime's own threads.
    let stats = spawn_blocking(move || executor.stats());
    let machine = spawn_blocking(move || {
        let mut page = Page::default();
        // Where another look still waits for the driver, this one goes without.
        if let Some(mut machine) = machine.try_lock()
            && let Some(machine) = &mut *machine
        {
            machine.gpus.write(&mut page);
            machine.host.write(&mut page);
        }
        page.into_text()
    });
    let (stats, machine) = tokio::join!(
        tokio::time::timeout(LOOK_TIMEOUT, stats),
        tokio::time::timeout(LOOK_TIMEOUT, machine),
    );
    if let Ok(Ok(Ok(stats))) = stats {
        engine.metrics.iterations(stats);
    }
    let mut page = engine
        .metrics
        .page(engine.live(), engine.pending())
        .into_text();
    if let Ok(Ok(machine)) = machine {
        page.push_str(&machine);
    }
    ([(CONTENT_TYPE, TEXT_FORMAT)], page).into_response()
}
