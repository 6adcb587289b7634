//! The connections to one server for calls of one request each. Owns how many there are.

use std::sync::atomic::{AtomicUsize, Ordering};

use inflight_kserve::client::{self, ConnectError, TransportOptions};
use inflight_kserve::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use tonic::transport::Channel;

/// HTTP/2 connections to one server. One would put all streams behind one flow-control window and one
/// of the server's threads; a handful is enough for either.
const CONNECTIONS: usize = 4;
/// Streams that were reset and whose late frames are ignored; a few bytes each.
const REMEMBERED_RESETS: usize = 1 << 14;

/// A client on one of the connections.
pub(crate) type Client = GrpcInferenceServiceClient<Channel>;

/// The connections to one server, shared by its models.
#[derive(Debug)]
pub(crate) struct Pool {
    clients: [Client; CONNECTIONS],
    next: AtomicUsize,
}

impl Pool {
    /// Connects at the first use, and again after a loss. Needs a tokio runtime.
    ///
    /// # Errors
    /// The address is none.
    pub(crate) fn new(address: &str, options: &TransportOptions) -> Result<Self, ConnectError> {
        let target = client::Target::new(address, options)?.map(|endpoint| {
            // A client that leaves resets its stream, and what the server had sent by then still
            // arrives. For a stream that is forgotten that would count as a protocol error, and after
            // a thousand of them as a reason to drop the connection and all that travels on it.
            endpoint
                .http2_max_concurrent_reset_streams(REMEMBERED_RESETS)
                .http2_max_local_error_reset_streams(None)
        });
        let clients =
            std::array::from_fn(|_| client::inference_client(target.connect_lazy(), options));
        Ok(Self {
            clients,
            next: AtomicUsize::new(0),
        })
    }

    /// The next connection's client; cloning one costs a few counters.
    pub(crate) fn client(&self) -> Client {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        self.clients[turn % CONNECTIONS].clone()
    }
}
