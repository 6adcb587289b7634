//! The connections to one server for KServe's calls, and the stream on each that small requests share. Owns how many
//! there are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use inflight_kserve::client::{self, ConnectError, InferenceClient, TransportOptions};
use inflight_kserve::streamed::StreamClient;
use parking_lot::Mutex;

use super::pulse::Pulse;
use super::shared_stream::{SharedStream, SharingLimits};

/// HTTP/2 connections to one server. One would put all streams behind one flow-control window and one
/// of the server's threads; a handful is enough for either.
const CONNECTIONS: usize = 4;
/// Requests that share one stream before the next stream is used. One task reads a stream, and it reads this many
/// responses in a small part of an iteration.
const STREAM_REQUESTS: usize = 256;
/// Streams that were reset and whose late frames are ignored; a few bytes each.
const REMEMBERED_RESETS: usize = 1 << 14;

/// One connection. Dropping it closes its shared stream, whose requests hold it.
#[derive(Debug)]
pub struct Link {
    client: InferenceClient,
    streams: StreamClient,
    /// The server's.
    pulse: Arc<Pulse>,
    /// `None`: each request has a separate stream, as with a plain Triton server.
    sharing: Option<SharingLimits>,
    stream: Mutex<Option<Arc<SharedStream>>>,
}

impl Link {
    /// A client; cloning one costs a few counters.
    pub fn client(&self) -> InferenceClient {
        self.client.clone()
    }

    /// A client of streams; cloning one costs as much.
    pub fn streams(&self) -> StreamClient {
        self.streams.clone()
    }

    /// Whether another request may share its stream.
    fn has_room(&self) -> bool {
        let stream = self.stream.lock();
        let requests = stream.as_ref().map_or(0, |stream| stream.open_requests());
        self.sharing.is_some() && requests < STREAM_REQUESTS
    }

    /// Bytes that wait on it for clients that read slowly.
    fn unread_bytes(&self) -> usize {
        let stream = self.stream.lock();
        stream.as_ref().map_or(0, |stream| stream.unread_bytes())
    }

    /// The stream that small requests share, where the server has such. Needs a tokio runtime.
    pub fn shared(&self) -> Option<Arc<SharedStream>> {
        let limits = self.sharing?;
        let mut stream = self.stream.lock();
        if let Some(open) = stream.as_ref().filter(|stream| !stream.has_ended()) {
            return Some(Arc::clone(open));
        }
        let opened = SharedStream::open(self.streams(), limits, Arc::clone(&self.pulse));
        *stream = Some(Arc::clone(&opened));
        Some(opened)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.get_mut() {
            stream.close();
        }
    }
}

/// The connections to one server, shared by its models.
#[derive(Debug)]
pub struct Pool {
    links: [Arc<Link>; CONNECTIONS],
    next: AtomicUsize,
}

impl Pool {
    /// Connects at the first use, and again after a loss. Needs a tokio runtime. With `sharing`, small requests
    /// share a stream on each connection, which only Inflight workers allow.
    ///
    /// # Errors
    /// The address is invalid.
    pub fn new(
        address: &str,
        pulse: &Arc<Pulse>,
        options: &TransportOptions,
        sharing: Option<SharingLimits>,
    ) -> Result<Self, ConnectError> {
        let target = client::Target::new(address, options)?.map(|endpoint| {
            // A client that leaves resets its stream, and what the server had sent by then still
            // arrives. For a stream that is forgotten that would count as a protocol error, and after
            // a thousand of them as a reason to drop the connection and all that travels on it.
            endpoint
                .http2_max_concurrent_reset_streams(REMEMBERED_RESETS)
                .http2_max_local_error_reset_streams(None)
        });
        let links = std::array::from_fn(|_| {
            let channel = target.connect_lazy();
            Arc::new(Link {
                streams: StreamClient::new(channel.clone(), options),
                client: client::inference_client(channel, options),
                pulse: Arc::clone(pulse),
                sharing,
                stream: Mutex::default(),
            })
        });
        Ok(Self {
            links,
            next: AtomicUsize::new(0),
        })
    }

    /// The connection for a request that may share a stream: the first whose stream has room, because what arrives on
    /// one stream is read at once, and on several each wakes the gateway. Where none shares, the next.
    pub fn sharing_link(&self) -> Arc<Link> {
        let first = self.links.iter().find(|link| link.has_room());
        first.map_or_else(|| self.link(), Arc::clone)
    }

    /// The next connection.
    pub fn link(&self) -> Arc<Link> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        Arc::clone(&self.links[turn % CONNECTIONS])
    }

    /// Bytes of responses that wait for clients that read slowly.
    pub fn unread_bytes(&self) -> usize {
        self.links.iter().map(|link| link.unread_bytes()).sum()
    }

    /// A client on the next connection.
    pub fn client(&self) -> InferenceClient {
        self.link().client()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use inflight_kserve::inference::ModelInferRequest;

    use super::*;

    const LIMITS: SharingLimits = SharingLimits {
        send_queue: 2 * STREAM_REQUESTS,
        slow_client: Duration::from_secs(60),
    };

    fn pool(sharing: Option<SharingLimits>) -> Pool {
        let options = TransportOptions::default();
        Pool::new("localhost:1", &Arc::default(), &options, sharing).unwrap()
    }

    /// Which connection the next small request gets.
    fn place(pool: &Pool) -> usize {
        let link = pool.sharing_link();
        let mut links = pool.links.iter();
        links.position(|own| Arc::ptr_eq(own, &link)).unwrap()
    }

    #[tokio::test]
    async fn a_stream_is_filled_before_the_next_is_used() {
        let pool = pool(Some(LIMITS));
        // Nothing is awaited, so that no stream finds out that nobody listens there.
        let mut requests: Vec<_> = (0..STREAM_REQUESTS)
            .map(|_| {
                assert_eq!(place(&pool), 0);
                let stream = pool.sharing_link().shared().unwrap();
                stream.send(ModelInferRequest::default()).unwrap()
            })
            .collect();
        assert_eq!(place(&pool), 1);
        requests.pop();
        assert_eq!(place(&pool), 0);
    }

    #[tokio::test]
    async fn where_no_stream_is_shared_the_connections_take_turns() {
        let pool = pool(None);
        let places: Vec<usize> = (0..2 * CONNECTIONS).map(|_| place(&pool)).collect();
        assert_eq!(places, [0, 1, 2, 3, 0, 1, 2, 3]);
        assert!(pool.link().shared().is_none());
    }
}
