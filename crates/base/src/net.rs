//! What a server needs of the network that its clients come from: connections, one after another, and to learn that a
//! peer has hung up. The machine's TCP is one; a simulation has its own. Knows nothing of what connections carry.

use std::io::Result;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::server::Connected;

use crate::hang_up::{HangUp, WatchedStream, watch};

/// A port on which clients connect.
pub trait Listener: Send + Sync + 'static {
    type Connection: Connection;

    /// The next connection and its peer, without Nagle's delay.
    ///
    /// # Errors
    /// There was one, and it could not be accepted.
    fn accept(&self) -> impl Future<Output = Result<(Self::Connection, SocketAddr)>> + Send;
}

/// A connection that was accepted.
pub trait Connection:
    AsyncRead + AsyncWrite + Connected<ConnectInfo: Clone + Sync> + Unpin + Send + 'static
{
    /// The connection for who reads and writes it; shut down when dropped.
    type Watched: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// The connection for who watches.
    type HangUp: Ending;

    /// Both shares of the connection.
    fn watch(self) -> (Self::Watched, Self::HangUp);
}

/// Notices that a connection ends, though nobody reads it.
pub trait Ending: Send + Sync + 'static {
    /// Resolves once the peer has ended its side or reset the connection, whatever is still unread. Where the network
    /// does not report it, never.
    fn noticed(&self) -> impl Future<Output = ()> + Send;
}

impl Listener for TcpListener {
    type Connection = TcpStream;

    async fn accept(&self) -> Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = Self::accept(self).await?;
        // Without it a kept-alive client waits for its own delayed ACK: 40 ms to the first token.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        Ok((stream, peer))
    }
}

impl Connection for TcpStream {
    type Watched = WatchedStream;
    type HangUp = HangUp;

    fn watch(self) -> (WatchedStream, HangUp) {
        watch(self)
    }
}

impl Ending for HangUp {
    async fn noticed(&self) {
        Self::noticed(self).await;
    }
}
