//! What all handlers share, and the gateway's life: workers' tasks, HTTP server, draining. Owns the
//! assembly; each part's behaviour is its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::admission::Admission;
use crate::metrics::Metrics;
use crate::options::GatewayOptions;
use crate::server;
use crate::upstream::assets::AssetCache;
use crate::upstream::connect::{Connecting, keep_connected};
use crate::upstream::connection;
use crate::upstream::table::Table;
use crate::upstream::tokenizers::{TokenizerError, Tokenizers};

/// All bodies together may take 16 times the largest one, and no less than this, so that a small limit
/// on one body is no limit on their number.
const MIN_BODY_MEMORY: usize = 256 << 20;

/// Shared by all handlers.
#[derive(Debug)]
pub struct App {
    pub table: Arc<Table>,
    pub metrics: Arc<Metrics>,
    pub admission: Admission,
    pub max_body_bytes: usize,
    pub api_key: Option<ApiKey>,
    /// Set when the gateway stops accepting: not ready any more.
    draining: AtomicBool,
}

/// A secret that no log shows.
#[derive(Clone)]
pub struct ApiKey(String);

impl ApiKey {
    /// Wraps the key.
    pub fn new(key: String) -> Self {
        Self(key)
    }

    /// Whether `given` is the key, in time that does not depend on where they differ.
    pub fn matches(&self, given: &[u8]) -> bool {
        subtle::ConstantTimeEq::ct_eq(self.0.as_bytes(), given).into()
    }
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("****")
    }
}

impl App {
    /// The state for these options, no worker connected yet.
    pub fn new(options: &GatewayOptions) -> Arc<Self> {
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
        let body_memory = options
            .max_body_bytes
            .saturating_mul(16)
            .max(MIN_BODY_MEMORY);
        Arc::new(Self {
            table: Arc::new(Table::new(&options.workers)),
            metrics: Metrics::new(),
            admission: Admission::new(options.max_concurrent_requests, threads, body_memory),
            max_body_bytes: options.max_body_bytes,
            api_key: options.api_key.clone().map(ApiKey::new),
            draining: AtomicBool::new(false),
        })
    }

    /// Whether the gateway has begun to shut down.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Starts one task per server; they run until the set is dropped.
    pub fn connect_workers(
        &self,
        options: &GatewayOptions,
        tokenizers: Tokenizers,
    ) -> tokio::task::JoinSet<()> {
        let shared = Arc::new(Connecting {
            table: Arc::clone(&self.table),
            cache: AssetCache::default(),
            tokenizers,
            limits: connection::ConnectionLimits {
                max_message_bytes: options.grpc_max_message_bytes,
                send_queue: options.max_concurrent_requests,
                slow_client: Duration::from_secs(options.slow_client_s),
            },
            metrics: Arc::clone(&self.metrics),
        });
        let mut tasks = tokio::task::JoinSet::new();
        for slot in self.table.workers() {
            tasks.spawn(keep_connected(Arc::clone(slot), Arc::clone(&shared)));
        }
        tasks
    }
}

/// Why the gateway cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error("cannot listen on port `{port}` of `{host}`; choose another with `--port`")]
    Bind {
        host: String,
        port: u16,
        #[source]
        source: std::io::Error,
    },
}

/// Serves until `shutdown` resolves and open requests have ended or the grace is over. `on_bound` is
/// told the address once the port is open.
///
/// # Errors
/// [`ServeError`]: it never served.
pub async fn serve(
    options: &GatewayOptions,
    on_bound: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let bound = server::bind(&options.host, options.port).await;
    let (listener, address) = bound.map_err(|source| ServeError::Bind {
        host: options.host.clone(),
        port: options.port,
        source,
    })?;
    let tokenizers = Tokenizers::load(&options.tokenizers, &options.max_seq_lens)?;
    let app = App::new(options);
    let workers = app.connect_workers(options, tokenizers);
    on_bound(address);
    let limits = server::ConnectionLimits {
        max_connections: options.max_connections,
        header_timeout: Duration::from_secs(options.idle_timeout_s),
        write_stall: Duration::from_secs(options.slow_client_s),
    };
    let draining = Arc::clone(&app);
    let shutdown = async move {
        shutdown.await;
        draining.draining.store(true, Ordering::Relaxed);
    };
    let interrupted = Arc::clone(&app);
    let interrupt = move || {
        for slot in interrupted.table.workers() {
            for connection in slot.connections().iter() {
                connection.fail_all("the gateway is shutting down");
            }
        }
    };
    let router = crate::router::router(Arc::clone(&app));
    let grace = Duration::from_secs(options.shutdown_grace_s);
    server::serve(listener, router, limits, shutdown, grace, interrupt).await;
    drop(workers);
    Ok(())
}
