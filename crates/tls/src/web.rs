//! TLS of connections to the web, which files are fetched from: any host that an authority of this machine's vouches
//! for.

use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::client::server_name;
use crate::files::{provider, system_authorities};
use crate::{HTTP1, HandshakeError, TlsError};

/// TLS for HTTP/1.1 on the web. Cheap to clone; the first connection reads the machine's authorities.
#[derive(Clone, Debug, Default)]
pub struct WebTls(Arc<OnceLock<Arc<ClientConfig>>>);

impl WebTls {
    /// Makes a TLS stream of a connection to `host`, a name or an address. The caller bounds its time.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub async fn connect<S>(&self, host: &str, stream: S) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = server_name(host)?;
        let config = match self.0.get() {
            Some(config) => Arc::clone(config),
            None => {
                let made = tokio::task::spawn_blocking(config).await;
                // It fails only while the runtime ends.
                let made = made.unwrap_or(Err(TlsError::NoAuthorities))?;
                Arc::clone(self.0.get_or_init(|| Arc::new(made)))
            }
        };
        let connected = TlsConnector::from(config).connect(name, stream).await;
        connected.map_err(|reason| HandshakeError::Failed {
            server: host.to_owned(),
            reason,
        })
    }
}

fn config() -> Result<ClientConfig, TlsError> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .with_root_certificates(system_authorities()?)
        .with_no_client_auth();
    config.alpn_protocols = vec![HTTP1.to_vec()];
    Ok(config)
}
