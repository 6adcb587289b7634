//! The worker's options, their defaults and the reason for each.
//!
//! Owns every option of the worker. Knows nothing of command lines: the code that starts a worker fills this
//! in and passes it to [`crate::serve()`].

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use inflight_kserve::client::{ConnectError, DEFAULT_MAX_MESSAGE_BYTES};
use inflight_tls::{ServerFiles, ServerTls, TlsError};
use inflight_traces::{TraceError, TraceOptions};
use tracing::level_filters::LevelFilter;

use crate::executor::ExecutorFailed;
use crate::model::CORE_MODEL;

/// How a worker listens, what it serves and what its limits are.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Address or name to bind, for both ports. Default: 127.0.0.1, so that only this machine can
    /// connect until an operator decides otherwise.
    pub host: String,
    /// Default: 8001, Triton's gRPC port. 0 picks a free port, reported through `on_bound`.
    pub grpc_port: u16,
    /// Default: 8002, Triton's metrics port. 0 picks a free port, reported through `on_bound`.
    pub metrics_port: u16,
    /// Port for KServe over HTTP, for clients without a gateway. Default: none, because a gateway serves it for all
    /// workers. 0 picks a free port, reported through `on_bound`.
    pub http_port: Option<u16>,
    /// Certificate of the ports for gRPC and HTTP, which then speak TLS; metrics and health stay plain. Default:
    /// none, because workers are on the gateway's machine or on a private network.
    pub tls_certificate: Option<PathBuf>,
    /// The certificate's key; both or neither are given.
    pub tls_key: Option<PathBuf>,
    /// Client CA certificates: only clients with a certificate that one of them signed may connect. Default: none.
    pub tls_client_ca: Option<PathBuf>,
    /// The name that OpenAI clients use; KServe clients have their own names.
    pub served_model_name: String,
    /// The KServe name of the model that takes token ids. Default: `tensorrt_llm`, Triton's.
    pub core_model_name: String,
    /// Whether answers leave out the prompt where a request does not say (`exclude_input_in_output`).
    /// Default: false, as in Triton's models.
    pub exclude_input_in_output: bool,
    /// `HOST:PORT` of a worker whose core model guesses for `num_draft_tokens` of `tensorrt_llm_bls`. It must have
    /// the same vocabulary. `None`: such requests are refused.
    pub draft_worker: Option<String>,
    /// The name of that worker's core model. Default: `tensorrt_llm`.
    pub draft_model_name: String,
    /// Changes what the process logs, for KServe's log settings. `None`: nobody may.
    pub log_level: Option<LogLevel>,
    /// Where traces of requests go, and of which. Default: nowhere.
    pub traces: Option<TraceOptions>,
    /// Whether answers have log probabilities and logits that were not asked for, as zeros. Releases of Triton's
    /// models up to 0.11 answer so, and their clients read them. Default: false, as in newer ones.
    pub fill_outputs: bool,
    /// Whether token ids of a prompt that are beyond the vocabulary are wrapped modulo its size: NVIDIA's benchmark
    /// scripts send random ones.
    pub wrap_token_ids: bool,
    /// Whether each streamed answer of `tensorrt_llm_bls` repeats the text before it. Default: false, as in
    /// Triton's model.
    pub accumulate_tokens: bool,
    /// Directory whose LoRA adapters clients may load while the worker runs. Default: none, and nobody may load
    /// any: who reaches the port would choose which files are read.
    pub adapter_dir: Option<PathBuf>,
    /// The files that `ModelAssets.Fetch` sends to a gateway: base name to content.
    pub assets: BTreeMap<String, Bytes>,
    /// Largest gRPC message either way, in bytes. Default: 64 MiB, twice the gateway's HTTP body limit:
    /// a prompt of token ids is larger than its text.
    pub max_message_bytes: usize,
    /// How long a request may wait for a place in the executor's batch. One that would wait longer, by the
    /// measured service rate, gets RESOURCE_EXHAUSTED at once; one that has, gets it then. Default: 2 s,
    /// less than people and clients wait for a first token, and enough to keep the batch full.
    pub max_queue_wait: Duration,
    /// Requests beyond the executor's `max_batch_size`; more get RESOURCE_EXHAUSTED. Default: 4096. It
    /// bounds memory; what bounds the wait is `max_queue_wait`.
    pub max_queued_requests: usize,
    /// gRPC connections at once; one more is closed at once. Default: 1024. A gateway has one, a Triton client
    /// one for several streams, and an idle connection costs memory and a file.
    pub max_grpc_connections: usize,
    /// gRPC calls at once on one connection. Default: 8192. Triton's clients open one stream per
    /// request, so this must hold a large batch and its queue.
    pub max_concurrent_streams: u32,
    /// Without a row from the executor for this long while requests wait, the executor counts as dead.
    /// Default: 300 s, longer than any prefill of a full context on a CPU.
    pub progress_timeout: Duration,
    /// How long running requests may take to finish after a shutdown was requested. Default: 10 s.
    pub drain_timeout: Duration,
    /// A stream whose client reads nothing for this long while rows wait is ended and its requests are
    /// cancelled, because they hold KV blocks that others wait for. Default: 60 s.
    pub slow_reader_timeout: Duration,
    /// How long the one-token request that proves readiness may take. Default: 600 s, because kernel
    /// dispatch, graph capture and the first allocations all happen under it.
    pub canary_timeout: Duration,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            grpc_port: 8001,
            metrics_port: 8002,
            http_port: None,
            tls_certificate: None,
            tls_key: None,
            tls_client_ca: None,
            served_model_name: "inflight-demo".to_owned(),
            core_model_name: CORE_MODEL.to_owned(),
            exclude_input_in_output: false,
            fill_outputs: false,
            wrap_token_ids: false,
            draft_worker: None,
            draft_model_name: CORE_MODEL.to_owned(),
            log_level: None,
            traces: None,
            accumulate_tokens: false,
            adapter_dir: None,
            assets: BTreeMap::new(),
            max_message_bytes: DEFAULT_MAX_MESSAGE_BYTES,
            max_queue_wait: Duration::from_secs(2),
            max_queued_requests: 4096,
            max_grpc_connections: 1024,
            max_concurrent_streams: 8192,
            progress_timeout: Duration::from_secs(300),
            drain_timeout: Duration::from_secs(10),
            slow_reader_timeout: Duration::from_secs(60),
            canary_timeout: Duration::from_secs(600),
        }
    }
}

impl WorkerOptions {
    /// TLS of the ports; `None`: they speak plain text.
    ///
    /// # Errors
    /// A file is missing or cannot be used.
    pub(crate) fn tls(&self) -> Result<Option<ServerTls>, WorkerError> {
        match (&self.tls_certificate, &self.tls_key, &self.tls_client_ca) {
            (None, None, None) => Ok(None),
            (Some(certificate), Some(key), client_ca) => {
                let files = ServerFiles {
                    certificate: certificate.clone(),
                    key: key.clone(),
                    client_ca: client_ca.clone(),
                };
                ServerTls::load(files).map(Some).map_err(WorkerError::Tls)
            }
            _ => Err(WorkerError::TlsIncomplete),
        }
    }
}

/// Changes what the process logs. The owner of the process's log supplies it.
#[derive(Clone)]
pub struct LogLevel(Arc<dyn Fn(LevelFilter) + Send + Sync>);

impl LogLevel {
    pub fn new(set: impl Fn(LevelFilter) + Send + Sync + 'static) -> Self {
        Self(Arc::new(set))
    }

    pub(crate) fn set(&self, level: LevelFilter) {
        (self.0)(level);
    }
}

impl fmt::Debug for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogLevel")
    }
}

/// The addresses that the worker listens on.
#[derive(Clone, Copy, Debug)]
pub struct BoundAddresses {
    pub grpc: SocketAddr,
    pub metrics: SocketAddr,
    /// `None`: no such port was asked for.
    pub http: Option<SocketAddr>,
    /// Whether gRPC and HTTP are spoken over TLS.
    pub is_tls: bool,
}

/// Why a worker ended without its own error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerExit {
    /// The shutdown future resolved; requests were drained or cancelled.
    Shutdown,
    /// The executor failed or made no progress; the process should end with a separate exit code. The
    /// text says why, and is in the log.
    ExecutorFailed(String),
}

/// Why a worker could not start or keep listening.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error(transparent)]
    Tls(TlsError),
    #[error("TLS needs a certificate and its key; pass both")]
    TlsIncomplete,
    #[error(
        "cannot listen on `{address}` for {purpose}; choose another port, or stop what uses it"
    )]
    Bind {
        address: String,
        purpose: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "two models of this worker would be called `{0}`; give each a different name, which must not be another's with a \
         suffix such as `_ensemble`"
    )]
    SameName(String),
    #[error("one worker serves at most `{most}` models; start another worker for more")]
    TooManyModels { most: usize },
    #[error("the draft worker's address is not usable")]
    DraftWorker(#[source] ConnectError),
    #[error("the operating system refused to start the {name}")]
    Thread {
        name: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("the adapter directory `{path}` cannot be used; pass one that exists, or none")]
    AdapterDir {
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Traces(TraceError),
    #[error(transparent)]
    Executor(ExecutorFailed),
    #[error("the gRPC server failed")]
    Server(#[source] tonic::transport::Error),
}
