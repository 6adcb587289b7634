//! What every connected server works with: the table, the metrics and the limits.

use std::sync::Arc;
use std::time::Duration;

use inflight_kserve::client::{Network, TransportOptions};
use inflight_kv_events::Source;
use inflight_tls::ClientTls;

use super::chat_templates::ChatTemplates;
use super::shared_stream::SharingLimits;
use super::table::Table;
use crate::metrics::Metrics;

/// Shared by the tasks of all servers.
#[derive(Debug)]
pub struct Context {
    pub table: Arc<Table>,
    pub metrics: Arc<Metrics>,
    pub limits: Limits,
    pub templates: ChatTemplates,
    /// For servers that speak TLS.
    pub tls: ClientTls,
    /// Where servers that are only watched publish what their caches hold; `None`: they do not.
    pub kv_events: Option<Source>,
    /// `None`: over the machine's TCP.
    pub network: Option<Network>,
}

/// Limits of every server's connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest gRPC message accepted or sent, in bytes.
    pub max_message_bytes: usize,
    /// Requests that may wait to be written to one worker.
    pub send_queue: usize,
    /// How long a server may be silent before it counts as not ready.
    pub worker_silence: Duration,
    /// How long a client may leave output unread before its request is stopped.
    pub slow_client: Duration,
}

impl Limits {
    /// Of the streams that small requests share.
    pub fn sharing(self) -> SharingLimits {
        SharingLimits {
            send_queue: self.send_queue,
            slow_client: self.slow_client,
        }
    }
}

impl Context {
    /// How every server is connected.
    pub fn transport(&self) -> TransportOptions {
        TransportOptions {
            max_message_bytes: self.limits.max_message_bytes,
            tls: self.tls.clone(),
            network: self.network.clone(),
            ..TransportOptions::default()
        }
    }
}
