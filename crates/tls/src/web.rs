//! TLS of connections to any host that an authority of this machine's vouches for: the web, which files are fetched
//! from, and databases; or for a server with authorities in a file.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::client::server_name;
use crate::files::{authorities, provider, system_authorities};
use crate::{HTTP1, HandshakeError, TlsError};

/// TLS by the authorities of this machine. Cheap to clone; the first connection reads them.
#[derive(Clone, Debug)]
pub struct WebTls {
    config: Arc<OnceLock<Arc<ClientConfig>>>,
    /// What is spoken; `None`: what the port is for.
    speaks: Option<&'static [u8]>,
    /// `None`: the machine's.
    authorities: Option<PathBuf>,
}

impl Default for WebTls {
    /// For HTTP/1.1.
    fn default() -> Self {
        Self {
            config: Arc::default(),
            speaks: Some(HTTP1),
            authorities: None,
        }
    }
}

impl WebTls {
    /// For a port that speaks one protocol.
    pub fn of_one_protocol() -> Self {
        Self {
            config: Arc::default(),
            speaks: None,
            authorities: None,
        }
    }

    /// For HTTP/1.1, by the authorities in this PEM file alone.
    pub fn trusting(authorities: PathBuf) -> Self {
        Self {
            authorities: Some(authorities),
            ..Self::default()
        }
    }

    /// Makes a TLS stream of a connection to `host`, a name or an address. The caller bounds its time.
    ///
    /// # Errors
    /// [`HandshakeError`].
    #[allow(
        clippy::disallowed_methods,
        reason = "`inflight_base`, which has the place for it, uses this crate"
    )]
    pub async fn connect<S>(&self, host: &str, stream: S) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = server_name(host)?;
        let config = match self.config.get() {
            Some(config) => Arc::clone(config),
            None => {
                let (speaks, authorities) = (self.speaks, self.authorities.clone());
                let make = move || config(speaks, authorities.as_deref());
                let made = tokio::task::spawn_blocking(make).await;
                // It fails only while the runtime ends.
                let made = made.unwrap_or(Err(TlsError::NoAuthorities))?;
                Arc::clone(self.config.get_or_init(|| Arc::new(made)))
            }
        };
        let connected = TlsConnector::from(config).connect(name, stream).await;
        connected.map_err(|reason| HandshakeError::Failed {
            server: host.to_owned(),
            reason,
        })
    }
}

fn config(speaks: Option<&'static [u8]>, own: Option<&Path>) -> Result<ClientConfig, TlsError> {
    let roots = match own {
        Some(path) => authorities(path)?,
        None => system_authorities()?,
    };
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = speaks.map(<[u8]>::to_vec).into_iter().collect();
    Ok(config)
}
