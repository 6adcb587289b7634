//! A proxy between clients and a server that holds back what clients say when a test wants it: what may
//! cross on the wire then crosses every time. It can also play a machine that vanishes and comes back. Owns the copying;
//! knows nothing of what is copied.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use inflight_base::net::Listener;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::memory::{MemoryListener, MemoryStream, connect};

/// A running proxy; dropping it ends its connections.
#[derive(Debug)]
pub struct HoldingProxy {
    pub address: SocketAddr,
    hold: watch::Sender<bool>,
    machine: watch::Sender<Machine>,
    counts: Arc<Counts>,
    task: JoinHandle<()>,
}

/// Whether the server's machine is there, for the connections that are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Machine {
    Present,
    Vanished,
    /// It knows nothing of the connections from before, and says so to those who send something.
    Replaced,
}

#[derive(Debug, Default)]
struct Counts {
    held: AtomicUsize,
    delivered: AtomicUsize,
}

impl HoldingProxy {
    /// Listens on a free port in memory and connects each client to `server`.
    pub fn start(server: SocketAddr) -> Self {
        let listener = MemoryListener::bind(0).expect("a port is free");
        let address = listener.address;
        let (hold, holding) = watch::channel(false);
        let machine = watch::Sender::new(Machine::Present);
        let machines = machine.clone();
        let counts = Arc::new(Counts::default());
        let counted = Arc::clone(&counts);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = connect(server) else {
                    continue;
                };
                let (mut from_client, to_client) = split(client);
                let (from_server, to_server) = split(server);
                let (holding, counts) = (holding.clone(), Arc::clone(&counted));
                let (mut vanishing, mut machine) = (machines.subscribe(), machines.subscribe());
                let (ends, ended) = oneshot::channel::<()>();
                connections.spawn(async move {
                    tokio::select! {
                        () = forward(&mut from_client, to_server, holding, counts) => {}
                        () = vanished(&mut machine) => lose(&mut from_client, &machine).await,
                    }
                    drop(ends);
                });
                let counts = Arc::clone(&counted);
                connections.spawn(async move {
                    let mut to_client = to_client;
                    tokio::select! {
                        () = deliver(from_server, &mut to_client, counts) => {}
                        () = vanished(&mut vanishing) => drop(ended.await),
                    }
                });
            }
        });
        Self {
            address,
            hold,
            machine,
            counts,
            task,
        }
    }

    /// Holds back all that clients send from now on, and counts from 0.
    pub fn hold(&self) {
        self.counts.held.store(0, Ordering::SeqCst);
        self.counts.delivered.store(0, Ordering::SeqCst);
        self.hold.send_replace(true);
    }

    /// Bytes that are held back.
    pub fn held(&self) -> usize {
        self.counts.held.load(Ordering::SeqCst)
    }

    /// Bytes of the server that went to clients since the hold.
    pub fn delivered(&self) -> usize {
        self.counts.delivered.load(Ordering::SeqCst)
    }

    /// Lets pass what was held, and what comes.
    pub fn release(&self) {
        self.hold.send_replace(false);
    }

    /// The server's machine is gone from now on, and no connection says so: what is sent is lost, both ways.
    pub fn vanish(&self) {
        self.machine.send_replace(Machine::Vanished);
    }

    /// Another machine is in its place, some time after it vanished. It serves new connections, and ends each of those from
    /// before once its client sends something.
    pub fn come_back(&self) {
        self.machine.send_replace(Machine::Replaced);
    }
}

impl Drop for HoldingProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Waits until the machine vanishes.
async fn vanished(machine: &mut watch::Receiver<Machine>) {
    let seen = machine.wait_for(|machine| *machine == Machine::Vanished);
    if seen.await.is_err() {
        std::future::pending().await
    }
}

/// Reads what is lost, up to the first that reaches another machine.
async fn lose(from: &mut ReadHalf<MemoryStream>, machine: &watch::Receiver<Machine>) {
    let mut chunk = vec![0; 64 << 10];
    while let Ok(count) = from.read(&mut chunk).await
        && count > 0
        && *machine.borrow() == Machine::Vanished
    {}
}

/// Copies until either side ends; while `holding`, into memory.
async fn forward(
    from: &mut ReadHalf<MemoryStream>,
    mut to: WriteHalf<MemoryStream>,
    mut holding: watch::Receiver<bool>,
    counts: Arc<Counts>,
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
                    counts.held.fetch_add(count, Ordering::SeqCst);
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

/// Copies until either side ends.
async fn deliver(
    mut from: ReadHalf<MemoryStream>,
    to: &mut WriteHalf<MemoryStream>,
    counts: Arc<Counts>,
) {
    let mut chunk = vec![0; 64 << 10];
    while let Ok(count) = from.read(&mut chunk).await
        && count > 0
        && to.write_all(&chunk[..count]).await.is_ok()
    {
        counts.delivered.fetch_add(count, Ordering::SeqCst);
    }
}
