//! The gateway's life: binds, connects the workers, serves, drains. Owns the order of these; each part's
//! behavior is its own.

mod parts;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use inflight_base::net::Listener;
use inflight_batches::StoreError;
use inflight_discovery::kubernetes::NoApi;
use inflight_http_server::{ConnectionLimits, Listeners, Port};
use inflight_kserve::client::Network;
use inflight_tls::{ClientTls, HandshakeError, ServerTls, TlsError};
use inflight_traces::TraceError;
use inflight_upstream::triton::tokenizers::{TokenizerError, Tokenizers};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use self::parts::{chat_templates, connect_workers, open_batches, sources, start_tracer};
use crate::batch_runner::Runner;
use crate::grpc::{self, GrpcLimits};
use crate::metrics::Metrics;
use crate::options::GatewayOptions;
use crate::picker::{self, Endpoints, PickerLimits};
use crate::router;
use crate::state::AppState;
use crate::tls_options;

/// Why the gateway cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A directory given with `--tokenizer` cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A file for TLS on the ports cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A file for TLS to workers cannot be used.
    #[error(transparent)]
    UpstreamTls(#[from] HandshakeError),
    /// Kubernetes' API server is needed, and it is not known where that is.
    #[error(transparent)]
    Kubernetes(#[from] NoApi),
    /// The store of `--data-dir` or `--data-url`, or its `--data-objects`, cannot be used.
    #[error(transparent)]
    Batches(#[from] StoreError),
    /// Traces cannot be exported.
    #[error(transparent)]
    Traces(#[from] TraceError),
    /// A port cannot be opened.
    #[error("cannot listen on port `{port}` of `{host}`; choose another with `{flag}`")]
    Bind {
        host: String,
        port: u16,
        flag: &'static str,
        #[source]
        source: std::io::Error,
    },
}

/// With sockets from a supervisor, another gateway may serve meanwhile: this one accepts once all its workers are
/// ready, after [`SOME_READY_AFTER`] once one is, and after [`NONE_READY_AFTER`] in any case, to say so.
const SOME_READY_AFTER: Duration = Duration::from_secs(10);
const NONE_READY_AFTER: Duration = Duration::from_secs(30);
/// How long the last traces may take on their way to a collector.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Serves until `shutdown` resolves and open requests have finished or the grace period has passed.
/// `on_bound` is called with the address once the port is open.
///
/// # Errors
/// [`ServeError`]: it never served.
pub async fn serve(
    options: &GatewayOptions,
    on_bound: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let never = std::future::pending();
    serve_on(Listeners::default(), options, on_bound, never, shutdown).await
}

/// The same on sockets that were handed over. When `handed_over` resolves, another gateway has begun to accept: this
/// one stops, and ends with its last request.
pub(crate) async fn serve_on(
    mut listeners: Listeners,
    options: &GatewayOptions,
    on_bound: impl FnOnce(SocketAddr),
    handed_over: impl Future<Output = ()>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let tls = Tls::of(options)?;
    let are_shared = listeners.are_shared();
    let (listener, address) = bind(&mut listeners, &options.host, options.port, "--port").await?;
    let mut further = async |port: Option<u16>, flag| match port {
        Some(port) => bind(&mut listeners, &options.host, port, flag)
            .await
            .map(Some),
        None => Ok(None),
    };
    // In this order: that of the sockets that a supervisor hands over.
    let grpc = further(options.grpc_port, "--grpc-port").await?;
    let picker = further(options.endpoint_picker_port, "--endpoint-picker-port").await?;
    let ports = Ports {
        http: listener,
        grpc,
        picker,
        are_shared,
        network: None,
    };
    let on_bound = || on_bound(address);
    serve_ports(ports, tls, options, on_bound, handed_over, shutdown).await
}

async fn bind(
    listeners: &mut Listeners,
    host: &str,
    port: u16,
    flag: &'static str,
) -> Result<(TcpListener, SocketAddr), ServeError> {
    let bound = listeners.next(host, port).await;
    bound.map_err(|source| ServeError::Bind {
        host: host.to_owned(),
        port,
        flag,
        source,
    })
}

/// Serves HTTP on a `listener` of another network than the machine's, over which servers are reached as well, until
/// `shutdown` resolves and open requests have finished or the grace period has passed; with `grpc`, KServe over gRPC
/// on that one.
///
/// # Errors
/// [`ServeError`]: it never served.
pub async fn serve_on_network<L: Listener>(
    listener: L,
    grpc: Option<(L, SocketAddr)>,
    network: Network,
    options: &GatewayOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let tls = Tls::of(options)?;
    let ports = Ports {
        http: listener,
        grpc,
        picker: None,
        are_shared: false,
        network: Some(network),
    };
    let never = std::future::pending();
    serve_ports(ports, tls, options, || (), never, shutdown).await
}

/// Where the gateway listens, and the network that its servers are on.
struct Ports<L> {
    http: L,
    grpc: Option<(L, SocketAddr)>,
    picker: Option<(L, SocketAddr)>,
    /// Whether another gateway may be accepting from the same sockets.
    are_shared: bool,
    /// `None`: the machine's.
    network: Option<Network>,
}

/// TLS of the ports and to servers.
struct Tls {
    ports: Option<ServerTls>,
    upstream: ClientTls,
}

impl Tls {
    fn of(options: &GatewayOptions) -> Result<Self, ServeError> {
        Ok(Self {
            ports: tls_options::of_ports(options)?,
            upstream: tls_options::of_upstream(options)?,
        })
    }
}

async fn serve_ports<L: Listener>(
    ports: Ports<L>,
    tls: Tls,
    options: &GatewayOptions,
    on_bound: impl FnOnce(),
    handed_over: impl Future<Output = ()>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let Ports {
        http: listener,
        grpc,
        picker,
        are_shared,
        network,
    } = ports;
    let Tls {
        ports: tls,
        upstream: upstream_tls,
    } = tls;
    let sources = sources(options, &upstream_tls, network.as_ref())?;
    let tokenizers = Tokenizers::load(
        &options.tokenizers,
        &options.max_seq_lens,
        chat_templates(options),
    )?;
    let metrics = Metrics::new();
    let (tracer, flush) = start_tracer(options, &metrics)?.unzip();
    let batches = open_batches(options).await?;
    let state = AppState::new(options, metrics, tracer, batches.clone());
    let workers = connect_workers(&state, options, tokenizers, upstream_tls, network, sources);
    let _key_watch = state.access.watch_keys();
    tokio::pin!(shutdown);
    if are_shared {
        tokio::select! {
            () = workers_ready(&state) => {}
            () = &mut shutdown => return Ok(()),
        }
    }
    on_bound();
    let limits = ConnectionLimits {
        max_connections: options.max_connections,
        header_timeout: Duration::from_secs(options.idle_timeout_s),
        write_stall: Duration::from_secs(options.slow_client_s),
    };
    let grace = Duration::from_secs(options.shutdown_grace_s);
    let steps = Steps::default();
    let grpc = grpc.map(|(listener, address)| {
        let scheme = if tls.is_some() { "grpcs" } else { "grpc" };
        tracing::info!("listening on {scheme}://{address}");
        let limits = GrpcLimits {
            max_message_bytes: options.grpc_max_message_bytes,
            max_connections: options.max_connections,
            grace,
        };
        let port = Port {
            listener,
            tls: tls.clone(),
        };
        let (stop, shut_down) = (steps.stop.clone(), steps.shut_down.clone());
        tokio::spawn(grpc::serve(
            port,
            Arc::clone(&state),
            limits,
            stop.cancelled_owned(),
            shut_down.cancelled_owned(),
        ))
    });
    let picker = picker.map(|(listener, address)| {
        tracing::info!("picking endpoints on {address}");
        let limits = PickerLimits {
            max_connections: options.max_connections,
            max_requests: options.max_concurrent_requests,
            grace,
            fallbacks: options.endpoint_fallbacks.into(),
        };
        let port = Port {
            listener,
            tls: tls.clone(),
        };
        tokio::spawn(picker::serve(
            port,
            Arc::clone(&state),
            Endpoints::new(options.endpoint_port),
            limits,
            steps.stop.clone().cancelled_owned(),
            steps.shut_down.clone().cancelled_owned(),
        ))
    });
    let mut batches = batches.map(|batches| {
        let runner = Runner::new(Arc::clone(&state), batches);
        let (stop, abandon) = (steps.stop.clone(), steps.abandon.clone());
        let mut task = JoinSet::new();
        task.spawn(runner.run(stop.cancelled_owned(), abandon.cancelled_owned()));
        task
    });
    let handed_over = async {
        handed_over.await;
        // Health stays as it is: the successor answers for the same address.
        steps.stop.cancel();
    };
    let shutdown = async {
        shutdown.await;
        state.start_draining();
        steps.shut_down();
    };
    let interrupt = || state.ending.begin();
    let router = router::router(Arc::clone(&state));
    inflight_http_server::serve(
        Port { listener, tls },
        router,
        limits,
        handed_over,
        shutdown,
        grace,
        interrupt,
    )
    .await;
    let left = grace.saturating_sub(steps.since_shut_down());
    // After a hand-over as well: what is open now has the grace.
    steps.shut_down();
    for port in [grpc, picker].into_iter().flatten() {
        let _ = port.await;
    }
    if let Some(batches) = &mut batches {
        // Lines that are broken off are run again by another gateway.
        if timeout(left, batches.join_next()).await.is_err() {
            steps.abandon.cancel();
            let _ = timeout(FLUSH_TIMEOUT, batches.join_next()).await;
        }
    }
    drop(workers);
    if let Some(flush) = flush
        && !flush.within(FLUSH_TIMEOUT).await
    {
        tracing::warn!("the last traces were not exported in time");
    }
    Ok(())
}

/// The steps to the end of a gateway, in their order. Ports and batches wait for them.
#[derive(Debug, Default)]
struct Steps {
    /// Nothing new begins.
    stop: CancellationToken,
    /// What is open has the grace period.
    shut_down: CancellationToken,
    since: OnceLock<Instant>,
    /// Lines of batches are broken off.
    abandon: CancellationToken,
}

impl Steps {
    fn shut_down(&self) {
        self.since.get_or_init(Instant::now);
        self.stop.cancel();
        self.shut_down.cancel();
    }

    fn since_shut_down(&self) -> Duration {
        self.since.get().map_or(Duration::ZERO, Instant::elapsed)
    }
}

/// Resolves when there is something to serve with.
async fn workers_ready(state: &AppState) {
    let begun = Instant::now();
    loop {
        let workers = state.table.workers();
        let are_all = !workers.is_empty() && workers.iter().all(|slot| slot.is_ready());
        let waited = begun.elapsed();
        let is_enough = waited >= SOME_READY_AFTER && state.table.ready();
        if are_all || is_enough || waited >= NONE_READY_AFTER {
            return;
        }
        drop(workers);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
