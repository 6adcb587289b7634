//! A network in memory, of the thread that runs a test: ports, connections, and their ends. With it and a paused clock, a
//! test waits for nothing but its own work. Knows nothing of what connections carry.
//!
//! Each thread has its own, so tests do not meet; all tasks of a test must therefore run on its thread, as they do under
//! `#[tokio::test]`.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};

use inflight_base::net::{Connection, Ending, Listener};
use inflight_kserve::client::{Network, Socket};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Bytes that are under way in one direction; who writes more waits.
const CAPACITY: usize = 256 << 10;
/// Where ports begin that nobody asked for by number.
const FIRST_PORT: u16 = 20_000;

thread_local! {
    static PORTS: RefCell<Ports> = RefCell::new(Ports { next: FIRST_PORT, listeners: HashMap::new() });
}

struct Ports {
    next: u16,
    listeners: HashMap<u16, mpsc::UnboundedSender<MemoryStream>>,
}

impl Ports {
    fn take(&mut self) -> SocketAddr {
        self.next += 1;
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.next))
    }
}

/// Connects to a port.
///
/// # Errors
/// Nobody listens there.
pub fn connect(address: SocketAddr) -> Result<MemoryStream> {
    PORTS.with_borrow_mut(|ports| {
        let local = ports.take();
        let refused = || Error::from(ErrorKind::ConnectionRefused);
        let listener = ports.listeners.get(&address.port()).ok_or_else(refused)?;
        let (there, back) = (Arc::default(), Arc::default());
        let accepted = MemoryStream {
            peer: local,
            incoming: Arc::clone(&there),
            outgoing: Arc::clone(&back),
        };
        listener.send(accepted).map_err(|_| refused())?;
        Ok(MemoryStream {
            peer: address,
            incoming: back,
            outgoing: there,
        })
    })
}

/// How a gateway reaches its workers here.
pub fn network() -> Network {
    Network::new(|_, port| {
        let connected = connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        Box::pin(std::future::ready(
            connected.map(|stream| Box::new(stream) as Box<dyn Socket>),
        ))
    })
}

/// An open port; closed when dropped.
#[derive(Debug)]
pub struct MemoryListener {
    pub address: SocketAddr,
    waiting: Mutex<mpsc::UnboundedReceiver<MemoryStream>>,
    accepted: Connections,
}

/// The connections that a port has accepted.
#[derive(Clone, Debug, Default)]
pub struct Connections(Arc<Mutex<Vec<[Weak<Direction>; 2]>>>);

impl Connections {
    /// Resets them all, as the end of a process does.
    pub fn cut(&self) {
        for connection in lock(&self.0).drain(..) {
            for direction in connection.iter().filter_map(Weak::upgrade) {
                direction.change(|state| state.is_reset = true);
            }
        }
    }
}

impl MemoryListener {
    /// Opens the port, or a free one for port 0.
    ///
    /// # Errors
    /// Somebody listens there.
    pub fn bind(port: u16) -> Result<Self> {
        PORTS.with_borrow_mut(|ports| {
            let address = match port {
                0 => ports.take(),
                port => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            };
            if ports.listeners.contains_key(&address.port()) {
                return Err(Error::from(ErrorKind::AddrInUse));
            }
            let (sender, waiting) = mpsc::unbounded_channel();
            ports.listeners.insert(address.port(), sender);
            Ok(Self {
                address,
                waiting: Mutex::new(waiting),
                accepted: Connections::default(),
            })
        })
    }

    /// The connections from now on.
    pub fn connections(&self) -> Connections {
        self.accepted.clone()
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<MemoryStream> {
        // The sender is in the table of ports until the listener is dropped.
        let Some(stream) = ready!(lock(&self.waiting).poll_recv(context)) else {
            return Poll::Pending;
        };
        let directions = [&stream.incoming, &stream.outgoing].map(Arc::downgrade);
        lock(&self.accepted.0).push(directions);
        Poll::Ready(stream)
    }
}

impl Drop for MemoryListener {
    fn drop(&mut self) {
        let port = self.address.port();
        PORTS.with_borrow_mut(|ports| ports.listeners.remove(&port));
    }
}

impl Listener for MemoryListener {
    type Connection = MemoryStream;

    async fn accept(&self) -> Result<(MemoryStream, SocketAddr)> {
        let stream = std::future::poll_fn(|context| self.poll_accept(context)).await;
        let peer = stream.peer;
        Ok((stream, peer))
    }
}

/// For tonic's servers.
impl Stream for MemoryListener {
    type Item = Result<MemoryStream>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_accept(context).map(|stream| Some(Ok(stream)))
    }
}

/// One end of a connection; ended when dropped.
#[derive(Debug)]
pub struct MemoryStream {
    peer: SocketAddr,
    incoming: Arc<Direction>,
    outgoing: Arc<Direction>,
}

/// Notices the end of what the peer sends.
#[derive(Debug)]
pub struct MemoryHangUp(Arc<Direction>);

/// What goes one way.
#[derive(Debug, Default)]
struct Direction(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    bytes: VecDeque<u8>,
    /// The writer has ended it.
    has_ended: bool,
    /// Nobody reads it any more.
    is_unread: bool,
    is_reset: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    watcher: Option<Waker>,
}

impl Direction {
    /// Changes it, and wakes whoever waits for something of it.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = lock(&self.0);
        let changed = change(&mut state);
        let State {
            reader,
            writer,
            watcher,
            ..
        } = &mut *state;
        for waker in [reader, writer, watcher]
            .into_iter()
            .filter_map(Option::take)
        {
            waker.wake();
        }
        changed
    }
}

impl AsyncRead for MemoryStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let mut state = lock(&self.incoming.0);
        if state.is_reset {
            return Poll::Ready(Err(Error::from(ErrorKind::ConnectionReset)));
        }
        if state.bytes.is_empty() && !state.has_ended {
            state.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let (first, _) = state.bytes.as_slices();
        let count = first.len().min(buffer.remaining());
        buffer.put_slice(&first[..count]);
        state.bytes.drain(..count);
        if let Some(writer) = state.writer.take() {
            writer.wake();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for MemoryStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let mut state = lock(&self.outgoing.0);
        if state.is_reset {
            return Poll::Ready(Err(Error::from(ErrorKind::ConnectionReset)));
        }
        if state.is_unread || state.has_ended {
            return Poll::Ready(Err(Error::from(ErrorKind::BrokenPipe)));
        }
        let count = bytes.len().min(CAPACITY - state.bytes.len());
        if count == 0 && !bytes.is_empty() {
            state.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        state.bytes.extend(&bytes[..count]);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        self.outgoing.change(|state| state.has_ended = true);
        Poll::Ready(Ok(()))
    }
}

impl Drop for MemoryStream {
    fn drop(&mut self) {
        self.outgoing.change(|state| state.has_ended = true);
        self.incoming.change(|state| state.is_unread = true);
    }
}

impl Connection for MemoryStream {
    type Watched = Self;
    type HangUp = MemoryHangUp;

    fn watch(self) -> (Self, MemoryHangUp) {
        let hang_up = MemoryHangUp(Arc::clone(&self.incoming));
        (self, hang_up)
    }
}

impl Ending for MemoryHangUp {
    async fn noticed(&self) {
        std::future::poll_fn(|context| {
            let mut state = lock(&self.0.0);
            if state.has_ended || state.is_reset {
                return Poll::Ready(());
            }
            state.watcher = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Connected for MemoryStream {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        TcpConnectInfo {
            local_addr: None,
            remote_addr: Some(self.peer),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn pair() -> (MemoryListener, MemoryStream, MemoryStream) {
        let listener = MemoryListener::bind(0).unwrap();
        let client = connect(listener.address).unwrap();
        let (server, _) = listener.accept().await.unwrap();
        (listener, client, server)
    }

    #[tokio::test]
    async fn bytes_arrive_in_order_and_wait_for_their_reader() {
        let (_listener, mut client, mut server) = pair().await;
        let sent: Vec<u8> = (0..CAPACITY + 100).map(|byte| byte as u8).collect();
        let expected = sent.clone();
        let writing = tokio::spawn(async move { client.write_all(&sent).await });
        tokio::task::yield_now().await;
        assert!(!writing.is_finished());
        let mut read = Vec::new();
        server.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, expected);
        writing.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn the_end_of_a_side_is_noticed_though_bytes_are_unread() {
        let (_listener, mut client, server) = pair().await;
        let (mut server, hang_up) = server.watch();
        client.write_all(b"unread").await.unwrap();
        drop(client);
        hang_up.noticed().await;
        let error = server.write_all(b"more").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_cut_resets_both_ends() {
        let (listener, mut client, mut server) = pair().await;
        listener.connections().cut();
        for end in [&mut client, &mut server] {
            let read = end.read_u8().await.unwrap_err();
            assert_eq!(read.kind(), ErrorKind::ConnectionReset);
            let written = end.write_all(b"more").await.unwrap_err();
            assert_eq!(written.kind(), ErrorKind::ConnectionReset);
        }
    }

    #[tokio::test]
    async fn a_port_is_open_once_and_closed_with_its_listener() {
        let listener = MemoryListener::bind(0).unwrap();
        let address = listener.address;
        let again = MemoryListener::bind(address.port()).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::AddrInUse);
        drop(listener);
        let refused = connect(address).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        MemoryListener::bind(address.port()).unwrap();
    }
}
