//! What the options say of TLS: which files our ports and our connections to servers are set up with.

use inflight_tls::{ClientFiles, ClientTls, HandshakeError, ServerFiles, ServerTls, TlsError};

use crate::options::GatewayOptions;

/// TLS of our ports; `None`: they speak plain text.
///
/// # Errors
/// A file cannot be used.
pub(crate) fn of_ports(options: &GatewayOptions) -> Result<Option<ServerTls>, TlsError> {
    // Both or neither are given: each requires the other.
    let (Some(certificate), Some(key)) = (&options.tls_certificate, &options.tls_key) else {
        return Ok(None);
    };
    let files = ServerFiles {
        certificate: certificate.clone(),
        key: key.clone(),
        client_ca: options.tls_client_ca.clone(),
    };
    ServerTls::load(files).map(Some)
}

/// TLS of our connections to servers that speak it.
///
/// # Errors
/// A file cannot be used, or the name is invalid.
pub(crate) fn of_upstream(options: &GatewayOptions) -> Result<ClientTls, HandshakeError> {
    let certificate = options.upstream_certificate.clone();
    ClientTls::load(ClientFiles {
        ca: options.upstream_ca.clone(),
        identity: certificate.zip(options.upstream_key.clone()),
        server_name: options.upstream_server_name.clone(),
    })
}
