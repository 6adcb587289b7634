//! The commands that are Rust from their arguments on. Owns only the way there: arguments in, exit code
//! out, the GIL released in between.

use pyo3::prelude::*;

use crate::process;

/// Runs `inflight gateway`; `argv` starts with the program's name. Blocks with the GIL released until a
/// signal, and returns the exit code. Options, help and messages are the gateway's own.
///
/// # Errors
/// `RuntimeError` in a forked child.
#[pyfunction]
pub(crate) fn gateway_main(py: Python<'_>, argv: Vec<String>) -> PyResult<i32> {
    process::refuse_after_fork()?;
    process::release_python_signals(py)?;
    Ok(py.detach(|| inflight_gateway::main_with_args(argv)))
}

/// Runs `inflight bench`; `argv` starts with the program's name. Blocks with the GIL released, and
/// returns the exit code. Options, help and messages are the load generator's own.
///
/// # Errors
/// `RuntimeError` in a forked child.
#[pyfunction]
pub(crate) fn bench_main(py: Python<'_>, argv: Vec<String>) -> PyResult<i32> {
    process::refuse_after_fork()?;
    process::release_python_signals(py)?;
    Ok(py.detach(|| inflight_bench::bench_main(argv)))
}
