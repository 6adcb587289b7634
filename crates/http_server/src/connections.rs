//! The open connections, and which is closed when there are too many. Knows nothing of HTTP, and of a connection only
//! since when it is idle.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use inflight_clients::client::ClientConnection;
use parking_lot::Mutex;

/// A connection younger than this, or idle for less, is not closed for another: its request may be on the
/// way.
const SAFE: Duration = Duration::from_secs(1);

/// All open connections.
#[derive(Debug)]
pub(crate) struct Connections {
    list: Mutex<HashMap<u64, Arc<ClientConnection>>>,
    next: AtomicU64,
    limit: usize,
    /// Those that were accepted beyond the limit.
    surplus: Mutex<Vec<Weak<ClientConnection>>>,
}

/// A connection's entry; leaves the list when dropped.
#[derive(Debug)]
pub(crate) struct Listed {
    list: Arc<Connections>,
    id: u64,
}

impl Connections {
    /// None yet, and `limit` to be full.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            list: Mutex::default(),
            next: AtomicU64::new(0),
            limit,
            surplus: Mutex::default(),
        })
    }

    /// Whether one more is beyond the limit.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    /// Marks a connection as one beyond the limit, until there is room again.
    pub(crate) fn mark_surplus(&self, connection: &Arc<ClientConnection>) {
        connection.set_surplus(true);
        let mut surplus = self.surplus.lock();
        surplus.retain(|other| other.strong_count() > 0);
        surplus.push(Arc::downgrade(connection));
    }

    /// Adds a connection.
    pub(crate) fn add(self: &Arc<Self>, connection: Arc<ClientConnection>) -> Listed {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.list.lock().insert(id, connection);
        let list = Arc::clone(self);
        Listed { list, id }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.list.lock().len()
    }

    /// Asks the one that has been idle for longest to close, and takes it off the list. Returns whether
    /// there was one.
    pub(crate) fn shed(&self) -> bool {
        let mut list = self.list.lock();
        let idle = list
            .iter()
            .filter_map(|(id, connection)| Some((connection.idle_for()?, *id)));
        let idlest = idle.max().filter(|(idle, _)| *idle >= SAFE);
        let connection = idlest.and_then(|(_, id)| list.remove(&id));
        if let Some(connection) = &connection {
            connection.closing.notify_one();
        }
        connection.is_some()
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut list = self.list.list.lock();
        list.remove(&self.id);
        if list.len() <= self.list.limit {
            // There is room for those that came too early.
            let mut surplus = self.list.surplus.lock();
            for connection in surplus.drain(..).filter_map(|it| it.upgrade()) {
                connection.set_surplus(false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inflight_clients::client::{Addresses, Client};

    fn connection() -> Arc<ClientConnection> {
        let peer = "127.0.0.1:1".parse().unwrap();
        Arc::new(ClientConnection::new(peer, &Arc::new(Addresses::default())))
    }

    #[tokio::test]
    async fn the_idlest_connection_is_closed_and_never_a_busy_or_a_new_one() {
        let connections = Connections::new(2);
        let (busy, oldest) = (connection(), connection());
        let listed = (
            connections.add(busy.clone()),
            connections.add(oldest.clone()),
        );
        let request = Client::new(busy);
        assert!(!connections.shed(), "none is idle for long");
        tokio::time::sleep(SAFE + Duration::from_millis(10)).await;
        let _new = connections.add(connection());
        assert!(connections.shed());
        oldest.closing.notified().await;
        assert_eq!(connections.len(), 2);
        assert!(!connections.shed(), "the others are busy or new");
        let late = connection();
        connections.mark_surplus(&late);
        let _late = connections.add(late.clone());
        assert!(connections.is_full() && late.is_surplus());
        drop((listed, request));
        assert!(!late.is_surplus(), "there is room again");
    }
}
