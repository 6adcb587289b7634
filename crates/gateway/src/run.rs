//! The gateway's life: binds, connects the workers, serves, drains. Owns the order of these; each part's
//! behavior is its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::grpc::{self, GrpcLimits};
use crate::options::GatewayOptions;
use crate::router;
use crate::server;
use crate::state::AppState;
use crate::upstream::chat_templates::ChatTemplates;
use crate::upstream::connect::Connector;
use crate::upstream::context::{Context, Limits};
use crate::upstream::discovery::Discovery;
use crate::upstream::triton::tokenizers::{TokenizerError, Tokenizers};

/// Why the gateway cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A directory given with `--tokenizer` cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
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
    let bound = server::bind(&options.host, options.port).await;
    let (listener, address) = bound.map_err(|source| ServeError::Bind {
        host: options.host.clone(),
        port: options.port,
        source,
    })?;
    let grpc = match options.grpc_port {
        Some(port) => Some(server::bind(&options.host, port).await.map_err(|source| {
            ServeError::BindGrpc {
                host: options.host.clone(),
                port,
                source,
            }
        })?),
        None => None,
    };
    let tokenizers = Tokenizers::load(
        &options.tokenizers,
        &options.max_seq_lens,
        ChatTemplates::new(options),
    )?;
    let state = AppState::new(options);
    let workers = connect_workers(&state, options, tokenizers);
    let _key_watch = state.access.watch_keys();
    on_bound(address);
    let limits = server::ConnectionLimits {
        max_connections: options.max_connections,
        header_timeout: Duration::from_secs(options.idle_timeout_s),
        write_stall: Duration::from_secs(options.slow_client_s),
    };
    let grace = Duration::from_secs(options.shutdown_grace_s);
    let (stop_grpc, stopped) = tokio::sync::oneshot::channel::<()>();
    let grpc = grpc.map(|(listener, address)| {
        tracing::info!("listening on grpc://{address}");
        let limits = GrpcLimits {
            max_message_bytes: options.grpc_max_message_bytes,
            max_connections: options.max_connections,
            grace,
        };
        let stopped = async {
            // A dropped sender stops the server as well.
            let _ = stopped.await;
        };
        tokio::spawn(grpc::serve(listener, Arc::clone(&state), limits, stopped))
    });
    let shutdown = async {
        shutdown.await;
        state.start_draining();
        let _ = stop_grpc.send(());
    };
    let interrupt = || {
        state.forward.interrupt();
        for slot in state.table.workers().iter() {
            for connection in slot.connections().iter() {
                connection.fail_all("the gateway is shutting down");
            }
        }
    };
    let router = router::router(Arc::clone(&state));
    server::serve(listener, router, limits, shutdown, grace, interrupt).await;
    if let Some(grpc) = grpc {
        // It has stopped accepting; what is open there has the same grace.
        let _ = grpc.await;
    }
    drop(workers);
    Ok(())
}

/// Starts one task that keeps all servers connected; it runs until the set is dropped.
fn connect_workers(
    state: &AppState,
    options: &GatewayOptions,
    tokenizers: Tokenizers,
) -> tokio::task::JoinSet<()> {
    let context = Context {
        table: Arc::clone(&state.table),
        metrics: Arc::clone(&state.metrics),
        limits: Limits {
            max_message_bytes: options.grpc_max_message_bytes,
            send_queue: options.max_concurrent_requests,
            worker_silence: Duration::from_secs_f64(options.worker_silence_s),
            slow_client: Duration::from_secs(options.slow_client_s),
        },
        templates: ChatTemplates::new(options),
    };
    let connector = Arc::new(Connector::new(context, tokenizers));
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(Discovery::new(options).follow(Arc::clone(&state.table), connector));
    tasks
}
