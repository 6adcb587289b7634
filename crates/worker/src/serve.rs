//! From start to shutdown: bind, start the engine's threads, prove readiness, serve, drain.

mod events;
mod ports;
mod services;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, ready, select_all};
use inflight_base::accept::accept;
use inflight_base::net::Listener;
use inflight_discovery::etcd::Registration;
use inflight_tls::ServerTls;
use inflight_traces::{Flush, Tracer};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::ports::{Addresses, Ports};
use crate::adapters::Adapters;
use crate::assets::Assets;
use crate::engine::{Driving, Engine, Threads};
use crate::executor::Executor;
use crate::hosted::{
    FurtherModel, Hosted, check_names, drain, end_executor, prove, watch_progress,
};
use crate::http::{self, HttpLimits};
use crate::loading::Loading;
use crate::metrics::{self, Metrics};
use crate::options::{BoundAddresses, WorkerError, WorkerExit, WorkerOptions};
use crate::registration;
use crate::service::{Common, DraftWorker, Models, Service, report_health};
use crate::trace::Tracing;

/// How long clients have to read the last messages before connections are dropped.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the runtime looks at the executor where no thread waits for it.
const TURN: Duration = Duration::from_millis(1);

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
    serve_models(executor, Vec::new(), options, None, on_bound, shutdown).await
}

/// The same with `further` models in the process, and on the ports of a worker that answered while they were
/// [`Loading`]. The worker is ready when all of them are, and ends when any executor fails.
///
/// # Errors
/// As [`serve`], and where two models have one name.
pub async fn serve_models(
    executor: Arc<dyn Executor>,
    further: Vec<FurtherModel>,
    options: WorkerOptions,
    loading: Option<Loading>,
    on_bound: impl FnOnce(BoundAddresses) + Send,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<WorkerExit, WorkerError> {
    let first = Hosted::first(executor, &options);
    let further = further.into_iter().map(Hosted::further);
    let models: Vec<Hosted> = std::iter::once(first).chain(further).collect();
    let ports = Ports::of_machine(&options, loading);
    let on_ready = |addresses: &Addresses, is_tls| {
        if let Some(metrics) = addresses.metrics {
            on_bound(BoundAddresses {
                grpc: addresses.grpc,
                metrics,
                http: addresses.http,
                kv_events: addresses.kv_events,
                kv_events_replay: addresses.kv_events_replay,
                is_tls,
            });
        }
    };
    serve_hosted(
        models,
        &options,
        Driving::Threads,
        ports,
        on_ready,
        shutdown,
    )
    .await
}

/// Serves gRPC on a `listener` of another network than the machine's, until `shutdown` resolves or the executor fails.
/// There are no other ports and no threads: the runtime's own thread calls the executor, whose calls must therefore
/// return at once.
///
/// # Errors
/// When the gRPC server fails.
pub async fn serve_on_network<L: Listener>(
    listener: L,
    address: SocketAddr,
    executor: Arc<dyn Executor>,
    options: WorkerOptions,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<WorkerExit, WorkerError> {
    let models = vec![Hosted::first(executor, &options)];
    let ports = ready(Ok(Ports {
        grpc: (listener, address),
        metrics: None,
        http: None,
        kv_events: None,
        kv_events_replay: None,
    }));
    serve_hosted(
        models,
        &options,
        Driving::Runtime,
        ports,
        |_, _| (),
        shutdown,
    )
    .await
}

async fn serve_hosted<L: Listener>(
    models: Vec<Hosted>,
    options: &WorkerOptions,
    driving: Driving,
    ports: impl Future<Output = Result<Ports<L>, WorkerError>> + Send,
    on_bound: impl FnOnce(&Addresses, bool) + Send,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<WorkerExit, WorkerError> {
    let started = match start(&models, options, driving, ports).await {
        Ok(started) => started,
        Err(error) => {
            // They hold GPUs, and perhaps their own processes.
            let executors = models.into_iter().map(|model| model.executor);
            join_all(executors.map(|executor| end_executor(executor, []))).await;
            return Err(error);
        }
    };
    let addresses = started.ports.addresses();
    let Started {
        ports:
            Ports {
                grpc,
                metrics,
                http,
                kv_events,
                kv_events_replay,
            },
        tls,
        engines,
        threads,
        draft,
        traces,
        adapters,
        registration,
    } = started;
    let (tracer, flush) = traces.unzip();
    let tracing = tracer
        .zip(options.traces())
        .map(|(tracer, traces)| Tracing::new(tracer, traces.endpoint));
    let common = Common::new(options.log_level.clone(), tracing);
    // The draft worker guesses for the first model, since others have another vocabulary; adapters are its own, too.
    let of_first = std::iter::once((draft, adapters.clone()));
    let of_first = of_first.chain(std::iter::repeat_with(|| (None, None)));
    let parts = models.iter().zip(&engines).zip(of_first);
    let mut parts = parts.map(|((model, engine), (draft, adapters))| {
        model.parts(options, Arc::clone(engine), draft, adapters)
    });
    let (Some(first), Some(adapters)) = (parts.next(), adapters) else {
        // There is always a first model.
        return Ok(WorkerExit::Shutdown);
    };
    let service = Service::new(Models::new(common, first, parts), Arc::clone(&adapters));
    let (reporter, health_service) = tonic_health::server::health_reporter();
    let reporting = tokio::spawn(report_health(service.models(), reporter));
    let assets = Assets::new(&models, Arc::clone(&adapters), options.phases);
    let router = services::router(&service, assets, health_service, options);
    let stop = CancellationToken::new();
    let (grpc, _) = grpc;
    let mut serving: JoinHandle<Result<(), tonic::transport::Error>> =
        tokio::spawn(router.serve_with_incoming_shutdown(
            accept(grpc, options.max_grpc_connections, tls.clone()),
            stop.clone().cancelled_owned(),
        ));
    let is_tls = tls.is_some();
    let metrics_server =
        metrics.map(|(listener, _)| tokio::spawn(metrics::serve(listener, engines.clone())));
    let http_server = http.map(|(listener, _)| {
        let limits = HttpLimits {
            max_connections: options.max_grpc_connections,
            max_body_bytes: options.max_message_bytes,
        };
        let (service, stop) = (service.clone(), stop.clone());
        tokio::spawn(http::serve(listener, tls, service, limits, stop))
    });
    let mut publishing = match (kv_events, models.first()) {
        (Some((live, _)), Some(model)) => {
            let past = kv_events_replay.map(|(past, _)| past);
            let topic = options.kv_events_topic.as_deref().unwrap_or_default();
            let as_asked = (topic, options.kv_events_form);
            events::start(live, past, model, adapters, as_asked)
        }
        _ => JoinSet::new(),
    };
    on_bound(&addresses, is_tls);
    let unregister = CancellationToken::new();
    let registered = registration.map(|one| registration::start(one, &engines, unregister.clone()));

    let mut tasks = run_engines(&engines, driving, options.progress_timeout);
    let mut canaries = JoinSet::new();
    for (engine, model) in engines.iter().zip(&models) {
        let transcribes = model.transcribes();
        canaries.spawn(prove(
            Arc::clone(engine),
            options.canary_timeout,
            transcribes,
        ));
    }
    let any_failed = select_all(engines.iter().map(|engine| {
        let mut health = engine.health();
        Box::pin(async move {
            // The sender lives as long as the engine.
            let _ = health.wait_for(|health| health.failed.is_some()).await;
        })
    }));
    let ended = tokio::select! {
        () = shutdown => None,
        _ = any_failed => None,
        ended = &mut serving => Some(ended),
    };
    canaries.abort_all();
    unregister.cancel();
    if ended.is_none() {
        service.announce_leaving();
        join_all(
            engines
                .iter()
                .map(|engine| drain(engine, options.drain_timeout)),
        )
        .await;
        service.finish_streams();
        stop.cancel();
        if timeout(FLUSH_TIMEOUT, &mut serving).await.is_err() {
            serving.abort();
        }
    }
    reporting.abort();
    if let Some(registered) = registered {
        // It bounds its own end.
        let _ = registered.await;
    }
    if let Some(mut server) = http_server
        && timeout(FLUSH_TIMEOUT, &mut server).await.is_err()
    {
        server.abort();
    }
    tasks.abort_all();
    publishing.abort_all();
    if let Some(server) = metrics_server {
        server.abort();
    }
    for engine in &engines {
        engine.stop();
    }
    if let Some(flush) = flush
        && !flush.within(FLUSH_TIMEOUT).await
    {
        tracing::warn!("the last traces were not exported in time");
    }
    let executors = models.into_iter().map(|model| model.executor);
    let ending = executors.zip(threads);
    join_all(ending.map(|(executor, threads)| end_executor(executor, threads))).await;
    if let Some(reason) = failure(&engines) {
        return Ok(WorkerExit::ExecutorFailed(reason));
    }
    match ended {
        Some(Ok(Err(error))) => Err(WorkerError::Server(error)),
        _ => Ok(WorkerExit::Shutdown),
    }
}

/// Starts what runs next to the engines until it is aborted.
fn run_engines(
    engines: &[Arc<Engine>],
    driving: Driving,
    progress_timeout: Duration,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for engine in engines {
        let own = || Arc::clone(engine);
        let (waking, expiring) = (own(), own());
        tasks.spawn(async move { waking.run_wakes().await });
        tasks.spawn(async move { expiring.run_expiry().await });
        tasks.spawn(watch_progress(own(), progress_timeout));
        if driving == Driving::Runtime {
            let driven = own();
            tasks.spawn(async move { driven.run_on_runtime(TURN).await });
        }
    }
    tasks
}

/// Why the worker ends, where an executor has failed; of several models, which one.
fn failure(engines: &[Arc<Engine>]) -> Option<String> {
    engines.iter().find_map(|engine| {
        let reason = engine.health().borrow().failed.clone()?;
        let model = engine.metrics.served_model();
        Some(match engines.len() {
            1 => reason,
            _ => format!("`{model}`: {reason}"),
        })
    })
}

/// What can fail before anything is served.
struct Started<L> {
    ports: Ports<L>,
    tls: Option<ServerTls>,
    /// In the order of the models.
    engines: Vec<Arc<Engine>>,
    threads: Vec<Threads>,
    draft: Option<DraftWorker>,
    traces: Option<(Tracer, Flush)>,
    /// Of the first model.
    adapters: Option<Arc<Adapters>>,
    registration: Option<Registration>,
}

async fn start<L>(
    models: &[Hosted],
    options: &WorkerOptions,
    driving: Driving,
    ports: impl Future<Output = Result<Ports<L>, WorkerError>> + Send,
) -> Result<Started<L>, WorkerError> {
    check_names(models)?;
    events::check(models, options)?;
    let draft = options
        .draft_worker
        .as_deref()
        .map(|address| DraftWorker::new(address, options.max_message_bytes))
        .transpose()
        .map_err(WorkerError::DraftWorker)?;
    let tls = options.tls()?;
    let adapters = models.first().map(|first| {
        let directory = options.adapter_dir.as_deref();
        Adapters::new(Arc::clone(&first.executor), &first.info, directory).map(Arc::new)
    });
    let adapters = adapters.transpose()?;
    let ports = ports.await?;
    let registration = registration::planned(options, ports.addresses().grpc, tls.is_some())?;
    let counters: Vec<Arc<Metrics>> = models
        .iter()
        .map(|model| {
            let served = model.served_name.as_str().into();
            Arc::new(Metrics::new(Arc::clone(model.names.core()), served))
        })
        .collect();
    let traces = match options.traces() {
        Some(traces) => {
            // All models' spans take one way; those that are lost on it are the first model's.
            let counters = counters.first().cloned();
            let on_dropped = move |spans| {
                if let Some(metrics) = &counters {
                    metrics.dropped_spans(spans);
                }
            };
            Some(Tracer::start(&traces, on_dropped).map_err(WorkerError::Traces)?)
        }
        None => None,
    };
    let (mut engines, mut threads) = (Vec::<Arc<Engine>>::new(), Vec::new());
    for (place, (model, metrics)) in models.iter().zip(counters).enumerate() {
        let started = model.start_engine(options, metrics, place, models.len(), driving);
        let (engine, own) = started.inspect_err(|_| {
            for engine in &engines {
                engine.stop();
            }
        })?;
        engines.push(engine);
        threads.push(own);
    }
    Ok(Started {
        ports,
        tls,
        engines,
        threads,
        draft,
        traces,
        adapters,
        registration,
    })
}
