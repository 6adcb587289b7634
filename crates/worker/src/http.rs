//! KServe over HTTP at a worker's own port, for clients without a gateway. Owns the port's limits; the forms of
//! calls are inflight-rest's, and the answers the service's.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use inflight_base::accept::accept;
use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::streamed::SentResponse;
use inflight_rest::{Call, Coding, RestError, Route, Upstream};
use inflight_tls::ServerTls;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::codegen::http::{self, HeaderValue, Request, Response, StatusCode, header};
use tonic::transport::server::{Connected, TcpConnectInfo};
use tonic::{Extensions, Status};

use crate::host_header::{HostNames, REFUSED};
use crate::metrics::load_report::{self, Form};
use crate::service::{ResponseStream, Service};
use crate::trace::context_of;

/// A request's head must be complete within this, idle time on a kept-alive connection included.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// A body must be complete within this.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Bodies that have arrived in part may take so many times the largest one together.
const LARGEST_BODIES: usize = 4;
/// Their memory is counted in units of this many bytes.
const UNIT: usize = 16 << 10;
/// What is read of a body that nobody wants, so that its sender gets to read why.
const DISCARDED: usize = 1 << 20;
/// JSON up to this size is read where it arrives; more would hold up every stream of the worker.
const INLINE_BYTES: usize = 16 << 10;

/// Limits of the port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpLimits {
    pub(crate) max_connections: usize,
    pub(crate) max_body_bytes: usize,
}

/// Serves until `stop` is cancelled; connections then finish their requests.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<ServerTls>,
    service: Service,
    limits: HttpLimits,
    stop: CancellationToken,
) {
    let units = limits.max_body_bytes.div_ceil(UNIT).max(1) * LARGEST_BODIES;
    let shared = Arc::new(Shared {
        service,
        names: HostNames::new(listener.local_addr().ok()),
        max_body_bytes: limits.max_body_bytes,
        bodies: Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))),
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(1024)
        .keep_alive_interval(Duration::from_secs(30));
    let builder = Arc::new(builder);
    let mut connections = JoinSet::new();
    let mut accepted = pin!(accept(listener, limits.max_connections, tls));
    loop {
        let connection = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = accepted.next() => match accepted {
                Some(Ok(connection)) => connection,
                _ => continue,
            },
        };
        let peer = connection.connect_info().remote_addr();
        let (shared, builder, stop) = (Arc::clone(&shared), Arc::clone(&builder), stop.clone());
        connections.spawn(async move {
            let answer = |request: Request<hyper::body::Incoming>| {
                let shared = Arc::clone(&shared);
                async move { Ok::<_, std::convert::Infallible>(shared.answer(request, peer).await) }
            };
            let io = TokioIo::new(connection);
            let mut connection =
                pin!(builder.serve_connection(io, hyper::service::service_fn(answer)));
            tokio::select! {
                biased;
                _ = connection.as_mut() => return,
                () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
            }
            let _ = connection.await;
        });
    }
    while connections.join_next().await.is_some() {}
}

struct Shared {
    service: Service,
    names: HostNames,
    max_body_bytes: usize,
    /// Memory of bodies that have arrived in part.
    bodies: Arc<Semaphore>,
}

impl Shared {
    async fn answer(
        &self,
        request: Request<hyper::body::Incoming>,
        peer: Option<SocketAddr>,
    ) -> Response<Body> {
        let route = match Route::of(request.method(), request.uri().path()) {
            Ok(route) => route,
            Err(none) => return none.response(),
        };
        let answered = self.call(route, request, peer).await;
        answered.unwrap_or_else(|error| error.response())
    }

    async fn call(
        &self,
        route: Route,
        request: Request<hyper::body::Incoming>,
        peer: Option<SocketAddr>,
    ) -> Result<Response<Body>, RestError> {
        let is_post = request.method() == http::Method::POST;
        let (parts, body) = request.into_parts();
        // A web page says whose it is, and nobody's pages may use a worker.
        if parts.headers.contains_key(header::ORIGIN) {
            let text = "web pages may not use a worker; put a gateway in front of it";
            return Err(RestError::new(StatusCode::FORBIDDEN, text));
        }
        if !self.names.allow(&parts.uri, &parts.headers) {
            return Err(RestError::new(StatusCode::FORBIDDEN, REFUSED));
        }
        let coding = Coding::of_body(&parts.headers)?;
        let body = if is_post {
            let read = tokio::time::timeout(BODY_TIMEOUT, self.read(body)).await;
            read.unwrap_or_else(|_| {
                let seconds = BODY_TIMEOUT.as_secs();
                Err(RestError::invalid(format!(
                    "the body did not arrive within {seconds} s"
                )))
            })?
        } else {
            Bytes::new()
        };
        let upstream = Own {
            service: &self.service,
            peer,
        };
        // Held until the call is answered: it costs its sender little.
        let (body, _held) = match coding {
            Some(coding) => self.expand(&upstream, coding, body).await?,
            None => (body, None),
        };
        let mut extensions = Extensions::new();
        // As on the gRPC port: some calls are for clients of this machine alone.
        extensions.insert(TcpConnectInfo {
            local_addr: None,
            remote_addr: peer,
        });
        if let Some(trace) = context_of(&parts.headers) {
            extensions.insert(trace);
        }
        let asked = parts.headers.get(load_report::ASKED);
        let form = asked.and_then(|asked| Form::named(asked.to_str().ok()?));
        let model = match (&route, form) {
            (
                Route::Infer(model) | Route::Generate(model) | Route::GenerateStream(model),
                Some(form),
            ) => Some((model.clone(), form)),
            _ => None,
        };
        let call = Call {
            route,
            headers: parts.headers,
            body,
            extensions,
        };
        let mut response = inflight_rest::serve(&upstream, call).await?;
        if let Some((model, form)) = model
            && let Some(report) = self.service.load_report(&model.name, form).await
            && let Ok(report) = HeaderValue::from_str(&report)
        {
            response.headers_mut().insert(load_report::REPORT, report);
        }
        Ok(response)
    }

    /// A compressed body as it was before, and its share of the memory for bodies.
    async fn expand(
        &self,
        upstream: &Own<'_>,
        coding: Coding,
        body: Bytes,
    ) -> Result<(Bytes, Option<OwnedSemaphorePermit>), RestError> {
        let (bodies, limit, size) = (Arc::clone(&self.bodies), self.max_body_bytes, body.len());
        let work = move || {
            let mut held: Option<OwnedSemaphorePermit> = None;
            let reserve = |total: usize| {
                let have = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
                let more = total.div_ceil(UNIT).saturating_sub(have);
                let more = u32::try_from(more).unwrap_or(u32::MAX);
                let more = Arc::clone(&bodies).try_acquire_many_owned(more);
                let more = more.map_err(|_| too_many())?;
                match &mut held {
                    Some(held) => held.merge(more),
                    None => held = Some(more),
                }
                Ok::<_, RestError>(())
            };
            let body = coding.expand(&body, limit, reserve)?;
            Ok((body, held))
        };
        // Most bodies become several times as large.
        upstream.work(size.saturating_mul(8), work).await
    }

    /// A whole body. What has come of it counts in what all bodies may take, until it is whole.
    async fn read(&self, mut body: hyper::body::Incoming) -> Result<Bytes, RestError> {
        let mut held: Option<SemaphorePermit<'_>> = None;
        let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
        while let Some(frame) = body.frame().await {
            let frame = frame
                .map_err(|_| RestError::invalid("the body ended early or is not valid HTTP"))?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            let total = first.len() + rest.len() + data.len();
            if total > self.max_body_bytes {
                let limit = self.max_body_bytes;
                discard(body).await;
                let text = format!("the body is larger than the limit of `{limit}` bytes");
                return Err(RestError::new(StatusCode::PAYLOAD_TOO_LARGE, text));
            }
            let have = held.as_ref().map_or(0, SemaphorePermit::num_permits);
            let more = total.div_ceil(UNIT).saturating_sub(have);
            // Most bodies are one frame, and hold nothing.
            if more > 0 && !(total == data.len() && body.is_end_stream()) {
                let more = u32::try_from(more).unwrap_or(u32::MAX);
                let Ok(more) = self.bodies.try_acquire_many(more) else {
                    discard(body).await;
                    return Err(too_many());
                };
                match &mut held {
                    Some(held) => held.merge(more),
                    None => held = Some(more),
                }
            }
            if total == data.len() {
                first = data;
            } else {
                if rest.is_empty() {
                    rest.extend_from_slice(&first);
                    first = Bytes::new();
                }
                rest.extend_from_slice(&data);
            }
        }
        Ok(if rest.is_empty() {
            first
        } else {
            rest.freeze()
        })
    }
}

fn too_many() -> RestError {
    Status::unavailable("too many large bodies are arriving; retry later").into()
}

/// Reads on without keeping anything.
async fn discard(mut body: hyper::body::Incoming) {
    let mut left = DISCARDED;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

/// This worker's service, for a client of this connection.
struct Own<'a> {
    service: &'a Service,
    peer: Option<SocketAddr>,
}

impl Upstream for Own<'_> {
    type Service = Service;
    type Responses = ResponseStream;
    type Response = SentResponse;

    fn service(&self) -> &Service {
        self.service
    }

    async fn start(
        &self,
        request: tonic::Request<ModelInferRequest>,
    ) -> Result<ResponseStream, Status> {
        let (_, mut extensions, message) = request.into_parts();
        Ok(self.service.start(message, self.peer, extensions.remove()))
    }

    async fn work<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, RestError> + Send + 'static,
    ) -> Result<T, RestError> {
        if bytes <= INLINE_BYTES {
            return work();
        }
        let done = inflight_base::blocking::run(work).await;
        done.unwrap_or_else(|error| {
            tracing::error!(%error, "reading a request failed");
            Err(Status::internal("the request could not be read").into())
        })
    }
}
