//! Runs a worker inside the Python process: owns the tokio runtime, the GIL's release around it and the
//! exit codes. What is served and how is `inflight_worker`'s.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use inflight_worker::executor::Executor;
use inflight_worker::{
    BoundAddresses, FurtherModel, Loading, SimulatedExecutor, WorkerExit, WorkerOptions,
};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::error;
use crate::executor::PythonExecutor;
use crate::options::{PySimulatedOptions, PyWorkerOptions};
use crate::process;

/// The exit code of a worker whose executor failed. Distinct from 1 (could not start) and 2 (usage), so
/// that a supervisor can distinguish a broken engine from a bad command line.
pub(crate) const EXIT_EXECUTOR_FAILED: i32 = 3;
const EXIT_FAILED: i32 = 1;
/// What blocking tasks get after the server has ended; they hold nothing that must be kept.
const RUNTIME_SHUTDOWN: Duration = Duration::from_secs(1);

/// Serves an executor with the protocol of `inflight.executors.base.Executor` until SIGINT or SIGTERM, and `further`
/// models with their own executors.
///
/// Blocks with the GIL released. The first signal drains, the second ends the process at once. Returns
/// the exit code: 0 after a signal, 3 when the executor failed, 1 when the worker could not continue.
///
/// # Errors
/// Whatever the executor's `info()` raises; `RuntimeError` in a forked child.
#[pyfunction]
#[pyo3(signature = (executor, options, loading=None, further=None))]
pub(crate) fn serve_worker(
    py: Python<'_>,
    executor: &Bound<'_, PyAny>,
    options: &Bound<'_, PyWorkerOptions>,
    loading: Option<&Bound<'_, PyLoadingWorker>>,
    further: Option<Vec<Further<Bound<'_, PyAny>>>>,
) -> PyResult<i32> {
    process::refuse_after_fork()?;
    process::start_log();
    let executor = Arc::new(PythonExecutor::new(executor)?);
    let further = further
        .into_iter()
        .flatten()
        .map(|(name, executor, assets)| {
            let executor = Arc::new(PythonExecutor::new(&executor)?);
            Ok(further_model(name, executor, assets))
        });
    let further = further.collect::<PyResult<_>>()?;
    let loading = loading.and_then(|loading| loading.get().lock().take());
    serve(py, executor, further, options.get().0.clone(), loading)
}

/// A further model as Python gives it: its name, what generates its tokens, and its files by name.
type Further<T> = (String, T, BTreeMap<String, Vec<u8>>);

fn further_model(
    name: String,
    executor: Arc<dyn Executor>,
    assets: BTreeMap<String, Vec<u8>>,
) -> FurtherModel {
    let assets = assets.into_iter();
    FurtherModel {
        name,
        executor,
        assets: assets
            .map(|(name, content)| (name, Bytes::from(content)))
            .collect(),
    }
}

/// Serves the simulated executor: tokens on a timing model, with no model behind them; and `further` models that are
/// simulated as well.
///
/// Blocks, handles signals and returns as `serve_worker` does.
///
/// # Errors
/// `RuntimeError` in a forked child.
#[pyfunction]
#[pyo3(signature = (options, simulated, further=None))]
pub(crate) fn serve_simulated_worker(
    py: Python<'_>,
    options: &Bound<'_, PyWorkerOptions>,
    simulated: &Bound<'_, PySimulatedOptions>,
    further: Option<Vec<Further<Bound<'_, PySimulatedOptions>>>>,
) -> PyResult<i32> {
    process::refuse_after_fork()?;
    process::start_log();
    let executor =
        |options: &Bound<'_, PySimulatedOptions>| SimulatedExecutor::new(options.get().0.clone());
    let further = further
        .into_iter()
        .flatten()
        .map(|(name, options, assets)| further_model(name, Arc::new(executor(&options)), assets));
    let further = further.collect();
    let executor = Arc::new(executor(simulated));
    serve(py, executor, further, options.get().0.clone(), None)
}

/// A worker whose model loads: holds both ports, and answers there that it is not ready and why.
#[pyclass(frozen, name = "LoadingWorker", module = "inflight._native")]
pub(crate) struct PyLoadingWorker(Mutex<Option<Loading>>);

#[pymethods]
impl PyLoadingWorker {
    /// # Errors
    /// `RuntimeError` in a forked child; `OSError` where a port cannot be bound.
    #[new]
    fn new(options: &Bound<'_, PyWorkerOptions>, stage: &str) -> PyResult<Self> {
        process::refuse_after_fork()?;
        process::start_log();
        let loading = Loading::start(&options.get().0, stage);
        let loading =
            loading.map_err(|error| PyOSError::new_err(inflight_base::error_chain(&error)))?;
        Ok(Self(Mutex::new(Some(loading))))
    }

    /// What it does now, for people.
    fn set_stage(&self, stage: &str) {
        if let Some(loading) = &*self.lock() {
            loading.set_stage(stage);
        }
    }
}

impl PyLoadingWorker {
    fn lock(&self) -> MutexGuard<'_, Option<Loading>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn serve(
    py: Python<'_>,
    executor: Arc<dyn Executor>,
    further: Vec<FurtherModel>,
    options: WorkerOptions,
    loading: Option<Loading>,
) -> PyResult<i32> {
    // One thread: a connection then writes once for all its streams that an iteration moved.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("inflight-worker")
        .build()
        .map_err(|error| error::runtime_error(&error))?;
    process::release_python_signals(py)?;
    py.detach(move || {
        let code = runtime.block_on(async {
            let stop = match process::stop_signals() {
                Ok(stop) => stop,
                Err(error) => {
                    executor.shutdown();
                    for model in further {
                        model.executor.shutdown();
                    }
                    return failed(&error);
                }
            };
            let serving =
                inflight_worker::serve_models(executor, further, options, loading, announce, stop);
            match serving.await {
                Ok(WorkerExit::Shutdown) => 0,
                // The worker has logged why.
                Ok(WorkerExit::ExecutorFailed(_)) => EXIT_EXECUTOR_FAILED,
                Err(error) => failed(&error),
            }
        });
        runtime.shutdown_timeout(RUNTIME_SHUTDOWN);
        inflight_gateway::flush_log();
        Ok(code)
    })
}

/// Says where the worker listens, for people and for the supervisor that started it.
fn announce(bound: BoundAddresses) {
    let mut out = std::io::stdout().lock();
    let s = if bound.is_tls { "s" } else { "" };
    // A closed standard output does not keep a worker from serving.
    let _ = writeln!(
        out,
        "inflight worker: listening on grpc{s}://{}\ninflight worker: metrics on http://{}/metrics",
        bound.grpc, bound.metrics
    );
    if let Some(http) = bound.http {
        let _ = writeln!(out, "inflight worker: listening on http{s}://{http}");
    }
    if let Some(events) = bound.kv_events {
        let _ = writeln!(out, "inflight worker: KV cache events on tcp://{events}");
    }
    if let Some(replay) = bound.kv_events_replay {
        let _ = writeln!(out, "inflight worker: missed events on tcp://{replay}");
    }
    let _ = out.flush();
}

fn failed(error: &dyn std::error::Error) -> i32 {
    tracing::error!("{}", inflight_base::error_chain(error));
    EXIT_FAILED
}
