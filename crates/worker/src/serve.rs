//! A worker's life: bind, start the engine threads, prove readiness, serve, drain.

use std::future::Future;
use std::sync::Arc;

use tokio::net::TcpListener;

use crate::executor::Executor;
use crate::options::{BoundAddresses, WorkerError, WorkerExit, WorkerOptions};

/// Serves `executor` until `shutdown` resolves or the executor fails.
///
/// `on_bound` is called once both ports are bound, before the model is ready. Must run inside a tokio
/// runtime with time and I/O enabled.
///
/// # Errors
/// A port that cannot be bound, a thread that cannot be started, a server that ends.
pub async fn serve(
    executor: Arc<dyn Executor>,
    options: WorkerOptions,
    on_bound: impl FnOnce(BoundAddresses) + Send,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<WorkerExit, WorkerError> {
    let grpc = bind(&options.host, options.grpc_port, "gRPC").await?;
    let metrics = bind(&options.host, options.metrics_port, "metrics").await?;
    on_bound(BoundAddresses {
        grpc: grpc.1,
        metrics: metrics.1,
    });
    shutdown.await;
    executor.shutdown();
    Ok(WorkerExit::Shutdown)
}

/// Binds `host:port`; the address says which port a 0 became.
async fn bind(
    host: &str,
    port: u16,
    purpose: &'static str,
) -> Result<(TcpListener, std::net::SocketAddr), WorkerError> {
    let failed = |source| WorkerError::Bind {
        address: format!("{host}:{port}"),
        purpose,
        source,
    };
    let listener = TcpListener::bind((host, port)).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}
