//! What a client is to those that ask who may stop a request: [`inflight_upstream::stops`] compares callers, and
//! knows nothing of connections and keys.

use inflight_clients::client::Client;
use inflight_upstream::stops::{Caller, Key};

/// Whose requests `client` may stop.
pub(crate) fn caller(client: &Client) -> Caller {
    if let Some(key) = client.owner().key() {
        return Caller::Key(Key(key));
    }
    let connection = client.connection();
    if connection.peer.to_canonical().is_loopback() {
        Caller::ThisMachine
    } else {
        Caller::Connection(connection.client())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use inflight_clients::client::{ClientConnection, Held};

    use super::*;

    #[test]
    fn a_key_a_machine_or_a_connection_may_stop_requests() {
        let of = |client: &str, key: Option<&Arc<Held>>| {
            let connection = ClientConnection::new(client.parse().unwrap(), &Arc::default());
            let client = Client::new(Arc::new(connection));
            if let Some(key) = key {
                client.has_key(key, None);
            }
            caller(&client)
        };
        assert_eq!(of("127.0.0.1:1", None), of("[::1]:2", None));
        assert_eq!(of("[::ffff:127.0.0.1]:1", None), Caller::ThisMachine);
        assert_ne!(of("10.0.0.5:1", None), of("10.0.0.5:2", None));
        assert_eq!(of("10.0.0.5:1", None), of("10.0.0.5:1", None));
        let (one, other) = (Arc::default(), Arc::default());
        assert_eq!(of("10.0.0.5:1", Some(&one)), of("127.0.0.1:1", Some(&one)));
        assert_ne!(of("10.0.0.5:1", Some(&one)), of("10.0.0.5:1", Some(&other)));
    }
}
