//! The connections of a gRPC port, plain or over TLS, and how many there may be. Knows nothing of what they carry.

use std::io::{Error, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{Either, ready};
use futures_util::stream::{Stream, StreamExt};
use inflight_tls::{ServerStream, ServerTls};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tonic::transport::server::Connected;

use crate::net::{Connection as OfNetwork, Listener};

/// Accepting fails when file descriptors run out, and an immediate retry would only burn CPU.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// One connection and its place among those that there may be.
#[derive(Debug)]
pub struct Connection<S = TcpStream> {
    socket: Socket<S>,
    _place: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum Socket<S> {
    Plain(S),
    // A session is a kilobyte.
    Tls(Box<ServerStream<S>>),
}

/// Accepted connections, `limit` at once; one more is closed at once, so that its client learns of it. Without
/// Nagle's delay: each message is complete when it is written. With `tls`, one that fails its handshake is closed; a
/// slow one holds its own place alone.
pub fn accept<L: Listener>(
    listener: L,
    limit: usize,
    tls: Option<ServerTls>,
) -> impl Stream<Item = std::io::Result<Connection<L::Connection>>> {
    let accepted = accept_plain(listener, limit);
    let Some(tls) = tls else {
        return Either::Left(accepted.map(|(socket, place)| {
            Ok(Connection {
                socket: Socket::Plain(socket),
                _place: place,
            })
        }));
    };
    let shaken = accepted.map(move |(socket, place)| {
        let tls = tls.clone();
        async move {
            match tls.accept(socket).await {
                Ok(stream) => Some(Ok(Connection {
                    socket: Socket::Tls(Box::new(stream)),
                    _place: place,
                })),
                Err(reason) => {
                    tracing::debug!(%reason, "no TLS connection");
                    None
                }
            }
        }
    });
    Either::Right(shaken.buffer_unordered(limit.max(1)).filter_map(ready))
}

fn accept_plain<L: Listener>(
    listener: L,
    limit: usize,
) -> impl Stream<Item = (L::Connection, OwnedSemaphorePermit)> {
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
                return Some(((socket, place), (listener, places, was_full)));
            }
        },
    )
}

impl<S: OfNetwork> Connected for Connection<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> S::ConnectInfo {
        match &self.socket {
            Socket::Plain(socket) => socket.connect_info(),
            Socket::Tls(stream) => stream.get_ref().0.get_ref().connect_info(),
        }
    }
}

impl<S: OfNetwork> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), Error>> {
        match &mut self.socket {
            Socket::Plain(socket) => Pin::new(socket).poll_read(context, buffer),
            Socket::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl<S: OfNetwork> AsyncWrite for Connection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, Error>> {
        match &mut self.socket {
            Socket::Plain(socket) => Pin::new(socket).poll_write(context, bytes),
            Socket::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        match &mut self.socket {
            Socket::Plain(socket) => Pin::new(socket).poll_write_vectored(context, parts),
            Socket::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.socket {
            Socket::Plain(socket) => socket.is_write_vectored(),
            Socket::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match &mut self.socket {
            Socket::Plain(socket) => Pin::new(socket).poll_flush(context),
            Socket::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        match &mut self.socket {
            Socket::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Socket::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
