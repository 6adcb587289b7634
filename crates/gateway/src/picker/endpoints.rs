//! Where a proxy reaches a worker: the address of the worker's host, and the port that takes clients' requests there. Owns
//! that names become addresses, since proxies take nothing else.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use inflight_discovery::address::is_watched;
use inflight_openai::ApiError;
use parking_lot::Mutex;
use tokio::time::Instant;

/// How long the address of a name holds; as long as Kubernetes' DNS server holds it.
const HOLDS: Duration = Duration::from_secs(5);
/// How long a DNS server may take: the request waits.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(2);

/// Where a proxy reaches workers.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    /// `None`: the workers' own.
    port: Option<u16>,
    /// As many as there are workers with names.
    names: Mutex<HashMap<String, (SocketAddr, Instant)>>,
}

impl Endpoints {
    /// At this port of workers' hosts, or at their own.
    pub(crate) fn new(port: Option<u16>) -> Self {
        Self {
            port,
            names: Mutex::default(),
        }
    }

    /// The endpoint of the worker at `address`, as `ip:port`; `None`: it has a name that was not looked up yet.
    pub(crate) fn of(&self, address: &str) -> Option<String> {
        let bare = without_scheme(address);
        let own = match bare.parse::<SocketAddr>() {
            Ok(own) => own,
            Err(_) => self.names.lock().get(bare)?.0,
        };
        Some(self.at(address, own))
    }

    /// As [`Endpoints::of`], where a name is looked up.
    ///
    /// # Errors
    /// 503: the name has no address.
    pub(crate) async fn resolve(&self, address: &str) -> Result<String, ApiError> {
        let bare = without_scheme(address);
        if let Ok(own) = bare.parse() {
            return Ok(self.at(address, own));
        }
        let known = self.names.lock().get(bare).copied();
        if let Some((own, since)) = known
            && since.elapsed() < HOLDS
        {
            return Ok(self.at(address, own));
        }
        let found = tokio::time::timeout(LOOK_UP_TIMEOUT, tokio::net::lookup_host(bare)).await;
        // Workers listen on IPv4 by default, whatever a name has first.
        let found = found.ok().and_then(Result::ok).and_then(|found| {
            let mut found: Vec<SocketAddr> = found.collect();
            found.sort_by_key(|one| !one.is_ipv4());
            found.first().copied()
        });
        let own = found.or(known.map(|(own, _)| own)).ok_or_else(|| {
            tracing::warn!(worker = address, "the worker's name has no address");
            ApiError::unavailable("A worker's address is not known. Retry later.")
        })?;
        self.names
            .lock()
            .insert(bare.to_owned(), (own, Instant::now()));
        Ok(self.at(address, own))
    }

    fn at(&self, address: &str, own: SocketAddr) -> String {
        // Another maker's server takes clients' requests at its own port.
        let port = self.port.filter(|_| !is_watched(address));
        let port = port.unwrap_or(own.port());
        SocketAddr::new(own.ip(), port).to_string()
    }
}

fn without_scheme(address: &str) -> &str {
    address.split_once("://").map_or(address, |(_, bare)| bare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn endpoints_are_addresses_and_ports() {
        for (port, address, expected) in [
            (None, "10.0.0.7:8001", "10.0.0.7:8001"),
            (Some(8000), "10.0.0.7:8001", "10.0.0.7:8000"),
            (Some(8000), "https://10.0.0.7:8001", "10.0.0.7:8000"),
            (Some(8000), "[fd00::7]:8001", "[fd00::7]:8000"),
            (Some(8000), "http://10.0.0.7:8001", "10.0.0.7:8001"),
            (None, "localhost:8001", "127.0.0.1:8001"),
        ] {
            let endpoints = Endpoints::new(port);
            assert_eq!(endpoints.resolve(address).await.unwrap(), expected);
            assert_eq!(endpoints.of(address).as_deref(), Some(expected));
        }
        let endpoints = Endpoints::new(None);
        let unknown = "no-such-name.invalid:1";
        assert_eq!(endpoints.of(unknown), None);
        let error = endpoints.resolve(unknown).await.unwrap_err();
        assert_eq!(error.status(), 503);
    }
}
