//! The one place where failures change language: Python exceptions become [`ExecutorFailed`], and Rust
//! errors become Python exceptions. Knows nothing of executors and servers.

use inflight_base::error_chain;
use inflight_worker::executor::ExecutorFailed;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyTracebackMethods;

/// What an exception of an executor's method means for the worker, with the text for the log.
///
/// The `ExecutorFailed` names method and exception; the traceback goes to the log only.
pub(crate) fn executor_failed(
    py: Python<'_>,
    method: &str,
    error: &PyErr,
) -> (ExecutorFailed, String) {
    let failed = ExecutorFailed(format!("`{method}` raised {}", describe(py, error)));
    let traceback = error
        .traceback(py)
        .and_then(|traceback| traceback.format().ok())
        .unwrap_or_else(|| "no Python traceback\n".to_owned());
    (failed, traceback)
}

/// `ValueError: text`, also for exceptions whose own `str` raises.
fn describe(py: Python<'_>, error: &PyErr) -> String {
    let value = error.value(py);
    let name = error
        .get_type(py)
        .name()
        .map_or_else(|_| "an exception".to_owned(), |name| name.to_string());
    match value.str() {
        Ok(text) if !text.to_string().is_empty() => format!("{name}: {text}"),
        _ => name,
    }
}

/// A Rust failure that a caller in Python should see.
pub(crate) fn runtime_error(error: &dyn std::error::Error) -> PyErr {
    PyRuntimeError::new_err(error_chain(error))
}
