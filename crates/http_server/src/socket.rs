//! A socket with time limits: the peer must show in time which protocol it speaks, and a write
//! that makes no progress for too long fails. Owns these two timers; of HTTP it knows the one greeting.
//!
//! The protocol is found here, and not by hyper-util, which hands on what it has read by itself: hyper then reads a
//! request's head in two parts, and its buffer grows to twice the size for the life of the connection.
//!
//! A client that stopped reading keeps its response body from being polled, so no timer in the body
//! could see it; the socket can.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// What an HTTP/2 client says first.
const GREETING: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a peer speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// A stream with the two timers.
#[derive(Debug)]
pub(crate) struct GuardedSocket<S> {
    inner: S,
    /// What was read to find the protocol: from `taken` to `came` of it is to be read again.
    greeting: [u8; GREETING.len()],
    came: usize,
    taken: usize,
    write_stall: Duration,
    /// Armed while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
    write_waits: bool,
}

impl<S> GuardedSocket<S> {
    /// Guards `inner` from now on.
    pub(crate) fn new(inner: S, write_stall: Duration) -> Self {
        Self {
            inner,
            greeting: [0; GREETING.len()],
            came: 0,
            taken: 0,
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

impl<S: AsyncRead + Unpin> GuardedSocket<S> {
    /// Reads until it is known what the peer speaks. What was read is read again by who speaks it.
    ///
    /// # Errors
    /// The peer has not shown it within `limit`, has hung up, or its connection failed.
    pub(crate) async fn protocol(&mut self, limit: Duration) -> io::Result<Protocol> {
        let read = async {
            while self.came < GREETING.len() {
                let free = self.greeting.get_mut(self.came..).unwrap_or_default();
                let count = self.inner.read(free).await?;
                self.came += count;
                let is_greeting = GREETING.starts_with(self.unread());
                if count == 0 && self.came == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                if count == 0 || !is_greeting {
                    return Ok(Protocol::Http1);
                }
            }
            Ok(Protocol::Http2)
        };
        let read = tokio::time::timeout(limit, read).await;
        read.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    fn unread(&self) -> &[u8] {
        self.greeting.get(self.taken..self.came).unwrap_or_default()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let socket = &mut *self;
        let first = socket.unread();
        if first.is_empty() {
            return Pin::new(&mut socket.inner).poll_read(context, buffer);
        }
        let count = first.len().min(buffer.remaining());
        buffer.put_slice(first.get(..count).unwrap_or_default());
        socket.taken += count;
        if buffer.remaining() > 0 {
            // In one read with what follows. What it fails with is found again by the next one.
            let _ = Pin::new(&mut socket.inner).poll_read(context, buffer);
        }
        Poll::Ready(Ok(()))
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

    #[tokio::test(start_paused = true)]
    async fn a_peer_must_show_in_time_what_it_speaks() {
        let half = GREETING.split_at(GREETING.len() / 2);
        for (pieces, expected) in [
            (&[&b"a"[..]][..], Some(Protocol::Http1)),
            (&[b"PUT /"], Some(Protocol::Http1)),
            (&[b"PRI", b"X"], Some(Protocol::Http1)),
            (&[GREETING], Some(Protocol::Http2)),
            (&[half.0, half.1], Some(Protocol::Http2)),
            (&[half.0, half.1, b"more"], Some(Protocol::Http2)),
            (&[], None),
            (&[b"P"], None),
            (&[b"P", b"R"], None),
            (&[half.0], None),
        ] {
            let (mut peer, inner) = tokio::io::duplex(64);
            let mut socket = GuardedSocket::new(inner, STALL);
            let say = async {
                for piece in pieces {
                    peer.write_all(piece).await.unwrap();
                    tokio::time::sleep(FIRST / 10).await;
                }
            };
            let (found, ()) = tokio::join!(socket.protocol(FIRST), say);
            let found = found.map_err(|error| error.kind());
            assert_eq!(found, expected.ok_or(io::ErrorKind::TimedOut), "{pieces:?}");
            if expected.is_some() {
                // Who speaks it reads all of it, in one read.
                peer.write_all(b"!").await.unwrap();
                let mut read = [0; 64];
                let count = socket.read(&mut read).await.unwrap();
                assert_eq!(read[..count], [&pieces.concat()[..], b"!"].concat());
            }
        }
    }

    #[tokio::test]
    async fn a_peer_that_hangs_up_is_read_to_its_end() {
        for (said, expected) in [(&b""[..], None), (b"PRI", Some(Protocol::Http1))] {
            let (mut peer, inner) = tokio::io::duplex(64);
            let mut socket = GuardedSocket::new(inner, STALL);
            peer.write_all(said).await.unwrap();
            drop(peer);
            assert_eq!(socket.protocol(FIRST).await.ok(), expected);
            let mut read = Vec::new();
            socket.read_to_end(&mut read).await.unwrap();
            assert_eq!(read, said);
        }
    }

    #[tokio::test]
    async fn a_peer_that_reads_nothing_is_dropped_and_a_slow_one_is_not() {
        let (mut peer, inner) = tokio::io::duplex(4);
        let mut socket = GuardedSocket::new(inner, STALL);
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
