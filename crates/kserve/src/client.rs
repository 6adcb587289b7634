//! How both ends of the wire connect: socket and HTTP/2 settings, TLS, and message limits. Knows nothing of
//! models or requests.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use inflight_tls::{ClientStream, ClientTls};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint, Server};

use crate::assets::model_assets_client::ModelAssetsClient;
use crate::cache_state::cache_state_client::CacheStateClient;
use crate::inference::grpc_inference_service_client::GrpcInferenceServiceClient;

/// A client of the inference service on one connection.
pub type InferenceClient = GrpcInferenceServiceClient<Channel>;

/// Largest message either way by default, in bytes.
pub const DEFAULT_MAX_MESSAGE_BYTES: usize = 64 << 20;

/// Settings of a connection, for the client's and the server's side alike.
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// How long connecting over TCP and HTTP/2 may take. Short, because workers are near and a request
    /// waits.
    pub connect_timeout: Duration,
    /// A silent connection is probed this often, so that a worker that vanished without a FIN is
    /// noticed while requests wait on it.
    pub keep_alive_interval: Duration,
    /// How long a probe's answer may take before the connection counts as lost.
    pub keep_alive_timeout: Duration,
    /// Bytes that a peer may send on one stream before we read them. A step message of 1,000 rows is about
    /// 25 KB, so with HTTP/2's default of 64 KiB the sender would stop for a window update at every other
    /// iteration. 4 MiB holds over a hundred iterations and still bounds an unread stream.
    pub stream_window_bytes: u32,
    /// The same for the connection as a whole. Room for several full streams, so that one unread
    /// stream does not stop the others.
    pub connection_window_bytes: u32,
    /// Largest message that is read or written.
    pub max_message_bytes: usize,
    /// For servers whose address starts with `https://`. By default, those that this machine trusts.
    pub tls: ClientTls,
    /// `None`: over the machine's TCP.
    pub network: Option<Network>,
}

/// Another network than the machine's TCP: a simulation's. It carries plain text only.
#[derive(Clone)]
pub struct Network(Arc<Dial>);

type Dial = dyn Fn(&str, u16) -> Dialing + Send + Sync;

/// A connection that is being made.
pub type Dialing = Pin<Box<dyn Future<Output = std::io::Result<Box<dyn Socket>>> + Send>>;

/// Bytes both ways.
pub trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

impl Network {
    /// `dial` connects to a host and a port.
    pub fn new(dial: impl Fn(&str, u16) -> Dialing + Send + Sync + 'static) -> Self {
        Self(Arc::new(dial))
    }

    /// Connects to a server that is spoken to without gRPC, over `network` or the machine's TCP.
    ///
    /// # Errors
    /// As the network has it.
    pub async fn reach(
        network: Option<&Self>,
        host: &str,
        port: u16,
    ) -> std::io::Result<Box<dyn Socket>> {
        match network {
            Some(network) => network.dial(host, port).await,
            None => {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "one of two places where connections to servers are opened"
                )]
                let socket = TcpStream::connect((host, port)).await?;
                // Or what is sent after a handshake waits for the peer's delayed ACK: a subscription 40 ms, in which
                // what is published is missed.
                socket.set_nodelay(true)?;
                Ok(Box::new(socket))
            }
        }
    }

    /// Connects.
    pub fn dial(&self, host: &str, port: u16) -> Dialing {
        (self.0)(host, port)
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Network")
    }
}

impl Default for TransportOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            keep_alive_interval: Duration::from_secs(10),
            keep_alive_timeout: Duration::from_secs(10),
            stream_window_bytes: 4 << 20,
            connection_window_bytes: 32 << 20,
            max_message_bytes: DEFAULT_MAX_MESSAGE_BYTES,
            tls: ClientTls::default(),
            network: None,
        }
    }
}

/// Why a connection could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("`{address}` is not a worker address; write it as `HOST:PORT` or `https://HOST:PORT`")]
    Address {
        address: String,
        source: tonic::transport::Error,
    },
    #[error("cannot connect to `{address}`; check that a worker is running there")]
    Connect {
        address: String,
        source: tonic::transport::Error,
    },
}

impl ConnectError {
    /// Whether the server's machine said nothing in time: it did not refuse.
    pub fn is_silence(&self) -> bool {
        let Self::Connect { source, .. } = self else {
            return false;
        };
        let mut cause: Option<&dyn std::error::Error> = Some(source);
        while let Some(error) = cause {
            let io = error.downcast_ref::<std::io::Error>();
            if io.is_some_and(|io| io.kind() == std::io::ErrorKind::TimedOut) {
                return true;
            }
            cause = error.source();
        }
        false
    }
}

/// What an address that is reached over TLS starts with.
pub const HTTPS: &str = "https://";

/// Where and how to connect.
#[derive(Clone, Debug)]
pub struct Target {
    endpoint: Endpoint,
    way: Way,
}

/// What carries the bytes.
#[derive(Clone, Debug)]
enum Way {
    Tcp,
    Tls(TlsConnector),
    Other(OtherConnector),
}

impl Target {
    /// `address` is `HOST:PORT`, with `http://`, `https://` or nothing before it.
    ///
    /// # Errors
    /// [`ConnectError::Address`].
    pub fn new(address: &str, options: &TransportOptions) -> Result<Self, ConnectError> {
        let way = match &options.network {
            Some(network) => Way::Other(OtherConnector(network.clone())),
            None if address.starts_with(HTTPS) => Way::Tls(TlsConnector(options.tls.clone())),
            None => Way::Tcp,
        };
        Ok(Self {
            endpoint: endpoint(address, options)?,
            way,
        })
    }

    /// The same with other settings of HTTP/2.
    #[must_use]
    pub fn map(self, change: impl FnOnce(Endpoint) -> Endpoint) -> Self {
        Self {
            endpoint: change(self.endpoint),
            way: self.way,
        }
    }

    /// Connects now.
    ///
    /// # Errors
    /// It cannot.
    pub async fn connect(&self) -> Result<Channel, tonic::transport::Error> {
        match &self.way {
            Way::Tcp => self.endpoint.connect().await,
            Way::Tls(tls) => self.endpoint.connect_with_connector(tls.clone()).await,
            Way::Other(other) => self.endpoint.connect_with_connector(other.clone()).await,
        }
    }

    /// Connects when it is first used, and again whenever it must. Needs a tokio runtime.
    pub fn connect_lazy(&self) -> Channel {
        match &self.way {
            Way::Tcp => self.endpoint.connect_lazy(),
            Way::Tls(tls) => self.endpoint.connect_with_connector_lazy(tls.clone()),
            Way::Other(other) => self.endpoint.connect_with_connector_lazy(other.clone()),
        }
    }
}

/// Opens connections over TLS. How long that may take is the endpoint's.
#[derive(Clone, Debug)]
struct TlsConnector(ClientTls);

impl Service<Uri> for TlsConnector {
    type Response = TokioIo<ClientStream<TcpStream>>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let tls = self.0.clone();
        Box::pin(async move {
            // An IPv6 address has brackets in a URI, and nowhere else.
            let host = uri.host().unwrap_or_default();
            let host = host.trim_start_matches('[').trim_end_matches(']');
            #[expect(
                clippy::disallowed_methods,
                reason = "one of two places where connections to servers are opened"
            )]
            let socket = TcpStream::connect((host, uri.port_u16().unwrap_or(443))).await?;
            socket.set_nodelay(true)?;
            Ok(TokioIo::new(tls.connect(host, socket).await?))
        })
    }
}

/// Opens connections over another network.
#[derive(Clone, Debug)]
struct OtherConnector(Network);

impl Service<Uri> for OtherConnector {
    type Response = TokioIo<Box<dyn Socket>>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dialing = self
            .0
            .dial(uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(80));
        Box::pin(async move { Ok(TokioIo::new(dialing.await?)) })
    }
}

fn endpoint(address: &str, options: &TransportOptions) -> Result<Endpoint, ConnectError> {
    let wrong = |source| ConnectError::Address {
        address: address.to_owned(),
        source,
    };
    // Over TLS, too: tonic wants to do TLS itself for an endpoint of `https`, where other parts of the program make
    // it do theirs. Requests name `https`.
    let uri = match address.split_once("://") {
        Some((_, rest)) => format!("http://{rest}"),
        None => format!("http://{address}"),
    };
    let mut endpoint = Endpoint::from_shared(uri).map_err(wrong)?;
    if address.starts_with(HTTPS) {
        let origin = Endpoint::from_shared(address.to_owned()).map_err(wrong)?;
        endpoint = endpoint.origin(origin.uri().clone());
    }
    Ok(endpoint
        // Each message is complete when it is written; Nagle could only delay it.
        .tcp_nodelay(true)
        .connect_timeout(options.connect_timeout)
        .http2_keep_alive_interval(options.keep_alive_interval)
        .keep_alive_timeout(options.keep_alive_timeout)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(options.stream_window_bytes)
        .initial_connection_window_size(options.connection_window_bytes))
}

/// Connects to a worker.
///
/// ```no_run
/// use inflight_kserve::client::{TransportOptions, connect, inference_client};
/// use inflight_kserve::inference::ServerReadyRequest;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let options = TransportOptions::default();
/// let channel = connect("localhost:8001", &options).await?;
/// let mut client = inference_client(channel, &options);
/// let answer = client.server_ready(ServerReadyRequest {}).await?;
/// println!("ready: {}", answer.into_inner().ready);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ConnectError`].
pub async fn connect(address: &str, options: &TransportOptions) -> Result<Channel, ConnectError> {
    Target::new(address, options)?
        .connect()
        .await
        .map_err(|source| ConnectError::Connect {
            address: address.to_owned(),
            source,
        })
}

/// The inference service over a channel, with the options' message limit.
pub fn inference_client(channel: Channel, options: &TransportOptions) -> InferenceClient {
    GrpcInferenceServiceClient::new(channel)
        .max_decoding_message_size(options.max_message_bytes)
        .max_encoding_message_size(options.max_message_bytes)
}

/// The asset service over a channel. Its files come in chunks, so tonic's own limit is enough.
pub fn assets_client(channel: Channel) -> ModelAssetsClient<Channel> {
    ModelAssetsClient::new(channel)
}

/// A client of the cache state on the same connection.
pub fn cache_state_client(channel: Channel) -> CacheStateClient<Channel> {
    CacheStateClient::new(channel)
}

/// A server with the same settings. Message limits belong to its services; TCP_NODELAY to the
/// listener where the caller brings its own (`TcpIncoming::with_nodelay`).
pub fn server(options: &TransportOptions) -> Server {
    Server::builder()
        .tcp_nodelay(true)
        .http2_keepalive_interval(Some(options.keep_alive_interval))
        .http2_keepalive_timeout(Some(options.keep_alive_timeout))
        .initial_stream_window_size(options.stream_window_bytes)
        .initial_connection_window_size(options.connection_window_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_and_without_a_scheme() {
        let options = TransportOptions::default();
        for (address, uri) in [
            ("localhost:8001", "http://localhost:8001/"),
            ("http://10.0.0.7:8001", "http://10.0.0.7:8001/"),
            ("[::1]:8001", "http://[::1]:8001/"),
            ("https://triton:8001", "http://triton:8001/"),
        ] {
            let endpoint = endpoint(address, &options).unwrap();
            assert_eq!(endpoint.uri().to_string(), uri);
            assert!(endpoint.get_tcp_nodelay());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_says_nothing_is_not_one_that_refuses() {
        let refuses = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        for (network, is_silent) in [
            (Network::new(|_, _| Box::pin(std::future::pending())), true),
            (
                Network::new(move |_, _| Box::pin(async move { Err(refuses()) })),
                false,
            ),
        ] {
            let options = TransportOptions {
                network: Some(network),
                ..TransportOptions::default()
            };
            let error = connect("server:1", &options).await.unwrap_err();
            assert_eq!(error.is_silence(), is_silent, "{error:?}");
        }
    }

    #[test]
    fn a_bad_address_is_named() {
        let error = endpoint("not an address", &TransportOptions::default()).unwrap_err();
        assert!(error.to_string().contains("`not an address`"), "{error}");
    }
}
