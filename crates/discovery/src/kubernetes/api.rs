//! Kubernetes' API server: where it is, who we are, and requests to it. Owns that credentials are read again for each
//! request, since Kubernetes renews them, and how long anything may take. Knows nothing of what is asked.
//!
//! Each request has a separate connection over HTTP/1.1: there is one a minute.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::uri::Scheme;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use inflight_base::blocking;
use inflight_base::text_file::read_text;
use inflight_kserve::client::{Network, Socket};
use inflight_tls::{HandshakeError, WebTls};
use tokio::time::timeout;

use super::events::{self, EventError};
use super::slices::SliceError;

/// Where Kubernetes puts what a Pod shows to the API server.
pub const CREDENTIALS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// How long a connection may take, its handshake included, and then the head of an answer.
const CONNECT: Duration = Duration::from_secs(5);
const HEAD: Duration = Duration::from_secs(10);
/// How long a whole answer may take, and how large it may be: ten thousand endpoints have 5 MB.
const WHOLE: Duration = Duration::from_secs(20);
const MAX_ANSWER_BYTES: usize = 32 << 20;
/// Of a token or a name.
const MAX_FILE_BYTES: u64 = 64 << 10;
const MAX_HEAD_BYTES: usize = 64 << 10;

/// An API server, and what is shown to it.
#[derive(Clone, Debug)]
pub struct Api {
    is_tls: bool,
    host: String,
    port: u16,
    /// With `token`, `ca.crt` and `namespace`.
    credentials: PathBuf,
    /// `None`: the machine's.
    network: Option<Network>,
}

/// Why it is not known where the API server is.
#[derive(Debug, thiserror::Error)]
pub enum NoApi {
    #[error(
        "`--worker-service` needs Kubernetes, and `KUBERNETES_SERVICE_HOST` is not set; run in a Pod, or pass `--kubernetes-api`"
    )]
    Outside,
    #[error("`{0}` is not a port, in `KUBERNETES_SERVICE_PORT`")]
    Port(String),
    #[error("`--kubernetes-api` must be http://HOST[:PORT] or https://HOST[:PORT], got `{0}`")]
    Url(String),
}

/// Why the API server did not answer, or what was wrong with it.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    #[error("cannot read `{path}`: {reason}")]
    Credentials { path: PathBuf, reason: String },
    #[error("cannot connect to the API server")]
    Unreachable(#[source] io::Error),
    /// Without the advice for options of workers.
    #[error("the TLS handshake with the API server failed")]
    Handshake(#[source] io::Error),
    #[error("TLS to the API server cannot be set up")]
    Tls(#[source] HandshakeError),
    #[error("the connection to the API server was lost")]
    Lost(#[source] hyper::Error),
    #[error("the API server did not answer within {} s", .0.as_secs())]
    Late(Duration),
    #[error("a request to the API server cannot be written")]
    Request(#[source] http::Error),
    #[error("the API server answered {status}{}{message}", advice(*.status))]
    Refused { status: StatusCode, message: String },
    #[error("the API server answered with more than {MAX_ANSWER_BYTES} bytes")]
    TooLarge,
    #[error("the API server answered with what is not a list of EndpointSlices")]
    Form(#[source] serde_json::Error),
    #[error(transparent)]
    Event(#[from] EventError),
    #[error(transparent)]
    Slice(#[from] SliceError),
    #[error("the version to watch from is too old")]
    Gone,
}

fn advice(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => {
            " (it does not know the token of the gateway's service account)"
        }
        StatusCode::FORBIDDEN => {
            " (the gateway's service account needs a Role with get, list and watch of endpointslices)"
        }
        _ => "",
    }
}

impl Api {
    /// That of the cluster in which this process runs, by the variables that every Pod has.
    ///
    /// # Errors
    /// It runs in none.
    pub fn of_pod(variable: impl Fn(&str) -> Option<String>) -> Result<Self, NoApi> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let host = set("KUBERNETES_SERVICE_HOST").ok_or(NoApi::Outside)?;
        let port = set("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".to_owned());
        let port = port.parse().map_err(|_| NoApi::Port(port))?;
        Ok(Self {
            is_tls: true,
            host,
            port,
            credentials: CREDENTIALS.into(),
            network: None,
        })
    }

    /// That of a URL, such as that of `kubectl proxy`.
    ///
    /// # Errors
    /// It is not a URL of a server.
    pub fn at(url: &str) -> Result<Self, NoApi> {
        let wrong = || NoApi::Url(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let is_tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err(wrong()),
        };
        if uri.path() != "/" || uri.query().is_some() {
            return Err(wrong());
        }
        let host = uri.host().ok_or_else(wrong)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Ok(Self {
            is_tls,
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
            credentials: CREDENTIALS.into(),
            network: None,
        })
    }

    /// With credentials from this directory.
    #[must_use]
    pub fn with_credentials(self, directory: &Path) -> Self {
        Self {
            credentials: directory.to_owned(),
            ..self
        }
    }

    /// Over another network than the machine's, if there is one.
    #[must_use]
    pub fn over(self, network: Option<Network>) -> Self {
        Self { network, ..self }
    }

    /// The namespace of the Pod in which this process runs.
    pub(super) async fn namespace(&self) -> Result<String, ApiError> {
        self.credential("namespace").await
    }

    /// Asks for a path; the answer is a success, and its body has not been read.
    pub(super) async fn get(&self, path: &str) -> Result<Incoming, ApiError> {
        let mut request = Request::get(path)
            .header(header::HOST, self.authority())
            .header(header::ACCEPT, "application/json")
            .header(
                header::USER_AGENT,
                concat!("inflight/", env!("CARGO_PKG_VERSION")),
            );
        // Never in plain text.
        if self.is_tls {
            let token = self.credential("token").await?;
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request
            .body(Empty::<Bytes>::new())
            .map_err(ApiError::Request)?;
        let connecting = timeout(CONNECT, self.connect()).await;
        let stream = connecting.map_err(|_| ApiError::Late(CONNECT))??;
        let asking = async {
            let mut builder = http1::Builder::new();
            builder.max_buf_size(MAX_HEAD_BYTES);
            let made = builder.handshake(TokioIo::new(stream)).await;
            let (mut sender, connection) = made.map_err(ApiError::Lost)?;
            // Ends with the answer, or once nobody wants it.
            tokio::spawn(connection);
            sender.send_request(request).await.map_err(ApiError::Lost)
        };
        let answered = timeout(HEAD, asking).await;
        let (head, body) = answered.map_err(|_| ApiError::Late(HEAD))??.into_parts();
        match head.status {
            StatusCode::OK => Ok(body),
            StatusCode::GONE => Err(ApiError::Gone),
            status => {
                let said = whole(body).await.unwrap_or_default();
                let message = events::message_of(&said);
                Err(ApiError::Refused { status, message })
            }
        }
    }

    /// Asks for a path, and reads the whole answer.
    pub(super) async fn get_whole(&self, path: &str) -> Result<Bytes, ApiError> {
        let body = self.get(path).await?;
        whole(body).await
    }

    fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    async fn connect(&self) -> Result<Box<dyn Socket>, ApiError> {
        let reached = Network::reach(self.network.as_ref(), &self.host, self.port).await;
        let stream = reached.map_err(ApiError::Unreachable)?;
        if !self.is_tls || self.network.is_some() {
            return Ok(stream);
        }
        let ca = self.credentials.join("ca.crt");
        // Read for each connection, as it is renewed, too.
        let tls = match blocking::run(move || ca.exists().then_some(ca)).await {
            Ok(Some(ca)) => WebTls::trusting(ca),
            _ => WebTls::default(),
        };
        let stream = tls.connect(&self.host, stream).await;
        Ok(Box::new(stream.map_err(|error| match error {
            HandshakeError::Failed { reason, .. } => ApiError::Handshake(reason),
            error => ApiError::Tls(error),
        })?))
    }

    async fn credential(&self, name: &str) -> Result<String, ApiError> {
        let path = self.credentials.join(name);
        let file = path.clone();
        let read = blocking::run(move || read_text(&file, MAX_FILE_BYTES)).await;
        // It fails only while the runtime ends.
        let read = read.unwrap_or_else(|error| Err(error.to_string()));
        match read {
            Ok(text) => Ok(text.trim().to_owned()),
            Err(reason) => Err(ApiError::Credentials { path, reason }),
        }
    }
}

async fn whole(mut body: Incoming) -> Result<Bytes, ApiError> {
    let reading = async {
        let mut content = bytes::BytesMut::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(ApiError::Lost)?.into_data() else {
                continue;
            };
            if content.len() + data.len() > MAX_ANSWER_BYTES {
                return Err(ApiError::TooLarge);
            }
            content.extend_from_slice(&data);
        }
        Ok(content.freeze())
    };
    let read = timeout(WHOLE, reading).await;
    read.map_err(|_| ApiError::Late(WHOLE))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_server_is_that_of_the_pod_or_of_a_url() {
        let variables = |name: &str| match name {
            "KUBERNETES_SERVICE_HOST" => Some("fd00::1".to_owned()),
            "KUBERNETES_SERVICE_PORT" => Some("6443".to_owned()),
            _ => None,
        };
        let api = Api::of_pod(variables).unwrap();
        assert_eq!(
            (api.authority().as_str(), api.is_tls),
            ("[fd00::1]:6443", true)
        );
        assert!(matches!(Api::of_pod(|_| None), Err(NoApi::Outside)));
        let api = Api::at("http://localhost:8001").unwrap();
        assert_eq!(
            (api.authority().as_str(), api.is_tls),
            ("localhost:8001", false)
        );
        assert_eq!(Api::at("https://[::1]").unwrap().authority(), "[::1]:443");
        for bad in ["", "localhost:8001", "ftp://a", "http://a/path", "http://"] {
            assert!(matches!(Api::at(bad), Err(NoApi::Url(_))), "{bad}");
        }
    }
}
