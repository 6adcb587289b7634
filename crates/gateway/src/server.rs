//! The accept loop: sockets, HTTP/1.1 and HTTP/2, limits of a connection, draining. Owns everything
//! below a request; knows no route.

pub(crate) mod delivery;
pub(crate) mod hang_up;
pub(crate) mod socket;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use self::delivery::{DeliveredBody, StreamExecutor};
use self::socket::GuardedSocket;

/// Limits of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// Connections at once; more wait in the kernel's backlog.
    pub max_connections: usize,
    /// A request's head must be complete within this, idle time on a kept-alive connection included.
    pub header_timeout: Duration,
    /// A write that makes no progress for this long ends the connection, and with it its requests; a
    /// response over HTTP/2 that makes none ends its stream.
    pub write_stall: Duration,
}

/// HTTP headers of one request. Real clients send fewer than 30.
const MAX_HEADERS: usize = 128;
/// Bytes of a request's head, or of one read.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Concurrent requests on one HTTP/2 connection; a load generator uses one connection per process.
const MAX_STREAMS: u32 = 1024;
/// A connection whose peer has hung up gets this long to be read to its end; answers that need no wait
/// still go out, for who asked and closed its side.
const AFTER_HANG_UP: Duration = Duration::from_secs(1);

/// Accepts until `shutdown` resolves, then lets open requests finish for at most `grace`.
///
/// `interrupt` is called when the grace is over and requests remain: it ends them with an error, and
/// they get a moment to say so before their connections are cut.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    shutdown: impl Future<Output = ()>,
    grace: Duration,
    interrupt: impl FnOnce(),
) {
    let graceful = GracefulShutdown::new();
    let mut builder = auto::Builder::new(StreamExecutor::new(limits.write_stall));
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        // One copy into one buffer beats a vector of three for events of some hundred bytes:
        // 16.5 against 18.8 µs a token, 64 streams paced at 20 ms.
        .writev(false)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES.max(16 * 1024));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(20));
    let builder = Arc::new(builder);
    let permits = Arc::new(Semaphore::new(limits.max_connections));
    let mut connections = tokio::task::JoinSet::new();
    let service = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = service.call(request);
        async move {
            answer
                .await
                .map(|response| response.map(DeliveredBody::new))
        }
    });
    tokio::pin!(shutdown);

    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = accept(&listener, &permits) => accepted,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
        };
        let Some((stream, permit)) = accepted else {
            continue;
        };
        let (stream, hang_up) = hang_up::watch(stream);
        let socket = GuardedSocket::new(stream, limits.header_timeout, limits.write_stall);
        let connection = builder.serve_connection(TokioIo::new(socket), service.clone());
        let watched = graceful.watch(connection.into_owned());
        connections.spawn(async move {
            let left = async {
                hang_up.noticed().await;
                tokio::time::sleep(AFTER_HANG_UP).await;
            };
            tokio::select! {
                biased;
                result = watched => {
                    // Errors here are the peer's: a reset, a timeout, bytes that are not HTTP.
                    if let Err(error) = result {
                        tracing::debug!(%error, "connection ended");
                    }
                }
                () = left => tracing::debug!("the client disconnected during its request"),
            }
            drop(permit);
        });
    }
    drop(listener);

    let drained = tokio::time::timeout(grace, graceful.shutdown()).await;
    if drained.is_err() {
        tracing::warn!(
            connections = connections.len(),
            "grace period over; ending open requests"
        );
        interrupt();
        let goodbye = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(1), goodbye).await;
    }
    connections.shutdown().await;
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // Without it a kept-alive client waits for its own delayed ACK: 40 ms to the first token.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "cannot set TCP_NODELAY");
            }
            Some((stream, permit))
        }
        Err(error) => {
            // Out of descriptors, or the peer is already gone: accepting goes on.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

/// Binds `host:port`; port 0 becomes a free one.
///
/// # Errors
/// As the operating system says: in use, not permitted, no such address.
pub(crate) async fn bind(host: &str, port: u16) -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((host, port)).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}
