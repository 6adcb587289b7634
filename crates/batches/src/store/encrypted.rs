//! A connection to a database over TLS: tokio-postgres's side of inflight-tls. The server's certificate must be for the
//! host of the URL, and an authority of this machine must have signed it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use inflight_tls::{ClientStream, HandshakeError, WebTls};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

/// TLS to any host.
#[derive(Clone, Debug)]
pub(super) struct Encrypted(WebTls);

impl Encrypted {
    pub(super) fn new() -> Self {
        Self(WebTls::of_one_protocol())
    }
}

/// TLS to one host.
pub(super) struct ToHost {
    tls: WebTls,
    host: String,
}

/// What the database is spoken to over.
pub(super) struct Channel<S>(ClientStream<S>);

impl<S> MakeTlsConnect<S> for Encrypted
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Channel<S>;
    type TlsConnect = ToHost;
    type Error = HandshakeError;

    fn make_tls_connect(&mut self, host: &str) -> Result<ToHost, HandshakeError> {
        Ok(ToHost {
            tls: self.0.clone(),
            host: host.to_owned(),
        })
    }
}

impl<S> TlsConnect<S> for ToHost
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Channel<S>;
    type Error = HandshakeError;
    type Future = Pin<Box<dyn Future<Output = Result<Channel<S>, HandshakeError>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move { self.tls.connect(&self.host, stream).await.map(Channel) })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Channel<S> {
    /// None: the certificate was checked, and passwords are sent as SCRAM has them.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Channel<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Channel<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
