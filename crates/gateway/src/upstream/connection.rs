//! One model of one server, ready for requests. Owns what a request needs of it: handles, sending and
//! stopping; knows nothing of how servers are found and lost, or of clients.

use std::sync::Arc;
use std::time::{Duration, Instant};

use inflight_kserve::step::stop_request;

use super::outbound::Outbound;
use super::registry::{CODE_UNAVAILABLE, Closed, Registry};
use super::served::ServedModel;
use super::triton::exchange::Exchanges;
use crate::stream::inbox::Inbox;

/// Limits of every connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Largest gRPC message accepted or sent, in bytes.
    pub max_message_bytes: usize,
    /// Requests that may wait to be written to one worker.
    pub send_queue: usize,
    /// How long a client may leave rows unread before its request is stopped.
    pub slow_client: Duration,
}

/// How requests travel.
#[derive(Debug)]
pub enum Wire {
    /// An Inflight worker's: one stream for all requests, one message per engine step.
    Steps(Arc<Outbound>),
    /// A plain Triton server's: a stream per request.
    Exchanges(Exchanges),
}

/// A ready connection.
#[derive(Debug)]
pub struct Connection {
    /// `host:port`, for logs and metrics.
    pub address: Arc<str>,
    pub served: Arc<ServedModel>,
    pub wire: Wire,
    pub(super) registry: Arc<Registry>,
}

impl Connection {
    /// Requests travel over `wire`, whose rows go to `registry`.
    pub(super) fn new(
        address: Arc<str>,
        served: Arc<ServedModel>,
        wire: Wire,
        registry: Arc<Registry>,
    ) -> Self {
        Self {
            address,
            served,
            wire,
            registry,
        }
    }

    /// Opens a handle; see [`Registry::open`].
    ///
    /// # Errors
    /// [`Closed`] once the server is lost.
    pub fn open(
        &self,
        inbox: Arc<Inbox>,
        first_choice: u32,
        sequences: u32,
    ) -> Result<u64, Closed> {
        self.registry.open(inbox, first_choice, sequences)
    }

    /// Ends a handle whose rows nobody wants any more; frees its work at the server at once.
    pub fn cancel(&self, handle: u64) {
        if self.registry.close_handle(handle) {
            self.stop(handle);
        }
    }

    /// Ends the handles whose client has read nothing for `patience`; looks at most once a second.
    pub(super) fn sweep_stalled(&self, now: Instant, patience: Duration) {
        for handle in self.registry.sweep_stalled(now, patience) {
            tracing::warn!(worker = %self.address, "stopped a request whose client reads nothing");
            self.stop(handle);
        }
    }

    fn stop(&self, handle: u64) {
        match &self.wire {
            Wire::Steps(outbound) => {
                let model = &self.served.description.core_model_name;
                outbound.stop(handle, || stop_request(model, handle));
            }
            Wire::Exchanges(exchanges) => exchanges.stop(handle),
        }
    }

    /// Handles that wait for rows.
    pub fn active(&self) -> usize {
        self.registry.active()
    }

    /// Ends every request of this connection with an error.
    pub fn fail_all(&self, text: &str) {
        self.registry
            .fail_all(CODE_UNAVAILABLE, text, Instant::now());
        match &self.wire {
            Wire::Steps(outbound) => outbound.close(),
            Wire::Exchanges(exchanges) => exchanges.close(),
        }
    }
}
