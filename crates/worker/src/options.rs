//! The worker's options, their defaults and the reason for each.
//!
//! Owns every tunable of the worker. Knows nothing of command lines: whoever starts a worker fills this
//! in and passes it to [`crate::serve`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

/// Only this machine, until an operator says otherwise.
pub const DEFAULT_HOST: &str = "127.0.0.1";
/// Triton's gRPC port, so that its clients find the worker where they expect it.
pub const DEFAULT_GRPC_PORT: u16 = 8001;
/// Triton's metrics port.
pub const DEFAULT_METRICS_PORT: u16 = 8002;
/// Twice the gateway's HTTP body limit: a prompt of token ids is larger than its text.
pub const DEFAULT_MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;
/// Requests beyond what the executor runs at once; deeper queues only add latency that a gateway with
/// another worker at hand could have avoided.
pub const DEFAULT_MAX_QUEUED_REQUESTS: usize = 4096;
/// gRPC calls on one connection. Triton's own clients open one stream per request, so the bound has to
/// hold a large batch and its queue.
pub const DEFAULT_MAX_CONCURRENT_STREAMS: u32 = 8192;
/// Without a row from the executor for this long while requests wait, it is taken for dead. Longer than
/// any prefill of a full context on a CPU.
pub const DEFAULT_PROGRESS_TIMEOUT: Duration = Duration::from_secs(300);
/// What running requests get to finish after a shutdown was asked for.
pub const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// A stream whose client reads nothing for this long while rows wait is ended and its requests
/// cancelled: they hold KV blocks that others wait for.
pub const DEFAULT_SLOW_READER_TIMEOUT: Duration = Duration::from_secs(60);
/// Kernel dispatch, graph capture and the first allocations all happen under the canary.
pub const DEFAULT_CANARY_TIMEOUT: Duration = Duration::from_secs(600);

/// How a worker listens, what it serves and where its bounds are.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Address or name to bind, for both ports.
    pub host: String,
    /// 0: any free port, reported through `on_bound`.
    pub grpc_port: u16,
    /// 0: any free port, reported through `on_bound`.
    pub metrics_port: u16,
    /// The name OpenAI clients use; the KServe model is always `tensorrt_llm`.
    pub served_model_name: String,
    /// What `ModelAssets.Fetch` hands to a gateway: file base name to content.
    pub assets: BTreeMap<String, Bytes>,
    /// Largest gRPC message taken or sent, in bytes.
    pub max_message_bytes: usize,
    /// Live requests beyond the executor's `max_batch_size`; more get RESOURCE_EXHAUSTED.
    pub max_queued_requests: usize,
    /// gRPC calls at once on one connection.
    pub max_concurrent_streams: u32,
    /// See [`DEFAULT_PROGRESS_TIMEOUT`].
    pub progress_timeout: Duration,
    /// See [`DEFAULT_DRAIN_TIMEOUT`].
    pub drain_timeout: Duration,
    /// See [`DEFAULT_SLOW_READER_TIMEOUT`].
    pub slow_reader_timeout: Duration,
    /// How long the one-token request that proves readiness may take.
    pub canary_timeout: Duration,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            host: DEFAULT_HOST.to_owned(),
            grpc_port: DEFAULT_GRPC_PORT,
            metrics_port: DEFAULT_METRICS_PORT,
            served_model_name: "inflight-demo".to_owned(),
            assets: BTreeMap::new(),
            max_message_bytes: DEFAULT_MAX_MESSAGE_BYTES,
            max_queued_requests: DEFAULT_MAX_QUEUED_REQUESTS,
            max_concurrent_streams: DEFAULT_MAX_CONCURRENT_STREAMS,
            progress_timeout: DEFAULT_PROGRESS_TIMEOUT,
            drain_timeout: DEFAULT_DRAIN_TIMEOUT,
            slow_reader_timeout: DEFAULT_SLOW_READER_TIMEOUT,
            canary_timeout: DEFAULT_CANARY_TIMEOUT,
        }
    }
}

/// Where the worker listens, once it does.
#[derive(Clone, Copy, Debug)]
pub struct BoundAddresses {
    pub grpc: SocketAddr,
    pub metrics: SocketAddr,
}

/// Why [`crate::serve`] came back without an error of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerExit {
    /// The shutdown future resolved; requests were drained or cancelled.
    Shutdown,
    /// The executor failed or made no progress; the process should end with a distinct code. The text
    /// says why and was logged.
    ExecutorFailed(String),
}

/// Why a worker could not start or go on listening.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error(
        "cannot listen on `{address}` for {purpose}: choose another port, or stop what uses it"
    )]
    Bind {
        address: String,
        purpose: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("the operating system refused a thread for the {name}")]
    Thread {
        name: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("the gRPC server ended")]
    Server(#[source] tonic::transport::Error),
}
