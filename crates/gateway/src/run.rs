//! The gateway's life: binds, connects the workers, serves, drains. Owns the order of these; each part's
//! behavior is its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use inflight_base::net::Listener;
use inflight_batches::{Bounds, Share, StoreError};
use inflight_kserve::client::Network;
use inflight_tls::{ClientTls, HandshakeError, ServerTls, TlsError};
use inflight_traces::{Flush, TraceError, TraceOptions, Tracer};
use inflight_upstream::chat_templates::ChatTemplates;
use inflight_upstream::connect::Connector;
use inflight_upstream::context::{Context, Limits};
use inflight_upstream::discovery::Discovery;
use inflight_upstream::model::for_model::ForModel;
use inflight_upstream::triton::tokenizers::{TokenizerError, Tokenizers};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::batch_runner::Runner;
use crate::batches::{Batches, Place};
use crate::grpc::{self, GrpcLimits};
use crate::metrics::Metrics;
use crate::options::GatewayOptions;
use crate::router;
use crate::server;
use crate::server::Port;
use crate::server::listeners::Listeners;
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
    /// The store of `--data-dir` or `--data-url` cannot be used.
    #[error(transparent)]
    Batches(#[from] StoreError),
    /// Traces cannot be exported.
    #[error(transparent)]
    Traces(#[from] TraceError),
    /// The port cannot be opened.
    #[error("cannot listen on port `{port}` of `{host}`; choose another with `--port`")]
    Bind {
        host: String,
        port: u16,
        #[source]
        source: std::io::Error,
    },
    /// The port for gRPC cannot be opened.
    #[error("cannot listen on port `{port}` of `{host}`; choose another with `--grpc-port`")]
    BindGrpc {
        host: String,
        port: u16,
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
    let bound = listeners.next(&options.host, options.port).await;
    let (listener, address) = bound.map_err(|source| ServeError::Bind {
        host: options.host.clone(),
        port: options.port,
        source,
    })?;
    let grpc = match options.grpc_port {
        Some(port) => Some(
            listeners
                .next(&options.host, port)
                .await
                .map_err(|source| ServeError::BindGrpc {
                    host: options.host.clone(),
                    port,
                    source,
                })?,
        ),
        None => None,
    };
    let ports = Ports {
        http: listener,
        grpc,
        are_shared,
        network: None,
    };
    let on_bound = || on_bound(address);
    serve_ports(ports, tls, options, on_bound, handed_over, shutdown).await
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
        are_shared,
        network,
    } = ports;
    let Tls {
        ports: tls,
        upstream: upstream_tls,
    } = tls;
    let tokenizers = Tokenizers::load(
        &options.tokenizers,
        &options.max_seq_lens,
        chat_templates(options),
    )?;
    let metrics = Metrics::new();
    let (tracer, flush) = start_tracer(options, &metrics)?.unzip();
    let batches = open_batches(options).await?;
    let state = AppState::new(options, metrics, tracer, batches.clone());
    let workers = connect_workers(&state, options, tokenizers, upstream_tls, network);
    let _key_watch = state.access.watch_keys();
    tokio::pin!(shutdown);
    if are_shared {
        tokio::select! {
            () = workers_ready(&state) => {}
            () = &mut shutdown => return Ok(()),
        }
    }
    on_bound();
    let limits = server::ConnectionLimits {
        max_connections: options.max_connections,
        header_timeout: Duration::from_secs(options.idle_timeout_s),
        write_stall: Duration::from_secs(options.slow_client_s),
    };
    let grace = Duration::from_secs(options.shutdown_grace_s);
    let (stop_grpc, stopped) = tokio::sync::oneshot::channel::<()>();
    let (hurry_grpc, hurried) = tokio::sync::oneshot::channel::<()>();
    let grpc = grpc.map(|(listener, address)| {
        let scheme = if tls.is_some() { "grpcs" } else { "grpc" };
        tracing::info!("listening on {scheme}://{address}");
        let limits = GrpcLimits {
            max_message_bytes: options.grpc_max_message_bytes,
            max_connections: options.max_connections,
            grace,
        };
        let stopped = async {
            // A dropped sender stops the server as well.
            let _ = stopped.await;
        };
        let hurried = async {
            let _ = hurried.await;
        };
        let port = Port {
            listener,
            tls: tls.clone(),
        };
        tokio::spawn(grpc::serve(
            port,
            Arc::clone(&state),
            limits,
            stopped,
            hurried,
        ))
    });
    let stop_grpc = parking_lot::Mutex::new(Some(stop_grpc));
    let (stop_batches, stopping) = tokio::sync::watch::channel(Stop::No);
    let mut batches = batches.map(|batches| run_batches(&state, batches, &stopping));
    let ending_since = parking_lot::Mutex::new(None);
    let handed_over = async {
        handed_over.await;
        stop_batches.send_replace(Stop::Calmly);
        // Health stays as it is: the successor answers for the same address.
        drop(stop_grpc.lock().take());
    };
    let shutdown = async {
        shutdown.await;
        state.start_draining();
        *ending_since.lock() = Some(Instant::now());
        stop_batches.send_replace(Stop::Calmly);
        drop(stop_grpc.lock().take());
        let _ = hurry_grpc.send(());
    };
    let interrupt = || {
        state.start_ending();
        state.forward.interrupt();
        for slot in state.table.workers().iter() {
            for connection in slot.connections().iter() {
                connection.fail_all("the gateway is shutting down");
            }
        }
    };
    let router = router::router(Arc::clone(&state));
    server::serve(
        Port { listener, tls },
        router,
        limits,
        handed_over,
        shutdown,
        grace,
        interrupt,
    )
    .await;
    if let Some(grpc) = grpc {
        // It has stopped accepting; what is open there has the same grace.
        let _ = grpc.await;
    }
    if let Some(batches) = &mut batches {
        // Lines that run have what is left of the grace; those that are broken off are run again by another gateway.
        stop_batches.send_replace(Stop::Calmly);
        let used = ending_since
            .lock()
            .map_or(Duration::ZERO, |since| since.elapsed());
        let left = grace.saturating_sub(used);
        if tokio::time::timeout(left, batches.join_next())
            .await
            .is_err()
        {
            stop_batches.send_replace(Stop::Now);
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, batches.join_next()).await;
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

/// How the runner of batches is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stop {
    No,
    /// With the lines that run.
    Calmly,
    Now,
}

/// The store of files and batches, if there is to be one.
async fn open_batches(options: &GatewayOptions) -> Result<Option<Arc<Batches>>, StoreError> {
    let place = match (&options.data_dir, &options.data_url) {
        (Some(directory), _) => Place::Directory(directory.clone()),
        (None, Some(url)) => Place::Database(url.clone()),
        (None, None) => return Ok(None),
    };
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let has_keys = options.api_key.is_some() || options.api_key_file.is_some();
    let bytes = signed(options.stored_files_bytes);
    let bounds = Bounds {
        bytes,
        // Nobody fills it alone.
        owner_bytes: if has_keys { bytes / 2 } else { bytes },
        file_bytes: signed(options.max_file_bytes),
        line_bytes: options.max_body_bytes,
        age: signed(options.stored_files_s),
    };
    let share = Share {
        lines: options.batch_lines,
    };
    Batches::open(place, bounds, share).await.map(Some)
}

/// Starts what runs batches.
fn run_batches(
    state: &Arc<AppState>,
    batches: Arc<Batches>,
    stopping: &watch::Receiver<Stop>,
) -> tokio::task::JoinSet<()> {
    let runner = Runner::new(Arc::clone(state), batches);
    let wait_for = |stop: Stop| {
        let mut stopping = stopping.clone();
        async move {
            // A dropped sender stops it as well.
            let _ = stopping.wait_for(|now| *now >= stop).await;
        }
    };
    let mut task = tokio::task::JoinSet::new();
    task.spawn(runner.run(wait_for(Stop::Calmly), wait_for(Stop::Now)));
    task
}

/// What exports traces, if they are wanted.
fn start_tracer(
    options: &GatewayOptions,
    metrics: &Metrics,
) -> Result<Option<(Tracer, Flush)>, ServeError> {
    let endpoint = options.otlp_endpoint.as_ref();
    let Some(endpoint) = endpoint.filter(|endpoint| !endpoint.is_empty()) else {
        return Ok(None);
    };
    let dropped = metrics.dropped_spans.clone();
    let options = TraceOptions {
        endpoint: endpoint.clone(),
        ratio: options.trace_sampling_ratio,
        service: "inflight-gateway",
    };
    let on_dropped = move |count| {
        dropped.inc_by(count);
    };
    Ok(Some(Tracer::start(&options, on_dropped)?))
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

/// Starts one task that keeps all servers connected; it runs until the set is dropped.
fn connect_workers(
    state: &AppState,
    options: &GatewayOptions,
    tokenizers: Tokenizers,
    tls: ClientTls,
    network: Option<Network>,
) -> tokio::task::JoinSet<()> {
    let context = Context {
        table: Arc::clone(&state.table),
        metrics: Arc::clone(&state.metrics.upstream),
        limits: Limits {
            max_message_bytes: options.grpc_max_message_bytes,
            send_queue: options.max_concurrent_requests,
            worker_silence: Duration::from_secs_f64(options.worker_silence_s),
            slow_client: Duration::from_secs(options.slow_client_s),
        },
        templates: chat_templates(options),
        tls,
        network,
    };
    let connector = Arc::new(Connector::new(context, tokenizers));
    let mut tasks = tokio::task::JoinSet::new();
    let discovery = Discovery::new(
        &options.workers,
        &options.worker_files,
        &options.worker_names,
    );
    tasks.spawn(discovery.follow(Arc::clone(&state.table), connector));
    tasks
}

/// The templates of `--chat-template` and `--history-template`, by model.
fn chat_templates(options: &GatewayOptions) -> ChatTemplates {
    let given = options.chat_templates.iter().map(|one| ForModel {
        model: one.model.clone(),
        value: one.value.0.clone(),
    });
    let history = options.history_template.iter();
    let history = history.chain(&options.history_template_file);
    let history = history.map(|one| ForModel {
        model: None,
        value: one.0.clone(),
    });
    ChatTemplates::new(given.chain(history).collect())
}
