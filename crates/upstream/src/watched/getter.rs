//! Small questions to a server over HTTP, on a connection that is kept. Owns that an answer is bounded in bytes and time;
//! knows nothing of what is asked.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use inflight_kserve::client::{Network, Socket};
use parking_lot::Mutex;
use tokio::time::timeout;

/// Metrics of an engine with many adapters and histograms are some hundred kilobytes.
const MAX_BYTES: usize = 8 << 20;
/// The head of an answer.
const MAX_HEAD_BYTES: usize = 64 << 10;

type Sender = SendRequest<Empty<Bytes>>;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    #[error("cannot connect to `{server}`")]
    Connect {
        server: String,
        #[source]
        source: io::Error,
    },
    #[error("`{path}` got no answer")]
    Lost {
        path: &'static str,
        #[source]
        source: hyper::Error,
    },
    #[error("`{path}` got no answer within {limit:?}")]
    Late { path: &'static str, limit: Duration },
    #[error("`{path}` answered `{status}`")]
    Refused {
        path: &'static str,
        status: StatusCode,
    },
    #[error("the answer of `{path}` has more than {MAX_BYTES} bytes")]
    TooLarge { path: &'static str },
}

impl GetError {
    /// Whether nobody listens there any more, rather than answers late or not as expected.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self, Self::Connect { .. })
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Getter {
    host: String,
    port: u16,
    /// `None`: the machine's.
    network: Option<Network>,
    kept: Mutex<Option<Sender>>,
}

impl Getter {
    /// Connects at the first question. `address` is `HOST:PORT`.
    pub(super) fn new(address: &str, network: Option<Network>) -> Self {
        // It was checked when it was given.
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        Self {
            host: host.to_owned(),
            port: port.parse().unwrap_or_default(),
            network,
            kept: Mutex::default(),
        }
    }

    /// The body that is found at `path`.
    ///
    /// # Errors
    /// [`GetError`].
    pub(super) async fn get(&self, path: &'static str, limit: Duration) -> Result<Bytes, GetError> {
        let asking = async {
            let kept = self.kept.lock().take().filter(|sender| !sender.is_closed());
            if let Some(sender) = kept {
                match self.ask(sender, path).await {
                    // The server had closed it meanwhile.
                    Err(GetError::Lost { .. }) => {}
                    answer => return answer,
                }
            }
            self.ask(self.connect(path).await?, path).await
        };
        let answer = timeout(limit, asking).await;
        answer.unwrap_or(Err(GetError::Late { path, limit }))
    }

    /// Connects to another port of the server.
    ///
    /// # Errors
    /// As the network has it.
    pub(super) async fn dial(&self, port: u16) -> io::Result<Box<dyn Socket>> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        Network::reach(self.network.as_ref(), host, port).await
    }

    async fn connect(&self, path: &'static str) -> Result<Sender, GetError> {
        let stream = self
            .dial(self.port)
            .await
            .map_err(|source| GetError::Connect {
                server: format!("{}:{}", self.host, self.port),
                source,
            })?;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(MAX_HEAD_BYTES);
        let connected = builder.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = connected.map_err(|source| GetError::Lost { path, source })?;
        // It ends once its sender is gone.
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn ask(&self, mut sender: Sender, path: &'static str) -> Result<Bytes, GetError> {
        let lost = |source| GetError::Lost { path, source };
        sender.ready().await.map_err(lost)?;
        let request = Request::get(path)
            .header(HOST, format!("{}:{}", self.host, self.port))
            .header(USER_AGENT, "inflight-gateway")
            .header(ACCEPT, "*/*")
            .body(Empty::new());
        let Ok(request) = request else {
            let status = StatusCode::BAD_REQUEST;
            return Err(GetError::Refused { path, status });
        };
        let response = sender.send_request(request).await.map_err(lost)?;
        let (head, mut body) = response.into_parts();
        let mut content = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(lost)?.into_data() else {
                continue;
            };
            if content.len() + data.len() > MAX_BYTES {
                return Err(GetError::TooLarge { path });
            }
            content.extend_from_slice(&data);
        }
        *self.kept.lock() = Some(sender);
        match head.status {
            status if status.is_success() => Ok(content.freeze()),
            status => Err(GetError::Refused { path, status }),
        }
    }
}
