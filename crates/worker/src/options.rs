//! The worker's options, their defaults and the reason for each.
//!
//! Owns every option of the worker: the struct, its defaults, and what `inflight worker --help` says of each
//! follow from one table. Knows nothing of command lines: the code that starts a worker fills the struct in and
//! passes it to [`crate::serve()`].

pub(crate) mod declared;
#[cfg(test)]
mod tests;
mod types;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use inflight_discovery::etcd::EtcdPlace;
use inflight_kserve::assets::Phases;
use inflight_kserve::client::{ConnectError, DEFAULT_MAX_MESSAGE_BYTES};
use inflight_kv_events::Form;
use inflight_tls::{ServerFiles, ServerTls, TlsError};
use inflight_traces::{DEFAULT_RATIO, ENDPOINT_VARIABLE, RATIO_VARIABLE, TraceError, TraceOptions};
use tracing::level_filters::LevelFilter;

use crate::executor::ExecutorFailed;
use crate::model::CORE_MODEL;

pub use declared::{InvalidOption, OptionInfo, OptionKind, OptionValue, Options};
pub use types::Collector;

declared::options! {
    /// How a worker listens, what it serves and what its limits are.
    #[derive(Clone, Debug)]
    pub struct WorkerOptions {
        /// The name that OpenAI clients use; KServe clients have their own names
        served_model_name: String = "inflight-demo".to_owned();

        /// KServe name of the model that takes token ids
        // Triton's.
        core_model_name: String = CORE_MODEL.to_owned();

        /// Whether KServe answers leave out the prompt by default; a request may choose
        // As in Triton's models (`exclude_input_in_output`).
        exclude_input_in_output: bool = false;

        /// Whether answers contain log probabilities and logits that were not asked for, as zeros, like those of
        /// Triton's models up to 0.11
        // Their clients read them; newer models answer without.
        fill_outputs: bool = false;

        /// Wrap prompt token ids beyond the vocabulary, modulo its size; NVIDIA's benchmark scripts send such ids
        wrap_token_ids: bool = false;

        /// Whether each streamed response of `tensorrt_llm_bls` repeats the text before it
        // False, as in Triton's model.
        accumulate_tokens: bool = false;

        /// Phases of requests that gateways send here: `both`, `context` for prompts that another worker continues, or
        /// `generation` for what follows them
        // Both, unless a fleet has workers of each kind.
        phases: Phases = Phases::Both;

        /// HOST:PORT of a worker whose model guesses tokens for requests with `num_draft_tokens`
        // It must have the same vocabulary. Without one, such requests are refused.
        draft_worker: Option<String> = None => value_name: Some("HOST:PORT");

        /// KServe name of that worker's core model
        draft_model_name: String = CORE_MODEL.to_owned();

        /// Directory of LoRA adapters that clients may load while the worker runs; without it, they cannot load any
        // None by default: who reaches the port would choose which files are read.
        adapter_dir: Option<PathBuf> = None => kind: OptionKind::Directory;

        /// Largest gRPC message, sent or received
        // Twice the gateway's HTTP body limit: a prompt of token ids is larger than its text.
        max_message_bytes: usize = DEFAULT_MAX_MESSAGE_BYTES => min: Some(1.0);

        /// Seconds that a request may wait for a place in the batch; others are refused at once
        // By the measured service rate. Less than people and clients wait for a first token, and enough to keep
        // the batch full.
        max_queue_wait: Duration = Duration::from_secs(2);

        /// Live requests beyond what the executor runs at once
        // Bounds memory; what bounds the wait is `max_queue_wait`.
        max_queued_requests: usize = 4096;

        /// gRPC connections at once; more are closed
        // A gateway has one, a Triton client one for several streams, and an idle connection costs memory and a
        // file.
        max_grpc_connections: usize = 1024 => min: Some(1.0);

        /// gRPC calls at once on one connection
        // Triton's clients open one stream per request, so this must hold a large batch and its queue.
        max_concurrent_streams: u32 = 8192 => min: Some(1.0);

        /// Seconds without a token while requests wait before the executor counts as failed
        // Longer than any prefill of a full context on a CPU.
        progress_timeout: Duration = Duration::from_secs(300);

        /// Seconds that running requests get at shutdown
        drain_timeout: Duration = Duration::from_secs(10);

        /// Seconds after which a stream whose client reads nothing is ended
        // Its requests are cancelled, because they hold KV blocks that others wait for.
        slow_reader_timeout: Duration = Duration::from_secs(60);

        /// Seconds for the one token that proves readiness
        // Kernel dispatch, graph capture and the first allocations all happen under it.
        canary_timeout: Duration = Duration::from_secs(600);

        /// Address to listen on
        // A name or an address, for all ports. Only this machine can connect until an operator decides otherwise.
        host: String = "127.0.0.1".to_owned();

        /// KServe gRPC port; 0 picks a free port
        // Triton's, as the one below.
        grpc_port: u16 = 8001;

        /// Prometheus metrics port; 0 picks a free port
        metrics_port: u16 = 8002;

        /// Port for KServe over HTTP; 0 picks a free port [default: none]
        // For clients without a gateway, which serves it for all workers.
        http_port: Option<u16> = None;

        /// Port to publish at, over ZeroMQ and as vLLM does, which blocks the KV cache stores and removes; 0 picks a free
        /// port [default: none]
        // For routers of other makers: our gateways hear the same over gRPC. vLLM's is 5557.
        kv_events_port: Option<u16> = None;

        /// Port where listeners ask for events that they missed; 0 picks a free port [default: none]
        kv_events_replay_port: Option<u16> = None;

        /// Topic of the events, such as `kv@POD@MODEL` for llm-d [default: an empty one]
        // As vLLM's: a subscription to everything gets them.
        kv_events_topic: Option<String> = None;

        /// What each event is written as: `maps`, or `arrays` for listeners that know releases of vLLM before 0.33
        // As vLLM's latest. Programs that follow several releases read both.
        kv_events_form: Form = Form::Maps;

        /// Keys of etcd where gateways with `--worker-etcd` find this worker: it writes its address there once it is
        /// ready, and takes it out when it is asked to end
        // With a lease: what is killed is gone there after 15 seconds.
        register_etcd: Option<EtcdPlace> = None => value_name: Some("http://HOST:PORT/PREFIX");

        /// HOST:PORT by which gateways reach this worker, for etcd [default: where gRPC listens]
        // Needed where that is every address of the machine.
        register_address: Option<String> = None => value_name: Some("HOST:PORT");

        /// Certificate of the ports for gRPC and HTTP and its chain, as a PEM file: gateways then need `https://`
        /// before this worker's address. Read again when it changes
        // Metrics and health stay plain. None by default: workers are on the gateway's machine or on a private
        // network.
        tls_certificate: Option<PathBuf> = None => value_name: Some("FILE");

        /// The certificate's private key, as a PEM file without a passphrase
        tls_key: Option<PathBuf> = None => value_name: Some("FILE");

        /// Client CA certificates, as a PEM file: only clients with a certificate that one of them signed may
        /// connect
        tls_client_ca: Option<PathBuf> = None => value_name: Some("FILE");

        /// OTLP collector to which traces of requests are exported over gRPC, such as
        /// `http://localhost:4317` [default: none]
        otlp_endpoint: Collector = Collector(None) => value_name: Some("URL"), environment: Some(ENDPOINT_VARIABLE);

        /// Share of the requests without a `traceparent` that are traced; with one, its sender decides
        trace_sampling_ratio: f64 = DEFAULT_RATIO =>
            value_name: Some("RATIO"), min: Some(0.0), max: Some(1.0), environment: Some(RATIO_VARIABLE);
    } and {
        /// Changes what the process logs, for KServe's log settings. `None`: nobody may.
        log_level: Option<LogLevel> = None;
        /// The files that `ModelAssets.Fetch` sends to a gateway: base name to content.
        assets: BTreeMap<String, Bytes> = BTreeMap::new();
    }
}

impl WorkerOptions {
    /// Where traces of requests go, and of which; `None`: nowhere.
    pub(crate) fn traces(&self) -> Option<TraceOptions> {
        Some(TraceOptions {
            endpoint: self.otlp_endpoint.0.clone()?,
            ratio: self.trace_sampling_ratio,
            service: "inflight-worker",
        })
    }

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
    /// Where the cache's events are published, and where those of the past are asked for.
    pub kv_events: Option<SocketAddr>,
    pub kv_events_replay: Option<SocketAddr>,
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
    #[error("a port for missed KV cache events needs a port for the events; pass both")]
    ReplayWithoutEvents,
    #[error(
        "the executor `{0}` does not report its cache's blocks, so that there are no KV cache events to publish; turn on \
         the reuse of KV cache blocks, or pass no port for the events"
    )]
    NoCacheEvents(String),
    #[error(
        "KV cache events are those of one model, and this worker has `{0}`; start a worker for each, or pass no \
         port for the events"
    )]
    EventsOfSeveral(usize),
    #[error("one worker serves at most `{most}` models; start another worker for more")]
    TooManyModels { most: usize },
    #[error(
        "`{0}` cannot be registered in etcd; pass the address that gateways reach this worker by"
    )]
    RegisterAddress(String),
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
