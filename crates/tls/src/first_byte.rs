//! A stream whose first byte must be TLS's. Where it is not, rustls would answer with an alert, which nobody reads
//! who does not speak TLS; so it never gets to see such bytes.

use std::io::{Error, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What every handshake starts with: the type of its record.
const HANDSHAKE: u8 = 0x16;

/// The stream, which fails if its first byte is another.
#[derive(Debug)]
pub struct FirstByte<S> {
    inner: S,
    is_known: bool,
}

/// The peer does not speak TLS.
#[derive(Debug, thiserror::Error)]
#[error("the peer does not speak TLS")]
pub(crate) struct NoTls;

impl<S> FirstByte<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self {
            inner,
            is_known: false,
        }
    }

    /// The stream below.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    pub(crate) fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstByte<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), Error>> {
        if self.is_known {
            return Pin::new(&mut self.inner).poll_read(context, buffer);
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        match buffer.filled().get(before) {
            Some(&HANDSHAKE) => self.is_known = true,
            Some(_) => return Poll::Ready(Err(Error::new(ErrorKind::InvalidData, NoTls))),
            // Closed without a word.
            None => {}
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstByte<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, Error>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
