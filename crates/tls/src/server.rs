//! Our own ports: a certificate, and who may connect. Owns how long a handshake may take.

use std::io::{Error, ErrorKind};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::{Acceptor, WebPkiClientVerifier};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use crate::files::{Identity, authorities, provider};
use crate::first_byte::{FirstByte, NoTls};
use crate::reloaded::Reloaded;
use crate::{HTTP1, HTTP2, TlsError};

/// Three round trips and some milliseconds of work; who needs longer holds a place for nothing.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Most clients without TLS speak HTTP here, and get to read why it does not work.
const PLAIN_HTTP: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\
    Content-Length: 57\r\n\r\nThis port speaks HTTPS: use `https://` in place of http.\n";

/// What a port is set up with, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// The port's certificate, then those that lead to its authority.
    pub certificate: PathBuf,
    /// The certificate's private key, without a passphrase.
    pub key: PathBuf,
    /// Client CA certificates: only clients with a certificate that one of them signed may connect.
    pub client_ca: Option<PathBuf>,
}

/// A client's stream over TLS.
pub type ServerStream<S> = TlsStream<FirstByte<S>>;

/// TLS of a port. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ServerTls(Arc<Reloaded<ServerConfig>>);

impl ServerTls {
    /// Reads `files`, which are read again when they change.
    ///
    /// # Errors
    /// [`TlsError`]: one cannot be used.
    pub fn load(files: ServerFiles) -> Result<Self, TlsError> {
        let named = [&files.certificate, &files.key];
        let named = named.into_iter().chain(&files.client_ca).cloned();
        Reloaded::new(named.collect(), move || config(&files)).map(Self)
    }

    /// Makes a TLS stream of one that a client has just opened.
    ///
    /// # Errors
    /// The client does not speak TLS, accepts nothing that we offer, has no certificate where one is asked for, or
    /// takes too long.
    pub async fn accept<S>(&self, stream: S) -> Result<ServerStream<S>, Error>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let handshake = async {
            let mut start = pin!(LazyConfigAcceptor::new(
                Acceptor::default(),
                FirstByte::new(stream)
            ));
            match start.as_mut().await {
                Ok(start) => start.into_stream(self.0.newest().await).await,
                Err(error) => {
                    if is_no_tls(&error)
                        && let Some(stream) = start.take_io()
                    {
                        let mut stream = stream.into_inner();
                        stream.write_all(PLAIN_HTTP).await?;
                        stream.shutdown().await?;
                    }
                    Err(error)
                }
            }
        };
        let done = timeout(HANDSHAKE, handshake).await;
        done.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::TimedOut,
                "the TLS handshake took too long",
            ))
        })
    }
}

/// Whether the first bytes were no part of TLS.
fn is_no_tls(error: &Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<NoTls>())
}

fn config(files: &ServerFiles) -> Result<ServerConfig, TlsError> {
    let identity = Identity::read(&files.certificate, &files.key)?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(authorities(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
            let verifier = verifier.map_err(|source| TlsError::ClientAuthority {
                path: path.clone(),
                source,
            })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = identity.build(|chain, key| builder.with_single_cert(chain, key))?;
    config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
    Ok(config)
}
