//! TLS for our ports and for our connections to servers: certificates and keys from PEM files, read again when they
//! change, and handshakes that end in time. Reads no options. Of HTTP it knows one answer, for who
//! speaks it in plain text.

mod client;
mod error;
mod files;
mod first_byte;
mod reloaded;
mod server;
mod web;

pub use tokio_rustls::client::TlsStream as ClientStream;

pub use self::client::{ClientFiles, ClientTls, HandshakeError};
pub use self::error::TlsError;
pub use self::first_byte::FirstByte;
pub use self::server::{ServerFiles, ServerStream, ServerTls};
pub use self::web::WebTls;

/// What a peer may speak, by its name in TLS (ALPN).
pub const HTTP2: &[u8] = b"h2";
/// See [`HTTP2`].
pub const HTTP1: &[u8] = b"http/1.1";
