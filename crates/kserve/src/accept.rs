//! The connections of a gRPC port, and how many there may be. Knows nothing of what they carry.

use std::io::{Error, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Accepting fails when file descriptors run out, and an immediate retry would only burn CPU.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// One connection and its place among those that there may be.
#[derive(Debug)]
pub struct Connection {
    socket: TcpStream,
    _place: OwnedSemaphorePermit,
}

/// Accepted connections, `limit` at once; one more is closed at once, so that its client learns of it. Without
/// Nagle's delay: each message is complete when it is written.
pub fn accept(
    listener: TcpListener,
    limit: usize,
) -> impl Stream<Item = std::io::Result<Connection>> {
    let places = Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
    futures_util::stream::unfold(
        (listener, places, false),
        move |(listener, places, mut was_full)| async move {
            loop {
                let socket = match listener.accept().await {
                    Ok((socket, _)) => socket,
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        sleep(ACCEPT_RETRY).await;
                        continue;
                    }
                };
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                    // Once, however many come.
                    if !was_full {
                        tracing::warn!(limit, "too many connections; new ones are closed");
                    }
                    was_full = true;
                    continue;
                };
                was_full = false;
                if let Err(error) = socket.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY not set");
                }
                let connection = Connection {
                    socket,
                    _place: place,
                };
                return Some((Ok(connection), (listener, places, was_full)));
            }
        },
    )
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.socket.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, Error>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
