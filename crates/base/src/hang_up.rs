//! A TCP stream that one party reads and writes while another watches for its end. Knows nothing of
//! HTTP.
//!
//! hyper reads nothing while a request is being handled and bytes of the next one are there already: it
//! sees neither the end nor the reset of such a connection, and the work would continue for nobody. The
//! kernel reports both without a read.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// The stream for who reads and writes it; shut down when dropped.
#[derive(Debug)]
pub struct WatchedStream {
    /// A half for its own, which knows after a read whether more is there: shared, it would have to ask the kernel.
    read: OwnedReadHalf,
    write: Arc<OwnedWriteHalf>,
}

/// The stream for who watches.
#[derive(Debug)]
pub struct HangUp(Arc<OwnedWriteHalf>);

/// Both shares of `stream`.
pub fn watch(stream: TcpStream) -> (WatchedStream, HangUp) {
    let (read, write) = stream.into_split();
    let write = Arc::new(write);
    let hang_up = HangUp(Arc::clone(&write));
    (WatchedStream { read, write }, hang_up)
}

impl HangUp {
    /// Resolves once the peer has ended its side or reset the connection, whatever is still unread.
    /// Where the system does not report it, never.
    pub async fn noticed(&self) {
        #[cfg(target_os = "linux")]
        {
            use tokio::io::Interest;
            // Comes with urgent data, which nobody has registered for, and with the end; not, as
            // readiness to read would, with every byte that is left unread.
            match self.0.ready(Interest::PRIORITY).await {
                Ok(ready) if !ready.is_read_closed() => {}
                Ok(_) | Err(_) => return,
            }
        }
        std::future::pending::<()>().await;
    }
}

impl WatchedStream {
    fn stream(&self) -> &TcpStream {
        (*self.write).as_ref()
    }

    /// Writes once the kernel has room.
    fn poll_with<T>(
        &self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            ready!(self.stream().poll_write_ready(context))?;
            match write(self.stream()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn end(&self) -> io::Result<()> {
        match SockRef::from(self.stream()).shutdown(Shutdown::Write) {
            // The peer was first.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        }
    }
}

impl Drop for WatchedStream {
    fn drop(&mut self) {
        // Nobody is left to hear of a failure.
        let _ = self.end();
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.read).poll_read(context, buffer)
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(context, |stream| stream.try_write_vectored(buffers))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The kernel has what was written.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.end())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn connected() -> io::Result<(TcpStream, TcpStream)> {
        #[expect(
            clippy::disallowed_methods,
            reason = "the operating system is what is tested"
        )]
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        #[expect(
            clippy::disallowed_methods,
            reason = "the operating system is what is tested"
        )]
        let peer = TcpStream::connect(listener.local_addr()?).await?;
        Ok((peer, listener.accept().await?.0))
    }

    #[tokio::test]
    async fn the_end_is_noticed_behind_unread_bytes_and_bytes_alone_are_not_an_end() {
        let (mut peer, stream) = connected().await.unwrap();
        let (mut stream, hang_up) = watch(stream);
        peer.write_all(b"ab").await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'a');
        let early = tokio::time::timeout(Duration::from_millis(20), hang_up.noticed()).await;
        assert!(early.is_err(), "bytes are not an end");
        drop(peer);
        hang_up.noticed().await;
        // What was sent before is there to be read all the same.
        assert_eq!(stream.read_u8().await.unwrap(), b'b');
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_dropped_stream_ends_though_it_is_watched() {
        let (mut peer, stream) = connected().await.unwrap();
        let (stream, _hang_up) = watch(stream);
        drop(stream);
        assert_eq!(peer.read(&mut [0]).await.unwrap(), 0);
    }
}
