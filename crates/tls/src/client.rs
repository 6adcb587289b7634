//! Our connections to servers: whom we trust, and who we are. Owns what a failed handshake means and how to fix
//! it.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, AlertDescription, CertificateError, ClientConfig};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::files::{Identity, authorities, provider, system_authorities};
use crate::reloaded::Reloaded;
use crate::{HTTP2, TlsError};

/// What connections are set up with, as PEM files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// Authorities of servers; by default, those that this machine trusts.
    pub ca: Option<PathBuf>,
    /// Our own certificate and its key, for servers that ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// What servers' certificates call them, where that is not the host of their address.
    pub server_name: Option<String>,
}

/// TLS of our connections. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ClientTls(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    files: ClientFiles,
    name: Option<ServerName<'static>>,
    config: OnceLock<Arc<Reloaded<ClientConfig>>>,
}

/// Why there is no TLS connection.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error(transparent)]
    Files(#[from] TlsError),
    #[error("`{0}` is not a name that a certificate can have")]
    Name(String),
    #[error("the TLS handshake with `{server}` failed: {reason}{}", advice(.reason))]
    Failed {
        server: String,
        reason: std::io::Error,
    },
    #[error("`{0}` does not speak HTTP/2 over TLS, which gRPC needs")]
    NoHttp2(String),
}

impl ClientTls {
    /// Reads `files`, which are read again when they change. The machine's own authorities are read by the first
    /// connection.
    ///
    /// # Errors
    /// A file cannot be used, or the name is invalid.
    pub fn load(files: ClientFiles) -> Result<Self, HandshakeError> {
        let name = files.server_name.as_deref().map(server_name).transpose()?;
        let is_given = files.ca.is_some() || files.identity.is_some();
        let inner = Inner {
            files,
            name,
            config: OnceLock::new(),
        };
        if is_given {
            inner.config()?;
        }
        Ok(Self(Arc::new(inner)))
    }

    /// Makes a TLS stream that speaks HTTP/2 of a connection to `host`, a name or an address. The caller bounds its
    /// time.
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
        let name = match &self.0.name {
            Some(name) => name.clone(),
            None => server_name(host)?,
        };
        let config = match self.0.config.get() {
            Some(config) => Arc::clone(config),
            None => {
                let inner = Arc::clone(&self.0);
                let read = tokio::task::spawn_blocking(move || inner.config()).await;
                // It fails only while the runtime ends.
                read.unwrap_or(Err(TlsError::NoAuthorities))?
            }
        };
        let server = name.to_str().into_owned();
        let connector = TlsConnector::from(config.newest().await);
        match connector.connect(name, stream).await {
            Ok(stream) if stream.get_ref().1.alpn_protocol() == Some(HTTP2) => Ok(stream),
            Ok(_) => Err(HandshakeError::NoHttp2(server)),
            Err(reason) => Err(HandshakeError::Failed { server, reason }),
        }
    }
}

impl Inner {
    fn config(&self) -> Result<Arc<Reloaded<ClientConfig>>, TlsError> {
        if let Some(config) = self.config.get() {
            return Ok(Arc::clone(config));
        }
        let files = self.files.clone();
        let own = files
            .identity
            .iter()
            .flat_map(|(certificate, key)| [certificate, key]);
        let named = files.ca.iter().chain(own).cloned().collect();
        let made = Reloaded::new(named, move || config(&files))?;
        Ok(Arc::clone(self.config.get_or_init(|| made)))
    }
}

fn config(files: &ClientFiles) -> Result<ClientConfig, TlsError> {
    let roots = match &files.ca {
        Some(path) => authorities(path)?,
        None => system_authorities()?,
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .with_root_certificates(roots);
    let mut config = match &files.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => Identity::read(certificate, key)?
            .build(|chain, key| builder.with_client_auth_cert(chain, key))?,
    };
    config.alpn_protocols = vec![HTTP2.to_vec()];
    Ok(config)
}

pub(crate) fn server_name(host: &str) -> Result<ServerName<'static>, HandshakeError> {
    let name = ServerName::try_from(host.to_owned());
    name.map_err(|_| HandshakeError::Name(host.to_owned()))
}

/// What to do about a failure, where that is known.
fn advice(error: &std::io::Error) -> &'static str {
    use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage};
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    match cause {
        // Another authority of the same name gives the second.
        Some(InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        )) => "; pass the authority that signed its certificate with `--upstream-ca`",
        Some(InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => "; pass a name that its certificate contains with `--upstream-server-name`",
        Some(InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        )) => "; renew its certificate",
        Some(InvalidMessage(_)) => {
            "; it may not use TLS: if so, write its address without `https://`"
        }
        Some(AlertReceived(
            AlertDescription::CertificateRequired | AlertDescription::HandshakeFailure,
        )) => "; it may require a certificate: pass one with `--upstream-certificate`",
        _ => "",
    }
}
