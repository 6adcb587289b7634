//! Where clients connect, and the limits of their connections. Plain values, which do not know who keeps to them.

use std::time::Duration;

use inflight_tls::ServerTls;
use tokio::net::TcpListener;

/// Where clients connect, and how.
#[derive(Debug)]
pub struct Port<L = TcpListener> {
    pub listener: L,
    /// `None`: in plain text.
    pub tls: Option<ServerTls>,
}

/// Limits of one connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Connections at once. One more, and the idlest is closed; if all have requests, a few more get
    /// health checks answered, and the rest wait in the kernel's backlog.
    pub max_connections: usize,
    /// A request's head must be complete within this, idle time on a kept-alive connection included. Over
    /// HTTP/2 a connection without requests ends after this, whatever else it sends.
    pub header_timeout: Duration,
    /// A write that makes no progress for this long ends the connection, and with it its requests; a
    /// response over HTTP/2 that makes none ends its stream.
    pub write_stall: Duration,
}
