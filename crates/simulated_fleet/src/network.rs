//! The simulated network, as the product sees it: turmoil's sockets behind the listener of servers and the network of
//! connections to workers. What the network does to bytes is turmoil's and the plan's.

use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use inflight_base::net::{Connection, Ending, Listener};
use inflight_kserve::client::{Network, Socket};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;
use turmoil::net::{TcpListener, TcpStream};

/// Connects over the simulated network.
pub(crate) fn network() -> Network {
    Network::new(|host, port| {
        let host = host.to_owned();
        Box::pin(async move {
            let stream = TcpStream::connect((host.as_str(), port)).await?;
            let socket: Box<dyn Socket> = Box::new(stream);
            Ok(socket)
        })
    })
}

/// Resets the connections of a port.
#[derive(Default)]
pub(crate) struct Cuts(Mutex<Vec<Arc<Mutex<Cut>>>>);

/// Whether a connection is reset.
#[derive(Default)]
struct Cut {
    is_cut: bool,
    reader: Option<Waker>,
}

impl Cuts {
    /// Resets those that are open.
    pub(crate) fn cut(&self) {
        for cut in self.0.lock().drain(..) {
            let mut cut = cut.lock();
            cut.is_cut = true;
            if let Some(reader) = cut.reader.take() {
                reader.wake();
            }
        }
    }

    fn add(&self) -> Arc<Mutex<Cut>> {
        let cut = Arc::default();
        self.0.lock().push(Arc::clone(&cut));
        cut
    }
}

/// A port of a simulated host.
pub(crate) struct SimulatedListener(TcpListener, Arc<Cuts>);

impl SimulatedListener {
    pub(crate) async fn bind(port: u16) -> Result<Self> {
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
            .await
            .map(|listener| Self(listener, Arc::default()))
    }

    /// Its connections from now on are reset by `cuts`.
    pub(crate) fn cut_by(self, cuts: Arc<Cuts>) -> Self {
        Self(self.0, cuts)
    }
}

impl Listener for SimulatedListener {
    type Connection = SimulatedStream;

    async fn accept(&self) -> Result<(SimulatedStream, SocketAddr)> {
        let (stream, peer) = self.0.accept().await?;
        Ok((SimulatedStream(stream, self.1.add()), peer))
    }
}

/// A connection that was accepted.
pub(crate) struct SimulatedStream(TcpStream, Arc<Mutex<Cut>>);

/// The simulated network does not report the end of a connection that nobody reads.
pub(crate) struct Unnoticed;

impl Ending for Unnoticed {
    async fn noticed(&self) {
        std::future::pending().await
    }
}

impl Connection for SimulatedStream {
    type Watched = Self;
    type HangUp = Unnoticed;

    fn watch(self) -> (Self, Unnoticed) {
        (self, Unnoticed)
    }
}

impl Connected for SimulatedStream {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for SimulatedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        {
            let mut cut = self.1.lock();
            if cut.is_cut {
                return Poll::Ready(Err(Error::from(ErrorKind::ConnectionReset)));
            }
            cut.reader = Some(context.waker().clone());
        }
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for SimulatedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
