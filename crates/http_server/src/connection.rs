//! One connection from its handshake to its end. Owns how each protocol is served and every reason to end a
//! connection that its peer has not ended; knows nothing of other connections.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::header::CONNECTION;
use http::{HeaderValue, Response, Version};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulConnection;
use hyper_util::service::TowerToHyperService;
use inflight_base::net::Ending;
use inflight_clients::client::{Client, ClientConnection};
use inflight_tls::{ServerStream, ServerTls};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::port::ConnectionLimits;
use crate::socket::{GuardedSocket, Protocol};
use crate::unread_bodies::{DeliveredBody, StreamExecutor};

/// HTTP headers of one request. Real clients send fewer than 30.
const MAX_HEADERS: usize = 128;
/// Bytes of a request's head, or of one read.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Concurrent requests on one HTTP/2 connection; a load generator uses one connection per process.
const MAX_STREAMS: u32 = 1024;
/// How long a connection beyond the limit may be idle.
const SURPLUS_IDLE: Duration = Duration::from_secs(5);
/// What a connection that is being closed gets to end by itself, unless it has requests.
const GOODBYE: Duration = Duration::from_secs(1);
/// A connection whose peer has hung up gets this long to be read to its end; answers that need no wait
/// still go out, for who asked and closed its side.
const AFTER_HANG_UP: Duration = Duration::from_secs(1);

/// A kept-alive connection that has been idle for this long is closed when another gateway takes over; until then
/// its next answer says that it is the last.
const FAREWELL: Duration = Duration::from_secs(5);

/// Whether the gateway is ending, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drain {
    /// It is not.
    No,
    /// Another one takes over: nothing that was begun is hurried, and idle connections are not cut.
    Leisurely,
    /// What is open has the grace period.
    Now,
}

/// How each protocol is served.
pub(crate) struct Builders {
    http1: auto::Builder<StreamExecutor>,
    http2: auto::Builder<StreamExecutor>,
}

impl Builders {
    pub(crate) fn new(limits: ConnectionLimits) -> Self {
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
        Self {
            http1: builder.clone().http1_only(),
            http2: builder.http2_only(),
        }
    }
}

/// A connection whose stream is still plain bytes.
pub(crate) struct Accepted<H> {
    pub hang_up: H,
    pub client: Arc<ClientConnection>,
    pub limits: ConnectionLimits,
    pub last_answers: Arc<AtomicBool>,
    pub draining: watch::Receiver<Drain>,
}

impl<H: Ending> Accepted<H> {
    /// The stream over TLS; `None` if the handshake fails, or the connection is in the way before its end.
    pub(crate) async fn shake_hands<S>(
        &mut self,
        stream: S,
        tls: &ServerTls,
    ) -> Option<ServerStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        tokio::select! {
            biased;
            _ = self.draining.wait_for(|drain| *drain == Drain::Now) => None,
            () = self.client.closing.notified() => None,
            shaken = tls.accept(stream) => match shaken {
                Ok(stream) => Some(stream),
                Err(reason) => {
                    tracing::debug!(%reason, peer = %self.client.peer, "no TLS connection");
                    None
                }
            },
        }
    }

    /// Serves HTTP until the connection ends.
    pub(crate) async fn serve<S>(
        self,
        stream: S,
        builders: &Builders,
        service: TowerToHyperService<Router>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self {
            hang_up,
            client,
            limits,
            last_answers,
            draining,
        } = self;
        let mut socket = GuardedSocket::new(stream, limits.write_stall);
        let protocol = tokio::select! {
            biased;
            protocol = socket.protocol(limits.header_timeout) => protocol,
            _ = reason(&hang_up, &client, limits, draining.clone()) => return,
        };
        let builder = match protocol {
            Ok(Protocol::Http1) => &builders.http1,
            Ok(Protocol::Http2) => &builders.http2,
            Err(error) => return log_end(Err(error)),
        };
        let connection = builder
            .serve_connection(
                TokioIo::new(socket),
                counted(service, &client, &last_answers),
            )
            .into_owned();
        attend(connection, &hang_up, &client, limits, draining).await;
    }
}

/// The service of one connection: each request is counted for its client until its response has left. With
/// `last_answers`, HTTP/1.1 clients are asked to close the connection.
fn counted<S, F>(
    service: S,
    client: &Arc<ClientConnection>,
    last_answers: &Arc<AtomicBool>,
) -> impl Service<
    Request<Incoming>,
    Response = Response<DeliveredBody>,
    Error = Infallible,
    Future: Send + 'static,
> + use<S, F>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future = F>,
    F: Future<Output = Result<Response<Body>, Infallible>> + Send + 'static,
{
    let client = Arc::clone(client);
    let last_answers = Arc::clone(last_answers);
    service_fn(move |mut request: Request<Incoming>| {
        let is_http2 = request.version() == Version::HTTP_2;
        if is_http2 {
            client.set_http2();
        }
        let client = Client::new(Arc::clone(&client));
        request.extensions_mut().insert(Arc::clone(&client));
        let answer = service.call(request);
        let last_answers = Arc::clone(&last_answers);
        async move {
            let mut response = answer.await?;
            if last_answers.load(Ordering::Relaxed) && !is_http2 {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            Ok(response.map(|body| DeliveredBody::new(body, client)))
        }
    })
}

/// Why a connection ends though its peer has not ended it.
enum End {
    /// The peer is gone and its request was given up.
    Left,
    /// The server is draining, or the connection is idle and in the way.
    Goodbye,
}

/// Serves one connection until it ends, by itself or for an [`End`].
async fn attend<C: GracefulConnection>(
    connection: C,
    hang_up: &impl Ending,
    client: &ClientConnection,
    limits: ConnectionLimits,
    draining: watch::Receiver<Drain>,
) where
    C::Error: std::fmt::Display,
{
    tokio::pin!(connection);
    // Wakes by itself: a select would ask each of the reasons again with every write of the connection.
    let mut reasons = FuturesUnordered::new();
    // In a box: the set would have room for two of them.
    reasons.push(Box::pin(reason(hang_up, client, limits, draining)));
    tokio::select! {
        biased;
        result = &mut connection => return log_end(result),
        reason = reasons.next() => if let Some(End::Left) = reason {
            return;
        },
    }
    // Informs an HTTP/2 peer which of its requests were not seen, should one be on the way.
    Pin::as_mut(&mut connection).graceful_shutdown();
    tokio::select! {
        biased;
        result = connection => log_end(result),
        () = left(hang_up) => {}
        () = idle_from_now(client) => {}
    }
}

/// Resolves with the first reason to end the connection.
async fn reason(
    hang_up: &impl Ending,
    client: &ClientConnection,
    limits: ConnectionLimits,
    mut draining: watch::Receiver<Drain>,
) -> End {
    let patience = match client.is_surplus() {
        true => limits.header_timeout.min(SURPLUS_IDLE),
        false => limits.header_timeout,
    };
    tokio::select! {
        biased;
        () = left(hang_up) => return End::Left,
        () = farewell(client, &mut draining) => {}
        () = client.closing.notified() => tracing::debug!("closed an idle connection for a new one"),
        () = idle(client, patience) => tracing::debug!("closed an idle connection"),
    }
    End::Goodbye
}

/// Resolves when a connection may be notified that the server ends. Over HTTP/1.1 an idle connection can only be cut,
/// perhaps under a request that is on its way.
async fn farewell(client: &ClientConnection, draining: &mut watch::Receiver<Drain>) {
    let is_leisurely = match draining.wait_for(|drain| *drain != Drain::No).await {
        Ok(drain) => *drain == Drain::Leisurely,
        Err(_) => return,
    };
    if is_leisurely && !client.is_http2() {
        let idle = async {
            tokio::time::sleep(FAREWELL).await;
            idle(client, FAREWELL).await;
        };
        tokio::select! {
            () = idle => {}
            _ = draining.wait_for(|drain| *drain == Drain::Now) => {}
        }
    }
}

/// Resolves when the peer is gone and what was on its way to it has had its time.
async fn left(hang_up: &impl Ending) {
    hang_up.noticed().await;
    tokio::time::sleep(AFTER_HANG_UP).await;
    tracing::debug!("the client disconnected during its request");
}

/// Resolves when `client` has had [`GOODBYE`] from now and from its last request.
async fn idle_from_now(client: &ClientConnection) {
    tokio::time::sleep(GOODBYE).await;
    idle(client, GOODBYE).await;
}

/// Resolves when `connection` has had no request for `limit`. A request costs no timer: the time is looked
/// at when it may be up.
async fn idle(connection: &ClientConnection, limit: Duration) {
    loop {
        let wait = match connection.idle_for() {
            None => limit,
            Some(idle) => match limit.checked_sub(idle) {
                None | Some(Duration::ZERO) => return,
                Some(rest) => rest,
            },
        };
        tokio::time::sleep(wait).await;
    }
}

/// Errors here are the peer's: a reset, a timeout, bytes that are not HTTP.
fn log_end(result: Result<(), impl std::fmt::Display>) {
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}
