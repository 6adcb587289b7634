//! The parts that a gateway is made of before it serves: each from its options. Owns no order; knows nothing of ports.

use std::sync::Arc;
use std::time::Duration;

use inflight_batches::{Bounds, Share, StoreError};
use inflight_kserve::client::Network;
use inflight_kv_events::Source;
use inflight_tls::ClientTls;
use inflight_traces::{Flush, TraceError, TraceOptions, Tracer};
use inflight_upstream::chat_templates::ChatTemplates;
use inflight_upstream::connect::Connector;
use inflight_upstream::context::{Context, Limits};
use inflight_upstream::discovery::Discovery;
use inflight_upstream::model::for_model::ForModel;
use inflight_upstream::triton::tokenizers::Tokenizers;

use crate::batches::{Batches, Place};
use crate::metrics::Metrics;
use crate::options::GatewayOptions;
use crate::state::AppState;

/// The store of files and batches, if there is to be one.
pub(super) async fn open_batches(
    options: &GatewayOptions,
) -> Result<Option<Arc<Batches>>, StoreError> {
    let place = match (&options.data_dir, &options.data_url) {
        (Some(directory), _) => Place::Directory(directory.clone()),
        (None, Some(url)) => Place::Database(url.clone()),
        (None, None) => return Ok(None),
    };
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let has_keys = options.api_key.is_some() || options.api_key_file.is_some();
    let bytes = signed(options.stored_files_bytes);
    let bounds = Bounds {
        bytes,
        // Nobody fills it alone.
        owner_bytes: if has_keys { bytes / 2 } else { bytes },
        file_bytes: signed(options.max_file_bytes),
        line_bytes: options.max_body_bytes,
        age: signed(options.stored_files_s),
    };
    let share = Share {
        lines: options.batch_lines,
    };
    let objects = options.data_objects.clone();
    Batches::open(place, objects, bounds, share).await.map(Some)
}

/// What exports traces, if they are wanted.
pub(super) fn start_tracer(
    options: &GatewayOptions,
    metrics: &Metrics,
) -> Result<Option<(Tracer, Flush)>, TraceError> {
    let endpoint = options.otlp_endpoint.as_ref();
    let Some(endpoint) = endpoint.filter(|endpoint| !endpoint.is_empty()) else {
        return Ok(None);
    };
    let dropped = metrics.dropped_spans.clone();
    let options = TraceOptions {
        endpoint: endpoint.clone(),
        ratio: options.trace_sampling_ratio,
        service: "inflight-gateway",
    };
    let on_dropped = move |count| {
        dropped.inc_by(count);
    };
    Tracer::start(&options, on_dropped).map(Some)
}

/// Starts one task that keeps all servers connected; it runs until the set is dropped.
pub(super) fn connect_workers(
    state: &AppState,
    options: &GatewayOptions,
    tokenizers: Tokenizers,
    tls: ClientTls,
    network: Option<Network>,
) -> tokio::task::JoinSet<()> {
    let context = Context {
        table: Arc::clone(&state.table),
        metrics: Arc::clone(&state.metrics.upstream),
        limits: Limits {
            max_message_bytes: options.grpc_max_message_bytes,
            send_queue: options.max_concurrent_requests,
            worker_silence: Duration::from_secs_f64(options.worker_silence_s),
            slow_client: Duration::from_secs(options.slow_client_s),
        },
        templates: chat_templates(options),
        tls,
        kv_events: options.kv_events_port.map(|port| Source {
            port,
            replay_port: options.kv_events_replay_port,
            topic: options.kv_events_topic.clone(),
        }),
        network,
    };
    let connector = Arc::new(Connector::new(context, tokenizers));
    let mut tasks = tokio::task::JoinSet::new();
    let joined = |of_workers: &[String], of_endpoints: &[String]| -> Vec<String> {
        of_workers.iter().chain(of_endpoints).cloned().collect()
    };
    let files = options.worker_files.iter().chain(&options.endpoint_files);
    let discovery = Discovery::new(
        &joined(&options.workers, &options.endpoints),
        &files.cloned().collect::<Vec<_>>(),
        &joined(&options.worker_names, &options.endpoint_names),
    );
    tasks.spawn(discovery.follow(Arc::clone(&state.table), connector));
    tasks
}

/// The templates of `--chat-template` and `--history-template`, by model.
pub(super) fn chat_templates(options: &GatewayOptions) -> ChatTemplates {
    let given = options.chat_templates.iter().map(|one| ForModel {
        model: one.model.clone(),
        value: one.value.0.clone(),
    });
    let history = options.history_template.iter();
    let history = history.chain(&options.history_template_file);
    let history = history.map(|one| ForModel {
        model: None,
        value: one.0.clone(),
    });
    ChatTemplates::new(given.chain(history).collect())
}
