//! What every connected server works with: the table, the metrics and the limits.

use std::sync::Arc;
use std::time::Duration;

use inflight_kserve::client::TransportOptions;

use super::chat_templates::ChatTemplates;
use super::table::Table;
use crate::metrics::Metrics;

/// Shared by the tasks of all servers.
#[derive(Debug)]
pub(crate) struct Context {
    pub table: Arc<Table>,
    pub metrics: Arc<Metrics>,
    pub limits: Limits,
    pub templates: ChatTemplates,
}

/// Limits of every server's connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
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
    /// Socket and message settings with these limits.
    pub(crate) fn transport(&self) -> TransportOptions {
        TransportOptions {
            max_message_bytes: self.max_message_bytes,
            ..TransportOptions::default()
        }
    }
}
