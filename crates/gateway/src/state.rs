//! What all handlers share. Owns nothing but the parts themselves; starting and stopping them is `run`'s.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use inflight_clients::admission::{Admission, Work};
use inflight_guides::checks::Guides;
use inflight_images::{Images, Rules};
use inflight_models::format_options::FormatOptions;
use inflight_openai::ReasoningField;
use inflight_response_store::{Bounds, ResponseStore};
use inflight_streams::requests::Requests;
use inflight_traces::Tracer;
use inflight_upstream::delivery::ResumeLimits;
use inflight_upstream::ending::Ending;
use inflight_upstream::forward::Forward;
use inflight_upstream::phases::Disaggregate;
use inflight_upstream::table::Table;
use tokio::time::Instant;

use crate::access::Access;
use crate::batches::Batches;
use crate::metrics::Metrics;
use crate::options::GatewayOptions;

/// All bodies together may take 16 times the largest one, but never less than this, so that a small
/// limit on one body does not limit how many there are.
const MIN_BODY_MEMORY: usize = 256 << 20;

/// Shared by all handlers.
#[derive(Debug)]
pub(crate) struct AppState {
    pub table: Arc<Table>,
    /// For KServe's clients.
    pub forward: Arc<Forward>,
    pub metrics: Arc<Metrics>,
    pub admission: Admission,
    pub guides: Guides,
    pub images: Images,
    /// What `/v1/responses` answered.
    pub responses: Arc<ResponseStore>,
    pub formats: FormatOptions,
    /// Files and batches; `None`: they are off.
    pub batches: Option<Arc<Batches>>,
    /// What chat answers call the model's reasoning.
    pub reasoning_field: ReasoningField,
    pub max_body_bytes: usize,
    pub allows_lora_loading: bool,
    pub serves_kserve: bool,
    /// For the console; `None`: it is off.
    pub requests: Option<Arc<Requests>>,
    pub request_timeout: Option<Duration>,
    /// How long a request's first token may take.
    pub first_token_timeout: Option<Duration>,
    /// How far an answer that has begun may continue elsewhere.
    pub resume_limits: ResumeLimits,
    pub disaggregate: Disaggregate,
    pub access: Access,
    /// `None`: no traces are exported.
    pub tracer: Option<Tracer>,
    /// Set when the gateway stops accepting: it is no longer ready.
    draining: AtomicBool,
    /// Set when what is still open is to end.
    pub(crate) ending: Ending,
}

impl AppState {
    /// When a request from `started` on must have been answered, by the operator's limit.
    pub(crate) fn deadline(&self, started: Instant) -> Option<Instant> {
        started.checked_add(self.request_timeout?)
    }

    /// When the first output of a request from `started` on must have come, and how long that is.
    pub(crate) fn first_output(&self, started: Instant) -> Option<(Instant, Duration)> {
        let limit = self.first_token_timeout?;
        Some((started.checked_add(limit)?, limit))
    }

    /// What preparing a conversation is: the model is known only once its body has been read.
    pub(crate) fn rendering(&self) -> Work {
        match self.table.renders_at_once() {
            true => Work::Computes,
            false => Work::Renders,
        }
    }

    /// The state for these options, before any worker is connected.
    pub(crate) fn new(
        options: &GatewayOptions,
        metrics: Arc<Metrics>,
        tracer: Option<Tracer>,
        batches: Option<Arc<Batches>>,
    ) -> Arc<Self> {
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
        let body_memory = options
            .max_body_bytes
            .saturating_mul(16)
            .max(MIN_BODY_MEMORY);
        // Discovery fills it.
        let table = Arc::new(Table::new(&[]).counted(metrics.upstream.placements.clone()));
        let ending = Ending::default();
        let resume_limits = ResumeLimits {
            most: options.max_resumes,
            wait: Duration::from_secs(options.resume_wait_s),
            tokens: options.max_resumed_tokens.map_or(usize::MAX, |most| {
                usize::try_from(most).unwrap_or(usize::MAX)
            }),
        };
        Arc::new(Self {
            forward: Arc::new(Forward::new(
                Arc::clone(&table),
                Arc::clone(&metrics.upstream),
                resume_limits,
                ending.clone(),
                options.allow_lora_loading,
            )),
            table,
            metrics,
            admission: Admission::new(options.max_concurrent_requests, threads, body_memory),
            guides: Guides::default(),
            images: Images::new(Rules {
                hosts: options.image_hosts.clone(),
                networks: options.image_networks.clone(),
                max_bytes: options.image_max_bytes,
                // A message has the prompt as well.
                max_total_bytes: options.grpc_max_message_bytes / 4 * 3,
                max_images: options.images_per_request,
                timeout: Duration::from_secs(options.image_timeout_s),
            }),
            responses: ResponseStore::new(Bounds {
                entries: options.max_stored_responses,
                bytes: options.stored_responses_bytes,
                age: Duration::from_secs(options.stored_responses_s),
            }),
            batches,
            formats: FormatOptions::new(&options.tool_parsers, &options.reasoning_parsers),
            reasoning_field: options.reasoning_field,
            max_body_bytes: options.max_body_bytes,
            allows_lora_loading: options.allow_lora_loading,
            serves_kserve: options.kserve,
            requests: options.console.then(Arc::default),
            request_timeout: options.request_timeout_s.map(Duration::from_secs),
            first_token_timeout: options.first_token_timeout_s.map(Duration::from_secs),
            resume_limits,
            disaggregate: options.disaggregate,
            access: Access::new(options),
            tracer,
            draining: AtomicBool::new(false),
            ending,
        })
    }

    /// Whether the gateway has begun to shut down.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Begins the shutdown as far as readiness shows it.
    pub(crate) fn start_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }
}
