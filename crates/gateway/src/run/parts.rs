//! The parts that a gateway is made of before it serves: each from its options. Owns no order; knows nothing of ports.

use std::sync::Arc;
use std::time::Duration;

use inflight_batches::{Bounds, Share, StoreError};
use inflight_discovery::Source;
use inflight_discovery::etcd::Etcd;
use inflight_discovery::kubernetes::{Api, NoApi, Service};
use inflight_discovery::names::DnsName;
use inflight_kserve::client::{Network, TransportOptions};
use inflight_kv_events::Source as KvEvents;
use inflight_models::for_model::ForModel;
use inflight_tls::ClientTls;
use inflight_traces::{Flush, TraceError, TraceOptions, Tracer};
use inflight_upstream::chat_templates::ChatTemplates;
use inflight_upstream::connect::Connector;
use inflight_upstream::context::{Context, Limits};
use inflight_upstream::discovery::Discovery;
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

/// What says where servers are, besides the addresses that were given.
pub(super) fn sources(
    options: &GatewayOptions,
    tls: &ClientTls,
    network: Option<&Network>,
) -> Result<Vec<Source>, NoApi> {
    let files = options.worker_files.iter().chain(&options.endpoint_files);
    let files = files.cloned().map(Source::File);
    let names = options.worker_names.iter().chain(&options.endpoint_names);
    let names = names.cloned();
    let names = names.map(|name| Source::Name(DnsName(name)));
    let mut sources: Vec<Source> = files.chain(names).collect();
    if !options.worker_services.is_empty() {
        let api = match &options.kubernetes_api {
            Some(api) => api.clone(),
            None => Api::of_pod(|name| std::env::var(name).ok())?,
        };
        let api = api.with_credentials(&options.kubernetes_credentials);
        let api = api.over(network.cloned());
        let services = options.worker_services.iter().cloned();
        sources.extend(services.map(|name| Source::Service(Service::new(name, api.clone()))));
    }
    let transport = TransportOptions {
        tls: tls.clone(),
        network: network.cloned(),
        ..TransportOptions::default()
    };
    let places = options.worker_etcd.iter().cloned();
    sources.extend(places.map(|place| Source::Etcd(Etcd::new(place, transport.clone()))));
    Ok(sources)
}

/// Starts one task that keeps all servers connected; it runs until the set is dropped.
pub(super) fn connect_workers(
    state: &AppState,
    options: &GatewayOptions,
    tokenizers: Tokenizers,
    tls: ClientTls,
    network: Option<Network>,
    sources: Vec<Source>,
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
        kv_events: options.kv_events_port.map(|port| KvEvents {
            port,
            replay_port: options.kv_events_replay_port,
            topic: options.kv_events_topic.clone(),
        }),
        network,
    };
    let connector = Arc::new(Connector::new(context, tokenizers));
    let mut tasks = tokio::task::JoinSet::new();
    let counted = state.metrics.upstream.discovery.clone();
    let grace = Duration::from_secs(options.unlisted_worker_s);
    let given = options.workers.iter().chain(&options.endpoints);
    let given: Vec<String> = given.cloned().collect();
    let discovery = Discovery::new(&given, sources, grace);
    tasks.spawn(discovery.follow(Arc::clone(&state.table), connector, counted));
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
