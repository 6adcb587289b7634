//! Where a scripted server listens, and how it ends: in memory, or on a port of this machine. Knows nothing of what it
//! serves.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::server::Router;

use crate::memory::{Connections, MemoryListener};

/// A running server; dropping it closes every connection at once.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    ending: Option<Ending>,
}

#[derive(Debug)]
enum Ending {
    Memory(JoinHandle<()>, Connections),
    /// Ending a runtime cuts every connection, as the end of a process does.
    Machine(Runtime),
}

impl Server {
    /// Serves in memory on this port, or on a free one for port 0.
    ///
    /// # Panics
    /// Somebody listens there.
    pub(crate) fn in_memory(router: Router, port: u16) -> Self {
        let listener = MemoryListener::bind(port).expect("the port is free");
        let (address, connections) = (listener.address, listener.connections());
        let task = tokio::spawn(async move {
            let served = router.serve_with_incoming(listener).await;
            served.expect("the scripted server serves");
        });
        Self {
            address,
            ending: Some(Ending::Memory(task, connections)),
        }
    }

    /// Serves on this port of the machine, or on a free one for port 0, on a separate thread.
    ///
    /// # Panics
    /// The port is not free in time.
    pub(crate) async fn on_tcp(router: Router, port: u16) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime starts");
        let (bound, listening) = tokio::sync::oneshot::channel();
        runtime.spawn(async move {
            let listener = loop {
                #[expect(clippy::disallowed_methods, reason = "a test's server, on a real port")]
                match TcpListener::bind(("127.0.0.1", port)).await {
                    Ok(listener) => break listener,
                    // The server before this one is still closing the port.
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            };
            let address = listener.local_addr();
            let _ = bound.send(address.expect("a bound listener has an address"));
            let incoming = TcpListenerStream::new(listener);
            let served = router.serve_with_incoming(incoming).await;
            served.expect("the scripted server serves");
        });
        let address = tokio::time::timeout(crate::PATIENCE, listening)
            .await
            .expect("the port is free in time")
            .expect("the scripted server still runs");
        Self {
            address,
            ending: Some(Ending::Machine(runtime)),
        }
    }

    /// Ends as a killed process does.
    pub(crate) fn kill(&mut self) {
        match self.ending.take() {
            Some(Ending::Memory(task, connections)) => {
                task.abort();
                connections.cut();
            }
            Some(Ending::Machine(runtime)) => runtime.shutdown_background(),
            None => {}
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
