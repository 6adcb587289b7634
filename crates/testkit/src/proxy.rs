//! A proxy between a client and a server whose client's bytes a test can hold back: what crosses on the
//! wire then crosses every time. Owns the copying; knows nothing of what is copied.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A running proxy; dropping it ends its connections.
#[derive(Debug)]
pub struct HoldingProxy {
    pub address: SocketAddr,
    hold: watch::Sender<bool>,
    held: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl HoldingProxy {
    /// Listens on an ephemeral port and connects each client to `server`.
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.expect("a port is free");
        let address = listener
            .local_addr()
            .expect("a bound listener has an address");
        let (hold, holding) = watch::channel(false);
        let held = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&held);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(server).await else {
                    continue;
                };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let (from_client, mut to_client) = client.into_split();
                let (mut from_server, to_server) = server.into_split();
                let (holding, counter) = (holding.clone(), Arc::clone(&counter));
                connections.spawn(forward(from_client, to_server, holding, counter));
                connections.spawn(async move {
                    let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
                });
            }
        });
        Self {
            address,
            hold,
            held,
            task,
        }
    }

    /// Holds back all that clients send from now on.
    pub fn hold(&self) {
        self.held.store(0, Ordering::SeqCst);
        self.hold.send_replace(true);
    }

    /// How many bytes are held back.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    /// Lets pass what was held, and what comes.
    pub fn release(&self) {
        self.hold.send_replace(false);
    }
}

impl Drop for HoldingProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Copies until either side ends; while `holding`, into memory.
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut holding: watch::Receiver<bool>,
    held: Arc<AtomicUsize>,
) {
    let mut waiting = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    loop {
        tokio::select! {
            read = from.read(&mut chunk) => {
                let count = read.unwrap_or(0);
                if count == 0 {
                    return;
                }
                waiting.extend_from_slice(&chunk[..count]);
                if *holding.borrow() {
                    held.fetch_add(count, Ordering::SeqCst);
                }
            }
            changed = holding.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
        if !*holding.borrow() {
            if to.write_all(&waiting).await.is_err() {
                return;
            }
            waiting.clear();
        }
    }
}
