//! What a worker answers while its model loads, which may take an hour: that it lives, is not ready, and which
//! stage it is in. Owns both ports until the worker itself takes them over, so that they are bound, and a
//! mistake in them is found, before anything slow is done.
//!
//! Every gRPC call gets UNAVAILABLE with the stage, also as metadata, which gateways show in their readiness.

use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use inflight_base::accept::{Connection, accept};
use inflight_kserve::names::STAGE_HEADER;
use inflight_tls::ServerTls;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tonic::Status;
use tonic::metadata::MetadataValue;
use tonic::transport::server::Connected;

use crate::health;
use crate::options::{WorkerError, WorkerOptions};

/// Connections over TLS at once while the model loads.
const MAX_CONNECTIONS: usize = 256;

/// All ports, bound and listening.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) grpc: (TcpListener, SocketAddr),
    pub(crate) metrics: (TcpListener, SocketAddr),
    pub(crate) http: Option<(TcpListener, SocketAddr)>,
    /// Those who connect wait here until the model is loaded.
    pub(crate) kv_events: Option<(TcpListener, SocketAddr)>,
    pub(crate) kv_events_replay: Option<(TcpListener, SocketAddr)>,
}

impl Listeners {
    /// Binds the ports of `options`. Inside a tokio runtime.
    ///
    /// # Errors
    /// [`WorkerError::Bind`], and ports that do not belong together.
    pub(crate) async fn bind(options: &WorkerOptions) -> Result<Self, WorkerError> {
        if options.kv_events_replay_port.is_some() && options.kv_events_port.is_none() {
            return Err(WorkerError::ReplayWithoutEvents);
        }
        let host = options.host.as_str();
        let bind_if = async |port: Option<u16>, purpose| match port {
            Some(port) => bind(host, port, purpose).await.map(Some),
            None => Ok(None),
        };
        let replay = options.kv_events_replay_port;
        Ok(Self {
            grpc: bind(host, options.grpc_port, "gRPC").await?,
            metrics: bind(host, options.metrics_port, "metrics").await?,
            http: bind_if(options.http_port, "HTTP").await?,
            kv_events: bind_if(options.kv_events_port, "KV cache events").await?,
            kv_events_replay: bind_if(replay, "missed KV cache events").await?,
        })
    }
}

/// Binds `host:port`; the address says which port a 0 became.
async fn bind(
    host: &str,
    port: u16,
    purpose: &'static str,
) -> Result<(TcpListener, SocketAddr), WorkerError> {
    let failed = |source| WorkerError::Bind {
        address: format!("{host}:{port}"),
        purpose,
        source,
    };
    // Tokio's, for its longer queue of connections that nobody has accepted yet.
    #[expect(
        clippy::disallowed_methods,
        reason = "the place where a worker's ports are opened"
    )]
    let listener = tokio::net::TcpListener::bind((host, port)).await;
    let listener = listener.and_then(tokio::net::TcpListener::into_std);
    let listener = listener.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

#[derive(Debug)]
struct Stage {
    text: Mutex<String>,
    begun: Instant,
}

/// A worker that loads; answers from a separate thread until it is dropped or finished.
#[derive(Debug)]
pub struct Loading {
    listeners: Option<Listeners>,
    stage: Arc<Stage>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Loading {
    /// Binds the ports of `options` and begins to answer.
    ///
    /// # Errors
    /// [`WorkerError`]: a port cannot be bound, or the thread not be started.
    ///
    /// # Panics
    /// Inside a tokio runtime.
    pub fn start(options: &WorkerOptions, stage: &str) -> Result<Self, WorkerError> {
        let failed = |source| WorkerError::Thread {
            name: "loading",
            source,
        };
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().map_err(failed)?;
        let tls = options.tls()?;
        let listeners = runtime.block_on(Listeners::bind(options))?;
        let grpc = listeners.grpc.0.try_clone().map_err(failed)?;
        let metrics = listeners.metrics.0.try_clone().map_err(failed)?;
        let http = listeners.http.as_ref();
        let http = http.map(|(listener, _)| listener.try_clone());
        let http = http.transpose().map_err(failed)?;
        let stage = Arc::new(Stage {
            text: Mutex::new(stage.to_owned()),
            begun: Instant::now(),
        });
        let (stop, stopped) = oneshot::channel();
        let shared = Arc::clone(&stage);
        let thread = inflight_base::thread::start("loading", move || {
            runtime.block_on(answer([grpc, metrics], http, tls, shared, stopped));
        });
        Ok(Self {
            listeners: Some(listeners),
            stage,
            stop: Some(stop),
            thread: Some(thread.map_err(failed)?),
        })
    }

    /// What it does now, as people read it after "the model is loading: ".
    pub fn set_stage(&self, stage: &str) {
        tracing::info!(stage, "loading");
        stage.clone_into(&mut self.stage.text.lock());
    }

    /// Ends the answers; new connections wait in the ports' queues.
    pub(crate) fn finish(mut self) -> Option<Listeners> {
        self.end();
        self.listeners.take()
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It panics only if axum does, and then there is nothing left to end.
            let _ = thread.join();
        }
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.end();
    }
}

/// Answers on all `listeners` until the sender of `stopped` is gone; connections end with it.
async fn answer(
    listeners: [TcpListener; 2],
    http: Option<TcpListener>,
    tls: Option<ServerTls>,
    stage: Arc<Stage>,
    stopped: oneshot::Receiver<()>,
) {
    let router = Router::new().fallback(not_yet).with_state(stage);
    let plain = async |listener: TcpListener| {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        axum::serve(listener, router.clone()).await
    };
    let serve = async |listener: TcpListener| {
        let Some(tls) = &tls else {
            return plain(listener).await;
        };
        let address = listener.local_addr()?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let accepted = Box::pin(accept(listener, MAX_CONNECTIONS, Some(tls.clone())));
        axum::serve(Shaken { accepted, address }, router.clone()).await
    };
    let [grpc, metrics] = listeners;
    let http = async {
        match http {
            Some(listener) => serve(listener).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = async { tokio::try_join!(serve(grpc), plain(metrics), http) } => {
            if let Err(error) = ended {
                tracing::warn!(%error, "the loading worker no longer answers");
            }
        }
        _ = stopped => {}
    }
}

/// Connections over TLS, for axum.
struct Shaken<S> {
    accepted: Pin<Box<S>>,
    address: SocketAddr,
}

impl<S> axum::serve::Listener for Shaken<S>
where
    S: Stream<Item = std::io::Result<Connection>> + Send + 'static,
{
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            if let Some(Ok(connection)) = self.accepted.next().await {
                let peer = connection.connect_info().remote_addr();
                return (connection, peer.unwrap_or(self.address));
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        Ok(self.address)
    }
}

async fn not_yet(State(stage): State<Arc<Stage>>, uri: Uri, headers: HeaderMap) -> Response {
    let text = stage.text.lock().clone();
    let content = headers.get(header::CONTENT_TYPE);
    let is_grpc = content.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if is_grpc {
        let mut status = Status::unavailable(format!("the model is loading: {text}"));
        if let Ok(value) = MetadataValue::try_from(text) {
            status.metadata_mut().insert(STAGE_HEADER, value);
        }
        return status.into_http();
    }
    match uri.path() {
        "/health/live" => health::live(),
        // As Triton says it.
        "/v2/health/live" => StatusCode::OK.into_response(),
        "/v2/health/ready" => StatusCode::BAD_REQUEST.into_response(),
        path if path.starts_with("/v2") => {
            let error = format!("the model is loading: {text}");
            let status = StatusCode::SERVICE_UNAVAILABLE;
            inflight_rest::RestError::new(status, error).response()
        }
        "/health/ready" => health::not_ready("loading", &text, stage.begun.elapsed()),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "the model is loading\n").into_response(),
    }
}
