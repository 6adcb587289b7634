//! The metrics port: `/metrics`, `/health/live`, `/health/ready`, and nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::future::join_all;
use inflight_base::blocking;
use parking_lot::Mutex;
use tokio::net::TcpListener;

use super::gpu::Gpus;
use super::host::Host;
use super::page::Page;
use crate::engine::Engine;
use crate::health;
use crate::host_header::{HostNames, REFUSED};

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
    /// Of every model.
    engines: Arc<[Arc<Engine>]>,
    /// `None` until it has been opened.
    machine: Arc<Mutex<Option<Machine>>>,
}

/// Serves until it is aborted: a scraper comes again.
pub(crate) async fn serve(listener: TcpListener, engines: Vec<Arc<Engine>>) {
    let begun = Instant::now();
    let engines: Arc<[Arc<Engine>]> = engines.into();
    let of_health = Arc::clone(&engines);
    let ready = async move || {
        let state = |engine: &'_ Arc<Engine>| engine.health().borrow().clone();
        let states = of_health.iter();
        let states: Vec<_> = states
            .map(|engine| (engine.metrics.served_model(), state(engine)))
            .collect();
        health::ready(&states, begun.elapsed())
    };
    let machine: Arc<Mutex<Option<Machine>>> = Arc::default();
    let opened = Arc::clone(&machine);
    // Loading a driver takes a moment, and energy is counted from here.
    blocking::run(move || {
        let gpus = Gpus::open();
        let host = Host::default();
        *opened.lock() = Some(Machine { gpus, host });
    });
    let names = HostNames::new(listener.local_addr().ok());
    let router = Router::new()
        .route("/metrics", get(page))
        .route("/health/live", get(async || health::live()))
        .route("/health/ready", get(ready))
        .layer(from_fn_with_state(names, check_host))
        .with_state(Sources { engines, machine });
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!("the metrics port ended: {error}");
    }
}

async fn check_host(State(names): State<HostNames>, request: Request, next: Next) -> Response {
    if names.allow(request.uri(), request.headers()) {
        next.run(request).await
    } else {
        (StatusCode::FORBIDDEN, REFUSED).into_response()
    }
}

async fn page(State(Sources { engines, machine }): State<Sources>) -> Response {
    let looks = join_all(engines.iter().map(|engine| {
        let executor = Arc::clone(engine.executor());
        // A Python executor takes its GIL here, so not on the runtime's own threads.
        tokio::time::timeout(LOOK_TIMEOUT, blocking::run(move || executor.stats()))
    }));
    let machine = blocking::run(move || {
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
    let (looks, machine) = tokio::join!(looks, tokio::time::timeout(LOOK_TIMEOUT, machine));
    for (engine, look) in engines.iter().zip(looks) {
        if let Ok(Ok(Ok(stats))) = look {
            engine.metrics.iterations(stats);
        }
    }
    let of_models = engines.iter();
    let mut page =
        Page::joined(of_models.map(|engine| engine.metrics.page(engine.live(), engine.pending())))
            .into_text();
    if let Ok(Ok(machine)) = machine {
        page.push_str(&machine);
    }
    ([(CONTENT_TYPE, TEXT_FORMAT)], page).into_response()
}
