//! What a serving process owes its surroundings: a check against forks, signals, the log.
//! Knows nothing of what is served.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tokio::signal::unix::{SignalKind, signal};

/// The process that imported the module; 0 before.
static IMPORTED_BY: AtomicU32 = AtomicU32::new(0);

/// Notes which process imports the module.
pub(crate) fn note_import() {
    IMPORTED_BY.store(std::process::id(), Ordering::Relaxed);
}

/// Refuses to serve in a forked child: threads, sockets and GPU contexts of the parent do not survive a
/// fork, and what hangs then hangs without a word.
pub(crate) fn refuse_after_fork() -> PyResult<()> {
    let imported_by = IMPORTED_BY.load(Ordering::Relaxed);
    let here = std::process::id();
    if imported_by == here {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(format!(
        "`inflight._native` was imported by process `{imported_by}` and cannot serve in its forked \
         child `{here}`; start a new process instead (`subprocess`, or `multiprocessing` with the \
         start method `spawn`)"
    )))
}

/// Returns SIGINT to the system, so that only Rust's handlers run: Python's would raise
/// KeyboardInterrupt long after the server has drained.
pub(crate) fn release_python_signals(py: Python<'_>) -> PyResult<()> {
    let signals = py.import("signal")?;
    let default = signals.getattr("SIG_DFL")?;
    match signals.call_method1("signal", (signals.getattr("SIGINT")?, default)) {
        Ok(_) => Ok(()),
        // Python lets only the main thread set handlers; elsewhere there is nothing to give back.
        Err(error) if error.is_instance_of::<PyValueError>(py) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Resolves at the first SIGINT or SIGTERM; the second ends the process at once with 128 + its number.
///
/// Must be called inside a tokio runtime; the handlers are installed when it returns, not when it is polled.
pub(crate) fn stop_signals() -> std::io::Result<impl Future<Output = ()> + Send> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (first, stopped) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut first = Some(first);
        loop {
            let number = tokio::select! {
                _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
                _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
            };
            match first.take() {
                // The receiver is gone only when the server has ended already.
                Some(first) => drop(first.send(())),
                None => {
                    inflight_gateway::flush_log();
                    std::process::exit(128 + number);
                }
            }
        }
    });
    Ok(async move {
        // An error means that the runtime ends, which is a stop as well.
        let _ = stopped.await;
    })
}

/// Logs to standard error in the format of `INFLIGHT_LOG_FORMAT`, filtered by `INFLIGHT_LOG`; `info` where that is
/// absent or not a filter. A subscriber that is there already stays.
pub(crate) fn start_log() {
    let filter = std::env::var("INFLIGHT_LOG").unwrap_or_else(|_| "info".to_owned());
    let format = inflight_gateway::LogFormat::from_environment();
    if inflight_gateway::start_log(&filter, format).is_err() {
        let _ = inflight_gateway::start_log("info", format);
    }
}
