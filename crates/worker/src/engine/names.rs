//! What clients stop requests by: request ids, which clients choose and may share. Owns who may stop whose request;
//! knows nothing of how one is stopped.
//!
//! A client may stop what came on its own connection. Between connections of the worker's machine an id is enough, as
//! everywhere in Triton; clients of other machines could otherwise end each other's requests by guessing.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use crate::executor::ClientId;

/// A request id, and the connection that it came on. The address is unknown only if the listener is not a TCP socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestName {
    pub(crate) id: Box<str>,
    pub(crate) connection: Option<SocketAddr>,
}

/// What a client may stop by an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Found(Vec<ClientId>),
    /// The id is that of others.
    Others,
    /// No live request has it.
    Unknown,
}

/// The ids of live requests. The newest use of an id on a connection is the one that counts.
#[derive(Debug, Default)]
pub(super) struct Names {
    ids: HashMap<Box<str>, BTreeMap<Option<SocketAddr>, Use>>,
    uses: u64,
}

#[derive(Debug)]
struct Use {
    number: u64,
    client_ids: Vec<ClientId>,
}

impl Names {
    pub(super) fn insert(&mut self, name: RequestName, client_ids: &[ClientId]) {
        self.uses += 1;
        let new = Use {
            number: self.uses,
            client_ids: client_ids.to_vec(),
        };
        let of_id = self.ids.entry(name.id).or_default();
        of_id.insert(name.connection, new);
    }

    /// Forgets one request of a name.
    pub(super) fn remove(&mut self, name: &RequestName, client_id: ClientId) {
        let Some(of_id) = self.ids.get_mut(&name.id) else {
            return;
        };
        if let Some(found) = of_id.get_mut(&name.connection) {
            found.client_ids.retain(|id| *id != client_id);
            if found.client_ids.is_empty() {
                of_id.remove(&name.connection);
            }
        }
        if of_id.is_empty() {
            self.ids.remove(&name.id);
        }
    }

    /// The requests of this id that a client on `connection` may stop: its own, or else the newest on its machine.
    pub(super) fn find(&self, id: &str, connection: Option<SocketAddr>) -> Named {
        let Some(of_id) = self.ids.get(id) else {
            return Named::Unknown;
        };
        let own = of_id.get(&connection);
        let local = || {
            let others = of_id.iter().filter(|(other, _)| is_local(**other));
            let newest = others.max_by_key(|(_, found)| found.number);
            newest.map(|(_, found)| found)
        };
        let found = own.or_else(|| is_local(connection).then(local).flatten());
        found.map_or(Named::Others, |found| {
            Named::Found(found.client_ids.clone())
        })
    }

    pub(super) fn clear(&mut self) {
        self.ids.clear();
    }
}

fn is_local(connection: Option<SocketAddr>) -> bool {
    connection.is_some_and(|peer| peer.ip().to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(id: &str, connection: &str) -> RequestName {
        RequestName {
            id: id.into(),
            connection: connection.parse().ok(),
        }
    }

    fn find(names: &Names, id: &str, connection: &str) -> Named {
        names.find(id, connection.parse().ok())
    }

    fn found(id: u64) -> Named {
        Named::Found(vec![ClientId(id)])
    }

    #[test]
    fn the_newest_use_on_a_connection_counts() {
        let mut names = Names::default();
        let a = name("a", "10.0.0.5:1");
        names.insert(a.clone(), &[ClientId(1)]);
        names.insert(a.clone(), &[ClientId(2)]);
        names.remove(&a, ClientId(1));
        assert_eq!(find(&names, "a", "10.0.0.5:1"), found(2));
        names.remove(&a, ClientId(2));
        assert_eq!(find(&names, "a", "10.0.0.5:1"), Named::Unknown);
        assert!(names.ids.is_empty());
    }

    #[test]
    fn clients_of_other_machines_stop_on_the_request_s_own_connection() {
        let mut names = Names::default();
        names.insert(name("a", "10.0.0.5:1"), &[ClientId(1)]);
        for other in ["10.0.0.5:2", "10.0.0.6:1", "127.0.0.1:1", "no address"] {
            assert_eq!(find(&names, "a", other), Named::Others, "{other}");
        }
        names.insert(name("a", "127.0.0.1:1"), &[ClientId(2)]);
        assert_eq!(find(&names, "a", "10.0.0.5:2"), Named::Others);
        assert_eq!(find(&names, "a", "10.0.0.5:1"), found(1));
    }

    #[test]
    fn clients_of_this_machine_stop_their_own_and_else_the_newest() {
        let mut names = Names::default();
        names.insert(name("a", "[::1]:3"), &[ClientId(1)]);
        names.insert(name("a", "127.0.0.1:2"), &[ClientId(2)]);
        names.insert(name("a", "10.0.0.5:1"), &[ClientId(3)]);
        assert_eq!(find(&names, "a", "[::1]:3"), found(1));
        assert_eq!(find(&names, "a", "[::ffff:127.0.0.1]:9"), found(2));
        assert_eq!(find(&names, "b", "127.0.0.1:2"), Named::Unknown);
    }
}
