//! From start to shutdown: bind, start the engine's threads, prove readiness, serve, drain.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inflight_kserve::accept::accept;
use inflight_kserve::assets::model_assets_server::ModelAssetsServer;
use inflight_kserve::client::{TransportOptions, server};
use inflight_kserve::inference::grpc_inference_service_server::GrpcInferenceServiceServer;
use inflight_kserve::{FILE_DESCRIPTORS, error_chain};
use inflight_text::ModelFiles;
use inflight_tls::ServerTls;
use inflight_traces::{Flush, Tracer};
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tonic::transport::server::Router;

use crate::assets::Assets;
use crate::catalog::{Catalog, TextSettings};
use crate::engine::{Engine, EngineLimits, Threads};
use crate::executor::{Executor, ModelInfo};
use crate::http::{self, HttpLimits};
use crate::loading::{Listeners, Loading};
use crate::metrics::{self, Metrics};
use crate::options::{BoundAddresses, WorkerError, WorkerExit, WorkerOptions};
use crate::request::Limits;
use crate::service::{ArrivalBudget, Budgeted, DraftWorker, Service, report_health};
use crate::text_models::{TextModels, TextOptions};
use crate::trace::Tracing;

/// How often a draining worker checks whether its requests are done.
const DRAIN_POLL: Duration = Duration::from_millis(10);
/// An executor must give a cancelled request its final row within an iteration.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long clients have to read the last messages before connections are dropped.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an executor has to end its own threads and ranks.
const EXECUTOR_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of requests that one stream may send ahead of being read; a connection may send twice that. Much less
/// than a gateway allows for step messages, because what is unread counts in no budget.
const RECEIVE_WINDOW: u32 = 1 << 20;
/// Without it a model has no text.
const TOKENIZER_FILE: &str = "tokenizer.json";

/// Serves `executor` until `shutdown` resolves or the executor fails.
///
/// `on_bound` is called once both ports are bound; the model is ready only after a one-token request
/// went through the executor. On shutdown, running requests get `drain_timeout`, then are cancelled;
/// the executor is shut down at the end, also when the start failed. Must run inside a tokio runtime with
/// time and I/O. One thread is enough and best: with it, a connection writes once for all its streams that
/// moved.
///
/// # Errors
/// When a port cannot be bound, a thread cannot be started, or the gRPC server fails.
pub async fn serve(
    executor: Arc<dyn Executor>,
    options: WorkerOptions,
    on_bound: impl FnOnce(BoundAddresses) + Send,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<WorkerExit, WorkerError> {
    serve_loaded(executor, options, None, on_bound, shutdown).await
}

/// The same on the ports of a worker that answered while its model was [`Loading`].
///
/// # Errors
/// As [`serve`].
pub async fn serve_loaded(
    executor: Arc<dyn Executor>,
    options: WorkerOptions,
    loading: Option<Loading>,
    on_bound: impl FnOnce(BoundAddresses) + Send,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<WorkerExit, WorkerError> {
    let info = executor.info();
    let started = match start(&executor, &info, &options, loading).await {
        Ok(started) => started,
        Err(error) => {
            // It holds a GPU, and perhaps processes of its own.
            end_executor(executor, []).await;
            return Err(error);
        }
    };
    let Started {
        grpc,
        metrics,
        http,
        tls,
        engine,
        threads,
        draft,
        traces,
    } = started;
    let (tracer, flush) = traces.unzip();
    let core_model: Arc<str> = options.core_model_name.as_str().into();
    let limits = Limits {
        core_model: Arc::clone(&core_model),
        info: info.clone(),
        max_message_bytes: options.max_message_bytes,
        excludes_input: options.exclude_input_in_output,
        fills_outputs: options.fill_outputs,
        wraps_token_ids: options.wrap_token_ids,
    };
    let has_text = options.assets.contains_key(TOKENIZER_FILE);
    let settings = TextSettings {
        accumulates: options.accumulate_tokens,
        excludes_input: options.exclude_input_in_output,
    };
    let catalog = Arc::new(Catalog::new(
        core_model,
        info.clone(),
        has_text.then_some(settings),
    ));
    if has_text {
        load_text(Arc::clone(&catalog), &options, &info);
    }
    let service = Service::new(
        Arc::clone(&engine),
        limits,
        catalog,
        options.log_level.clone(),
        draft,
        tracer
            .zip(options.traces.as_ref())
            .map(|(tracer, options)| {
                let endpoint = options.endpoint.clone();
                Tracing::new(tracer, endpoint)
            }),
    );
    let (reporter, health_service) = tonic_health::server::health_reporter();
    let reporting = tokio::spawn(report_health(service.shared(), reporter));
    let assets = Assets::new(
        options.served_model_name.clone(),
        &options.core_model_name,
        options.assets.clone(),
        &info,
    );
    let budget = ArrivalBudget::new(options.max_message_bytes);
    let (stop_grpc, stopped) = oneshot::channel::<()>();
    let router = server(&TransportOptions {
        max_message_bytes: options.max_message_bytes,
        stream_window_bytes: RECEIVE_WINDOW,
        connection_window_bytes: 2 * RECEIVE_WINDOW,
        ..TransportOptions::default()
    })
    .max_concurrent_streams(options.max_concurrent_streams)
    .add_service(Budgeted::new(
        GrpcInferenceServiceServer::new(service.clone())
            .max_decoding_message_size(options.max_message_bytes)
            .max_encoding_message_size(options.max_message_bytes),
        budget.clone(),
    ))
    .add_service(Budgeted::new(
        ModelAssetsServer::new(assets),
        budget.clone(),
    ))
    .add_service(Budgeted::new(health_service, budget.clone()));
    let router = with_reflection(router, budget);
    let mut serving: JoinHandle<Result<(), tonic::transport::Error>> =
        tokio::spawn(router.serve_with_incoming_shutdown(
            accept(grpc.0, options.max_grpc_connections, tls.clone()),
            async {
                // A dropped sender stops the server as well.
                let _ = stopped.await;
            },
        ));
    let is_tls = tls.is_some();
    let stop_metrics = Arc::new(Notify::new());
    let metrics_server = tokio::spawn(metrics::serve(
        metrics.0,
        Arc::clone(&engine),
        Arc::clone(&stop_metrics),
    ));
    let (stop_http, http_stopped) = watch::channel(false);
    let http_address = http.as_ref().map(|(_, address)| *address);
    let http_server = http.map(|(listener, _)| {
        let limits = HttpLimits {
            max_connections: options.max_grpc_connections,
            max_body_bytes: options.max_message_bytes,
        };
        let service = service.clone();
        tokio::spawn(http::serve(listener, tls, service, limits, http_stopped))
    });
    on_bound(BoundAddresses {
        grpc: grpc.1,
        metrics: metrics.1,
        http: http_address,
        is_tls,
    });

    let wakes = tokio::spawn({
        let engine = Arc::clone(&engine);
        async move { engine.run_wakes().await }
    });
    let expiry = tokio::spawn({
        let engine = Arc::clone(&engine);
        async move { engine.run_expiry().await }
    });
    let model = options.served_model_name.clone();
    let canary = tokio::spawn(prove(Arc::clone(&engine), model, options.canary_timeout));
    let watchdog = tokio::spawn(watch_progress(
        Arc::clone(&engine),
        options.progress_timeout,
    ));
    let mut health = engine.health();
    let ended = tokio::select! {
        () = shutdown => None,
        // The sender lives as long as `engine`.
        _ = health.wait_for(|health| health.failed.is_some()) => None,
        ended = &mut serving => Some(ended),
    };
    canary.abort();
    if ended.is_none() {
        drain(&engine, &options).await;
        service.finish_streams();
        let _ = stop_grpc.send(());
        stop_http.send_replace(true);
        if timeout(FLUSH_TIMEOUT, &mut serving).await.is_err() {
            serving.abort();
        }
    }
    reporting.abort();
    if let Some(mut server) = http_server
        && timeout(FLUSH_TIMEOUT, &mut server).await.is_err()
    {
        server.abort();
    }
    watchdog.abort();
    expiry.abort();
    wakes.abort();
    stop_metrics.notify_one();
    metrics_server.abort();
    engine.stop();
    if let Some(flush) = flush
        && !flush.within(FLUSH_TIMEOUT).await
    {
        tracing::warn!("the last traces were not exported in time");
    }
    end_executor(executor, threads).await;
    if let Some(reason) = engine.health().borrow().failed.clone() {
        return Ok(WorkerExit::ExecutorFailed(reason));
    }
    match ended {
        Some(Ok(Err(error))) => Err(WorkerError::Server(error)),
        _ => Ok(WorkerExit::Shutdown),
    }
}

/// What can fail before anything is served.
struct Started {
    grpc: (TcpListener, SocketAddr),
    metrics: (TcpListener, SocketAddr),
    http: Option<(TcpListener, SocketAddr)>,
    tls: Option<ServerTls>,
    engine: Arc<Engine>,
    threads: Threads,
    draft: Option<DraftWorker>,
    traces: Option<(Tracer, Flush)>,
}

async fn start(
    executor: &Arc<dyn Executor>,
    info: &ModelInfo,
    options: &WorkerOptions,
    loading: Option<Loading>,
) -> Result<Started, WorkerError> {
    let draft = options
        .draft_worker
        .as_deref()
        .map(|address| DraftWorker::new(address, options.max_message_bytes))
        .transpose()
        .map_err(WorkerError::DraftWorker)?;
    let tls = options.tls()?;
    let Listeners {
        grpc,
        metrics,
        http,
    } = match loading.and_then(Loading::finish) {
        Some(listeners) => listeners,
        None => Listeners::bind(options).await?,
    };
    let metrics_of_core = Arc::new(Metrics::new(
        options.core_model_name.as_str().into(),
        options.served_model_name.as_str().into(),
    ));
    let traces = match &options.traces {
        Some(traces) => {
            let metrics = Arc::clone(&metrics_of_core);
            let on_dropped = move |spans| metrics.dropped_spans(spans);
            Some(Tracer::start(traces, on_dropped).map_err(WorkerError::Traces)?)
        }
        None => None,
    };
    let on_runtime = |purpose, (listener, address): (std::net::TcpListener, SocketAddr)| {
        let listener = TcpListener::from_std(listener);
        let listener = listener.map_err(|source| WorkerError::Bind {
            address: address.to_string(),
            purpose,
            source,
        })?;
        Ok((listener, address))
    };
    let grpc = on_runtime("gRPC", grpc)?;
    let metrics = on_runtime("metrics", metrics)?;
    let http = http.map(|http| on_runtime("HTTP", http)).transpose()?;
    let (engine, threads) = Engine::start(
        Arc::clone(executor),
        EngineLimits {
            max_live: options
                .max_queued_requests
                .saturating_add(info.max_batch_size as usize),
            places: info.max_batch_size,
            max_queue_wait: options.max_queue_wait,
            slow_reader_timeout: options.slow_reader_timeout,
        },
        metrics_of_core,
    )?;
    Ok(Started {
        grpc,
        metrics,
        http,
        tls,
        engine,
        threads,
        draft,
        traces,
    })
}

/// Describes all services to tools such as grpcurl, in both versions of the reflection protocol.
fn with_reflection(router: Router, budget: ArrivalBudget) -> Router {
    let builder = || {
        FILE_DESCRIPTORS
            .into_iter()
            .chain([tonic_health::pb::FILE_DESCRIPTOR_SET])
            .fold(
                tonic_reflection::server::Builder::configure(),
                |builder, files| builder.register_encoded_file_descriptor_set(files),
            )
    };
    match (builder().build_v1(), builder().build_v1alpha()) {
        (Ok(newer), Ok(older)) => router
            .add_service(Budgeted::new(newer, budget.clone()))
            .add_service(Budgeted::new(older, budget)),
        (Err(error), _) | (_, Err(error)) => {
            tracing::warn!(%error, "the reflection service is not available");
            router
        }
    }
}

/// Reads the text models' files beside everything else that starts.
fn load_text(catalog: Arc<Catalog>, options: &WorkerOptions, info: &ModelInfo) {
    let files: ModelFiles = options
        .assets
        .iter()
        .map(|(name, content)| (name.clone(), content.to_vec()))
        .collect();
    let options = TextOptions {
        vocab_size: Some(info.vocab_size),
        max_input_len: Some(info.max_input_len),
        max_batch_size: info.max_batch_size as usize,
        exclude_input_in_output: options.exclude_input_in_output,
        accumulate_tokens: options.accumulate_tokens,
        core_model: options.core_model_name.clone(),
        draft_model: options
            .draft_worker
            .as_ref()
            .map(|_| options.draft_model_name.clone()),
        ..TextOptions::default()
    };
    tokio::task::spawn_blocking(move || {
        let loaded = TextModels::load(&files, options).map_err(|error| error_chain(&error));
        if let Err(reason) = &loaded {
            tracing::warn!(reason, "the text models are unavailable");
        }
        catalog.set_text(loaded);
    });
}

/// Asks the executor for one token; the worker is ready once it has come.
async fn prove(engine: Arc<Engine>, model: String, limit: Duration) {
    match timeout(limit, engine.submit_canary()).await {
        Ok(Ok(Ok(()))) => {
            engine.set_proven();
            tracing::info!(model, "worker ready");
        }
        Ok(Ok(Err(text))) => {
            engine.fail(&format!("the executor failed on its first token: {text}"));
        }
        // The sender is dropped only when the engine has failed already.
        Ok(Err(_)) => engine.fail("the executor ended before its first token"),
        Err(_) => engine.fail(&format!(
            "the executor produced no first token within `{}` s",
            limit.as_secs()
        )),
    }
}

/// Fails an executor that neither answers nor reports an error.
async fn watch_progress(engine: Arc<Engine>, limit: Duration) {
    let health = engine.health();
    loop {
        sleep((limit / 4).max(Duration::from_millis(10))).await;
        // The canary has a limit of its own.
        let proven = health.borrow().proven;
        if proven
            && engine
                .stalled_for(Instant::now())
                .is_some_and(|stalled| stalled > limit)
        {
            return engine.fail(&format!(
                "the executor made no progress for `{}` s with requests waiting",
                limit.as_secs()
            ));
        }
    }
}

/// Lets requests finish, then cancels the rest.
async fn drain(engine: &Engine, options: &WorkerOptions) {
    engine.begin_drain();
    if settled(engine, options.drain_timeout).await {
        return;
    }
    tracing::warn!(
        requests = engine.live(),
        drain_timeout_s = options.drain_timeout.as_secs(),
        "cancelled the requests that did not finish in time"
    );
    engine.cancel_all();
    settled(engine, CANCEL_TIMEOUT).await;
}

async fn settled(engine: &Engine, limit: Duration) -> bool {
    let quiet = async {
        while engine.live() > 0 {
            sleep(DRAIN_POLL).await;
        }
    };
    timeout(limit, quiet).await.is_ok()
}

/// Shuts the executor down and waits for the engine threads, unless either is stuck.
async fn end_executor(
    executor: Arc<dyn Executor>,
    threads: impl IntoIterator<Item = oneshot::Receiver<()>>,
) {
    let ending = async {
        // A Python executor may take long, and holds the interpreter's lock meanwhile.
        let _ = tokio::task::spawn_blocking(move || executor.shutdown()).await;
        for thread in threads {
            let _ = thread.await;
        }
    };
    if timeout(EXECUTOR_SHUTDOWN_TIMEOUT, ending).await.is_err() {
        tracing::warn!(
            timeout_s = EXECUTOR_SHUTDOWN_TIMEOUT.as_secs(),
            "the executor did not shut down in time"
        );
    }
}
