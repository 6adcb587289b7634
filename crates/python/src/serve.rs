//! Runs a worker inside the Python process: owns the tokio runtime, the GIL's release around it and the
//! exit codes. What is served and how is `inflight_worker`'s.

use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use inflight_worker::executor::Executor;
use inflight_worker::{BoundAddresses, Loading, SimulatedExecutor, WorkerExit, WorkerOptions};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::error;
use crate::executor::PythonExecutor;
use crate::options::{PySimulatedOptions, PyWorkerOptions};
use crate::process;

/// The exit code of a worker whose executor failed. Distinct from 1 (could not start) and 2 (usage), so
/// that a supervisor can tell a broken engine from a bad command line.
pub(crate) const EXIT_EXECUTOR_FAILED: i32 = 3;
const EXIT_FAILED: i32 = 1;
/// What blocking tasks get after the server has ended; they hold nothing that must be kept.
const RUNTIME_SHUTDOWN: Duration = Duration::from_secs(1);

/// Serves an executor with the protocol of `inflight.executors.base.Executor` until SIGINT or SIGTERM.
///
/// Blocks with the GIL released. The first signal drains, the second ends the process at once. Returns
/// the exit code: 0 after a signal, 3 when the executor failed, 1 when the worker could not go on.
///
/// # Errors
/// Whatever the executor's `info()` raises; `RuntimeError` in a forked child.
#[pyfunction]
#[pyo3(signature = (executor, options, loading=None))]
pub(crate) fn serve_worker(
    py: Python<'_>,
    executor: &Bound<'_, PyAny>,
    options: &Bound<'_, PyWorkerOptions>,
    loading: Option<&Bound<'_, PyLoadingWorker>>,
) -> PyResult<i32> {
    process::refuse_after_fork()?;
    process::start_log();
    let executor = Arc::new(PythonExecutor::new(executor)?);
    let loading = loading.and_then(|loading| loading.get().lock().take());
    serve(py, executor, options.get().0.clone(), loading)
}

/// Serves the simulated executor: tokens on a timing model, with no model behind them.
///
/// Blocks, handles signals and returns as `serve_worker` does.
///
/// # Errors
/// `RuntimeError` in a forked child.
#[pyfunction]
pub(crate) fn serve_simulated_worker(
    py: Python<'_>,
    options: &Bound<'_, PyWorkerOptions>,
    simulated: &Bound<'_, PySimulatedOptions>,
) -> PyResult<i32> {
    process::refuse_after_fork()?;
    process::start_log();
    let executor = Arc::new(SimulatedExecutor::new(simulated.get().0.clone()));
    serve(py, executor, options.get().0.clone(), None)
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
            loading.map_err(|error| PyOSError::new_err(inflight_kserve::error_chain(&error)))?;
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
                    return failed(&error);
                }
            };
            match inflight_worker::serve_loaded(executor, options, loading, announce, stop).await {
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
    let _ = out.flush();
}

fn failed(error: &dyn std::error::Error) -> i32 {
    tracing::error!("{}", inflight_kserve::error_chain(error));
    EXIT_FAILED
}
