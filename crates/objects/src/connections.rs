//! Connections to the server, each for one request after another. Owns how many are kept, and that a
//! request keeps its limits; what is asked is the caller's.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use inflight_tls::{HandshakeError, WebTls};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::answer::Answer;
use crate::error::ObjectError;
use crate::url::Endpoint;

/// How long a connection may take, its handshake included.
const CONNECT: Duration = Duration::from_secs(5);
/// Connections that are kept for the next requests, and for how long: servers close them after some twenty seconds.
const KEPT: usize = 16;
const IDLE: Duration = Duration::from_secs(15);
/// The head of an answer.
const MAX_HEAD_BYTES: usize = 64 * 1024;

type Sender = SendRequest<Full<Bytes>>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Connections {
    tls: WebTls,
    idle: Mutex<Vec<(Sender, Instant)>>,
}

/// What a request and its answer may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Of the answer.
    pub(crate) bytes: usize,
    pub(crate) time: Duration,
}

/// Why there is no answer.
enum Broken {
    /// The server had closed the connection meanwhile: it did not see the request.
    Stale,
    Error(ObjectError),
}

impl Connections {
    pub(crate) fn new() -> Self {
        Self {
            tls: WebTls::default(),
            idle: Mutex::default(),
        }
    }

    /// Sends a request.
    pub(crate) async fn send(
        &self,
        endpoint: &Endpoint,
        request: &Request<Full<Bytes>>,
        limits: Limits,
    ) -> Result<Answer, ObjectError> {
        loop {
            let kept = self.kept();
            let is_kept = kept.is_some();
            let sender = match kept {
                Some(sender) => sender,
                None => self.connect(endpoint).await?,
            };
            match self.ask(endpoint, sender, request.clone(), limits).await {
                Ok(answer) => return Ok(answer),
                // At most as often as connections are kept.
                Err(Broken::Stale) if is_kept => {}
                Err(Broken::Stale) => {
                    let source = io::ErrorKind::ConnectionAborted.into();
                    let endpoint = endpoint.authority.clone();
                    return Err(ObjectError::Unreachable { endpoint, source });
                }
                Err(Broken::Error(error)) => return Err(error),
            }
        }
    }

    /// The connection that was used last.
    fn kept(&self) -> Option<Sender> {
        let mut idle = self.idle.lock();
        idle.retain(|(sender, since)| since.elapsed() < IDLE && !sender.is_closed());
        idle.pop().map(|(sender, _)| sender)
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Sender, ObjectError> {
        let connecting = async {
            #[expect(clippy::disallowed_methods, reason = "buckets are not simulated")]
            let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await;
            let stream = stream.and_then(|stream| {
                // A part's last bytes do not wait for an acknowledgement.
                stream.set_nodelay(true).map(|()| stream)
            });
            let stream = stream.map_err(|source| ObjectError::Unreachable {
                endpoint: endpoint.authority.clone(),
                source,
            })?;
            match endpoint.is_tls {
                true => {
                    let stream = self.tls.connect(&endpoint.host, stream).await;
                    handshake(endpoint, stream.map_err(refused)?).await
                }
                false => handshake(endpoint, stream).await,
            }
        };
        let connected = timeout(CONNECT, connecting).await;
        connected.map_err(|_| late(endpoint, CONNECT))?
    }

    async fn ask(
        &self,
        endpoint: &Endpoint,
        mut sender: Sender,
        request: Request<Full<Bytes>>,
        limits: Limits,
    ) -> Result<Answer, Broken> {
        let lost = |source: hyper::Error| {
            let endpoint = endpoint.authority.clone();
            Broken::Error(ObjectError::Lost { endpoint, source })
        };
        let asking = async {
            sender.ready().await.map_err(|_| Broken::Stale)?;
            let response = sender.send_request(request).await;
            let response = response.map_err(|error| match error.is_canceled() {
                true => Broken::Stale,
                false => lost(error),
            })?;
            let (head, mut body) = response.into_parts();
            let mut content = BytesMut::new();
            while let Some(frame) = body.frame().await {
                let Ok(data) = frame.map_err(lost)?.into_data() else {
                    continue;
                };
                if content.len() + data.len() > limits.bytes {
                    let error = ObjectError::Form(endpoint.authority.clone());
                    return Err(Broken::Error(error));
                }
                content.extend_from_slice(&data);
            }
            Ok(Answer {
                status: head.status,
                headers: head.headers,
                body: content.freeze(),
            })
        };
        let answered = timeout(limits.time, asking).await;
        let answer = answered.map_err(|_| Broken::Error(late(endpoint, limits.time)))??;
        let mut idle = self.idle.lock();
        if idle.len() < KEPT && !sender.is_closed() {
            idle.push((sender, Instant::now()));
        }
        Ok(answer)
    }
}

async fn handshake<S>(endpoint: &Endpoint, stream: S) -> Result<Sender, ObjectError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD_BYTES);
    let made = builder.handshake(TokioIo::new(stream)).await;
    let (sender, connection) = made.map_err(|source| ObjectError::Lost {
        endpoint: endpoint.authority.clone(),
        source,
    })?;
    // Ends once its sender is dropped.
    tokio::spawn(connection);
    Ok(sender)
}

/// Without the advice for options of workers.
fn refused(error: HandshakeError) -> ObjectError {
    match error {
        HandshakeError::Failed { server, reason } => ObjectError::Handshake {
            endpoint: server,
            source: reason,
        },
        error => ObjectError::Tls(error),
    }
}

fn late(endpoint: &Endpoint, limit: Duration) -> ObjectError {
    ObjectError::Late {
        endpoint: endpoint.authority.clone(),
        seconds: limit.as_secs(),
    }
}
