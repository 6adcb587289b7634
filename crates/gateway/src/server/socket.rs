//! A socket with time limits: the peer must show in time which protocol it speaks, and a write
//! that makes no progress for too long fails. Owns these two timers; of HTTP it knows the one greeting.
//!
//! Code that reads the greeting of HTTP/2 to detect the version waits for the rest of it as long as it
//! may be one; all timers of HTTP itself run afterwards only.
//!
//! A client that stopped reading keeps its response body from being polled, so no timer in the body
//! could see it; the socket can.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// What an HTTP/2 client says first.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream with the two timers.
#[derive(Debug)]
pub(crate) struct GuardedSocket<S> {
    inner: S,
    /// Until the protocol is known; `None` afterwards.
    protocol: Option<Pin<Box<Sleep>>>,
    /// Bytes of the greeting that have come.
    greeted: usize,
    write_stall: Duration,
    /// Armed while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
    write_waits: bool,
}

impl<S> GuardedSocket<S> {
    /// Guards `inner` from now on.
    pub(crate) fn new(inner: S, protocol: Duration, write_stall: Duration) -> Self {
        let protocol = Some(Box::pin(tokio::time::sleep(protocol)));
        Self {
            inner,
            protocol,
            greeted: 0,
            write_stall,
            stalled: None,
            write_waits: false,
        }
    }

    fn watch_write<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.write_waits = false;
            return result;
        }
        let deadline = Instant::now() + self.write_stall;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if !self.write_waits {
            // The timer is kept between waits and only set again.
            self.write_waits = true;
            stalled.as_mut().reset(deadline);
        }
        match stalled.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let socket = &mut *self;
        let before = buffer.filled().len();
        let result = Pin::new(&mut socket.inner).poll_read(context, buffer);
        let Some(timer) = &mut socket.protocol else {
            return result;
        };
        if result.is_ready() {
            let came = buffer.filled().get(before..).unwrap_or_default();
            let rest = GREETING.get(socket.greeted..).unwrap_or_default();
            socket.greeted += came.len();
            if came.is_empty() || came.len() >= rest.len() || !rest.starts_with(came) {
                socket.protocol = None;
            }
        } else if timer.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GuardedSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.watch_write(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(context, buffers);
        self.watch_write(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_flush(context);
        self.watch_write(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const FIRST: Duration = Duration::from_millis(50);
    const STALL: Duration = Duration::from_millis(400);

    #[tokio::test]
    async fn a_peer_that_says_nothing_is_dropped() {
        let (_peer, inner) = tokio::io::duplex(16);
        let mut socket = GuardedSocket::new(inner, FIRST, STALL);
        let error = socket.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_peer_may_be_silent_once_it_is_known_what_it_speaks() {
        let half = GREETING.split_at(GREETING.len() / 2);
        for (pieces, known) in [
            (&[&b"a"[..]][..], true),
            (&[b"PUT"], true),
            (&[b"PRI", b"X"], true),
            (&[GREETING], true),
            (&[half.0, half.1], true),
            (&[GREETING, b"a"], true),
            (&[b"P"], false),
            (&[b"P", b"R"], false),
            (&[half.0], false),
        ] {
            let (mut peer, inner) = tokio::io::duplex(64);
            let mut socket = GuardedSocket::new(inner, FIRST, STALL);
            for piece in pieces {
                peer.write_all(piece).await.unwrap();
                let mut read = vec![0; piece.len()];
                socket.read_exact(&mut read).await.unwrap();
            }
            let waited = tokio::time::timeout(FIRST * 3, socket.read_u8()).await;
            assert_eq!(waited.is_err(), known, "{pieces:?}: still waiting");
        }
    }

    #[tokio::test]
    async fn a_peer_that_reads_nothing_is_dropped_and_a_slow_one_is_not() {
        let (mut peer, inner) = tokio::io::duplex(4);
        let mut socket = GuardedSocket::new(inner, FIRST, STALL);
        let reader = tokio::spawn(async move {
            for _ in 0..8 {
                tokio::time::sleep(STALL / 4).await;
                let mut bytes = [0; 4];
                peer.read_exact(&mut bytes).await.unwrap();
            }
            peer
        });
        socket.write_all(&[0; 32]).await.unwrap();
        let _peer = reader.await.unwrap();
        let error = socket.write_all(&[0; 16]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
