//! Who sends a request, and how much they have open. Owns the counts by connection, client address and API
//! key, and since when a connection has been idle; what is too much, `admission` and
//! `inflight_http_server` decide.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use http::Extensions;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::quota::Quota;

/// Images that a connection, an address or a key may have fetched at once; a request has as many by default.
pub const MAX_FETCHES: usize = 16;

/// What a connection, an address or a key has open.
#[derive(Debug)]
pub struct Held {
    /// Requests from their head to the end of their response.
    requests: AtomicUsize,
    /// Memory for bodies, in the units of `admission`.
    body_units: AtomicUsize,
    /// Of [`MAX_FETCHES`].
    fetches: Semaphore,
    /// Of a key that shares no cached prompts with others.
    cache_salt: Option<Arc<str>>,
    /// Whose files and batches its clients see.
    files: inflight_batches::Owner,
}

impl Held {
    /// What a key has open, whose files are those of `files`. With a salt, its cached prompts are its own.
    pub fn of_key(files: inflight_batches::Owner, cache_salt: Option<&str>) -> Self {
        Self {
            cache_salt: cache_salt.map(Arc::from),
            files,
            ..Self::default()
        }
    }

    /// What divides the KV cache between keys; `None`: nothing does.
    pub fn cache_salt(&self) -> Option<Arc<str>> {
        self.cache_salt.clone()
    }

    /// Whose files and batches its clients see.
    pub fn files(&self) -> inflight_batches::Owner {
        self.files
    }
}

impl Default for Held {
    fn default() -> Self {
        Self {
            requests: AtomicUsize::new(0),
            body_units: AtomicUsize::new(0),
            fetches: Semaphore::new(MAX_FETCHES),
            cache_salt: None,
            files: inflight_batches::Owner::default(),
        }
    }
}

/// The open requests and bodies of each client address.
#[derive(Debug, Default)]
pub struct Addresses(Mutex<HashMap<IpAddr, Arc<Held>>>);

impl Addresses {
    /// The counts of `peer`'s address. `None` on the loopback interface: a proxy there sends the requests of
    /// many clients.
    fn join(&self, peer: IpAddr) -> Option<(IpAddr, Arc<Held>)> {
        let group = group(peer);
        if group.is_loopback() {
            return None;
        }
        Some((group, Arc::clone(self.0.lock().entry(group).or_default())))
    }

    fn leave(&self, group: IpAddr, held: &Arc<Held>) {
        let mut addresses = self.0.lock();
        // This one and the table's.
        if Arc::strong_count(held) <= 2 {
            addresses.remove(&group);
        }
    }
}

/// The address that a client's counts are under: an IPv6 host has a whole /64 to choose from.
pub fn group(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let prefix = u128::from(address) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(prefix))
        }
        other => other,
    }
}

/// A client's connection.
#[derive(Debug)]
pub struct ClientConnection {
    pub peer: IpAddr,
    port: u16,
    addresses: Arc<Addresses>,
    held: Held,
    address: Option<(IpAddr, Arc<Held>)>,
    /// Milliseconds of [`now_ms`] at which its last request ended, or it was accepted.
    idle_since: AtomicU64,
    /// Accepted beyond the limit on connections.
    is_surplus: AtomicBool,
    is_http2: AtomicBool,
    /// Asks its task to close it.
    pub closing: tokio::sync::Notify,
}

impl ClientConnection {
    /// A connection that has just been accepted.
    pub fn new(client: SocketAddr, addresses: &Arc<Addresses>) -> Self {
        let peer = client.ip();
        Self {
            peer,
            port: client.port(),
            addresses: Arc::clone(addresses),
            held: Held::default(),
            address: addresses.join(peer),
            idle_since: AtomicU64::new(now_ms()),
            is_surplus: AtomicBool::new(false),
            is_http2: AtomicBool::new(false),
            closing: tokio::sync::Notify::new(),
        }
    }

    /// The client's address and port, which identify the connection.
    pub fn client(&self) -> SocketAddr {
        SocketAddr::new(self.peer, self.port)
    }

    /// How long it has had no request; `None` while it has one.
    pub fn idle_for(&self) -> Option<Duration> {
        if self.held.requests.load(Ordering::Acquire) > 0 {
            return None;
        }
        let since = self.idle_since.load(Ordering::Acquire);
        Some(Duration::from_millis(now_ms().saturating_sub(since)))
    }

    /// Notes whether it is beyond the limit: it then gets health checks answered and nothing else.
    pub fn set_surplus(&self, is_surplus: bool) {
        self.is_surplus.store(is_surplus, Ordering::Relaxed);
    }

    /// Notes that its requests come over HTTP/2.
    pub fn set_http2(&self) {
        self.is_http2.store(true, Ordering::Relaxed);
    }

    /// Whether a request has come over HTTP/2.
    pub fn is_http2(&self) -> bool {
        self.is_http2.load(Ordering::Relaxed)
    }

    /// See [`ClientConnection::set_surplus`].
    pub fn is_surplus(&self) -> bool {
        self.is_surplus.load(Ordering::Relaxed)
    }
}

impl Drop for ClientConnection {
    fn drop(&mut self) {
        if let Some((group, held)) = &self.address {
            self.addresses.leave(*group, held);
        }
    }
}

/// Whose a request is: its API key's, or everybody's where none is needed.
#[derive(Clone, Debug, Default)]
pub struct Owner(Option<Arc<Held>>);

impl Owner {
    /// The holder of a key, which has these counts for as long as it is valid.
    pub fn of_key(key: &Arc<Held>) -> Self {
        Self(Some(Arc::clone(key)))
    }

    /// What its key has open, whose place in memory is the key's identity.
    pub fn key(self) -> Option<Arc<Held>> {
        self.0
    }

    /// Whose files and batches it sees.
    pub fn files(&self) -> inflight_batches::Owner {
        self.0.as_ref().map(|key| key.files).unwrap_or_default()
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

/// What a request's key has open, and what it may use where that is limited.
#[derive(Debug)]
struct KeyUse {
    held: Arc<Held>,
    quota: Option<Arc<Quota>>,
}

/// One request of a client, open for as long as this lives.
#[derive(Debug)]
pub struct Client {
    connection: Arc<ClientConnection>,
    key: OnceLock<KeyUse>,
}

impl Client {
    /// A request that arrives on `connection`.
    pub fn new(connection: Arc<ClientConnection>) -> Arc<Self> {
        let client = Self {
            connection,
            key: OnceLock::new(),
        };
        for held in client.held() {
            held.requests.fetch_add(1, Ordering::AcqRel);
        }
        Arc::new(client)
    }

    /// One more request of the same client, on the same connection.
    pub fn another(&self) -> Arc<Self> {
        let client = Self::new(Arc::clone(&self.connection));
        if let Some(KeyUse { held, quota }) = self.key.get() {
            client.has_key(held, quota.clone());
        }
        client
    }

    /// The client that the server noted in a request.
    pub fn of(extensions: &Extensions) -> Option<&Arc<Self>> {
        extensions.get()
    }

    /// Whose request it is.
    pub fn owner(&self) -> Owner {
        let key = self.key.get();
        key.map(|key| Owner::of_key(&key.held)).unwrap_or_default()
    }

    /// The connection that the request came on.
    pub fn connection(&self) -> &ClientConnection {
        &self.connection
    }

    /// Counts the request for an API key, too; once.
    pub fn has_key(&self, key: &Arc<Held>, quota: Option<Arc<Quota>>) {
        let held = Arc::clone(key);
        if self.key.set(KeyUse { held, quota }).is_ok() {
            key.requests.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// What divides the KV cache between keys; `None` without a key.
    pub fn cache_salt(&self) -> Option<Arc<str>> {
        self.key.get()?.held.cache_salt()
    }

    /// What its key may use, where that is limited.
    pub fn quota(&self) -> Option<&Arc<Quota>> {
        self.key.get()?.quota.as_ref()
    }

    /// Requests that its connection has open, this one included.
    pub fn connection_requests(&self) -> usize {
        self.connection.held.requests.load(Ordering::Relaxed)
    }

    /// Requests that its address or its key has open, whichever has more.
    pub fn owner_requests(&self) -> usize {
        let owners = self.owners();
        let counts = owners.map(|held| held.requests.load(Ordering::Relaxed));
        counts.max().unwrap_or(0)
    }

    /// Body memory that its connection holds.
    pub fn connection_body_units(&self) -> usize {
        self.connection.held.body_units.load(Ordering::Relaxed)
    }

    /// Body memory that its address or its key holds, whichever holds more.
    pub fn owner_body_units(&self) -> usize {
        let owners = self.owners();
        let counts = owners.map(|held| held.body_units.load(Ordering::Relaxed));
        counts.max().unwrap_or(0)
    }

    /// Counts body memory that the request takes.
    pub fn take_body_units(&self, units: usize) {
        for held in self.held() {
            held.body_units.fetch_add(units, Ordering::Relaxed);
        }
    }

    /// Counts it as free again.
    pub fn free_body_units(&self, units: usize) {
        for held in self.held() {
            held.body_units.fetch_sub(units, Ordering::Relaxed);
        }
    }

    /// Waits until the client may have one more image fetched, which it has for as long as the permits live.
    pub async fn fetch_place(&self) -> Vec<SemaphorePermit<'_>> {
        let mut permits = Vec::new();
        // Always in this order, so that no two wait for each other.
        for held in self.held() {
            // Nobody closes them.
            permits.extend(held.fetches.acquire().await.ok());
        }
        permits
    }

    fn owners(&self) -> impl Iterator<Item = &Held> {
        let address = self.connection.address.as_ref().map(|(_, held)| &**held);
        address
            .into_iter()
            .chain(self.key.get().map(|key| &*key.held))
    }

    fn held(&self) -> impl Iterator<Item = &Held> {
        std::iter::once(&self.connection.held).chain(self.owners())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Before the count: who sees no request must see the new time.
        let idle_since = &self.connection.idle_since;
        idle_since.store(now_ms(), Ordering::Release);
        for held in self.held() {
            held.requests.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Milliseconds since the first call.
fn now_ms() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(peer: &str, addresses: &Arc<Addresses>) -> Arc<ClientConnection> {
        let client = SocketAddr::new(peer.parse().unwrap(), 1);
        Arc::new(ClientConnection::new(client, addresses))
    }

    #[test]
    fn a_request_counts_for_its_connection_address_and_key_while_it_lives() {
        let addresses = Arc::new(Addresses::default());
        let (one, two) = (
            connection("192.0.2.1", &addresses),
            connection("::ffff:192.0.2.1", &addresses),
        );
        let key = Arc::new(Held::default());
        let (first, second) = (Client::new(one.clone()), Client::new(two));
        first.has_key(&key, None);
        first.has_key(&key, None);
        assert_eq!(first.connection_requests(), 1);
        assert_eq!(first.owner_requests(), 2, "one address");
        assert!(one.idle_for().is_none());
        drop(first);
        assert!(one.idle_for().is_some());
        assert_eq!(second.owner_requests(), 1);
        assert_eq!(key.requests.load(Ordering::Relaxed), 0);
        drop((one, second));
        assert!(addresses.0.lock().is_empty(), "nothing stays behind");
    }

    #[test]
    fn addresses_are_grouped_as_hosts_own_them() {
        let addresses = Arc::new(Addresses::default());
        for (peer, together) in [
            ("2001:db8::1", Some("2001:db8::")),
            ("2001:db8:0:0:ffff::1", Some("2001:db8::")),
            ("192.0.2.1", Some("192.0.2.1")),
            ("127.0.0.1", None),
            ("::1", None),
            ("::ffff:127.0.0.1", None),
        ] {
            let found = addresses.join(peer.parse().unwrap()).map(|found| found.0);
            assert_eq!(
                found,
                together.map(|group| group.parse().unwrap()),
                "{peer}"
            );
        }
    }

    #[test]
    fn a_request_is_its_keys_or_everybodys() {
        let key = |byte| {
            let files = inflight_batches::Owner([byte; 16]);
            Arc::new(Held::of_key(files, Some("salt")))
        };
        let (one, other) = (key(1), key(2));
        let connection = connection("127.0.0.1", &Arc::default());
        let with = |key: Option<&Arc<Held>>| {
            let client = Client::new(Arc::clone(&connection));
            if let Some(key) = key {
                client.has_key(key, None);
            }
            client
        };
        let owners = [None, Some(&one), Some(&other)].map(|key| with(key).owner());
        for (at, owner) in owners.iter().enumerate() {
            for (before, same) in owners.iter().enumerate() {
                assert_eq!(owner == same, at == before, "{at} {before}");
            }
        }
        let keys = owners.clone().map(Owner::key);
        assert!(keys[0].is_none() && Arc::ptr_eq(keys[1].as_ref().unwrap(), &one));
        let files = owners.map(|owner| owner.files().0);
        assert_eq!(
            files,
            [inflight_batches::Owner::default().0, [1; 16], [2; 16]]
        );
        assert_eq!(with(Some(&one)).cache_salt().as_deref(), Some("salt"));
        assert_eq!(with(None).cache_salt(), None);
    }

    #[test]
    fn another_request_of_a_client_is_its_keys_too() {
        let quota = Arc::new(Quota::new("requests=1".parse().unwrap()));
        let client = Client::new(connection("127.0.0.1", &Arc::default()));
        client.has_key(&Arc::default(), Some(quota));
        let another = client.another();
        assert!(another.owner() == client.owner() && another.quota().is_some());
        assert_eq!(
            (client.connection_requests(), client.owner_requests()),
            (2, 2)
        );
        let mut extensions = Extensions::new();
        assert!(Client::of(&extensions).is_none());
        extensions.insert(Arc::clone(&another));
        assert!(Arc::ptr_eq(Client::of(&extensions).unwrap(), &another));
    }

    #[test]
    fn a_connection_says_what_is_known_of_it() {
        let connection = connection("192.0.2.1", &Arc::default());
        assert_eq!(connection.client(), "192.0.2.1:1".parse().unwrap());
        let known = || (connection.is_surplus(), connection.is_http2());
        assert_eq!(known(), (false, false));
        connection.set_surplus(true);
        assert_eq!(known(), (true, false));
        connection.set_http2();
        connection.set_surplus(false);
        assert_eq!(known(), (false, true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_since_its_last_request() {
        let connection = connection("192.0.2.1", &Arc::default());
        let later = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
        let idle = || connection.idle_for().map(|idle| idle.as_secs());
        later(5).await;
        assert_eq!(idle(), Some(5));
        let client = Client::new(Arc::clone(&connection));
        later(5).await;
        assert_eq!(idle(), None);
        drop(client);
        later(2).await;
        assert_eq!(idle(), Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_has_few_fetches_at_once() {
        let addresses = Arc::new(Addresses::default());
        let clients: Vec<_> = (0..=MAX_FETCHES)
            .map(|_| Client::new(connection("192.0.2.1", &addresses)))
            .collect();
        let (last, others) = clients.split_last().unwrap();
        let mut places = Vec::new();
        for client in others {
            places.push(client.fetch_place().await);
            assert_eq!(
                places.last().unwrap().len(),
                2,
                "its connection and its address"
            );
        }
        let second = Duration::from_secs(1);
        let waits = tokio::time::timeout(second, last.fetch_place()).await;
        assert!(waits.is_err());
        places.pop();
        assert_eq!(last.fetch_place().await.len(), 2);
    }
}
