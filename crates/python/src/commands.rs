//! The commands that are Rust from their arguments on. Owns only the way there: arguments in, exit code
//! out, the GIL released in between.

use inflight_text::{HelperCommand, run_template_helper, use_template_helper};
use pyo3::prelude::*;

use crate::process;

/// Loads this extension without the package around it, which takes a third of the time.
const TEMPLATE_HELPER: &str = "\
import importlib.machinery, importlib.util, sys
loader = importlib.machinery.ExtensionFileLoader('inflight._native', sys.argv[1])
spec = importlib.util.spec_from_loader('inflight._native', loader)
native = importlib.util.module_from_spec(spec)
loader.exec_module(native)
native.template_helper_main()
";

/// Runs `inflight gateway`; `argv` starts with the program's name. Blocks with the GIL released until a
/// signal, and returns the exit code. Options, help and messages are the gateway's own.
///
/// # Errors
/// `RuntimeError` in a forked child.
#[pyfunction]
pub(crate) fn gateway_main(py: Python<'_>, argv: Vec<String>) -> PyResult<i32> {
    process::refuse_after_fork()?;
    process::release_python_signals(py)?;
    use_template_helper(template_helper(py)?);
    Ok(py.detach(|| inflight_gateway::main_with_args(argv)))
}

/// How the gateway starts a process that renders chat templates.
fn template_helper(py: Python<'_>) -> PyResult<HelperCommand> {
    let program = py.import("sys")?.getattr("executable")?.extract()?;
    let extension = py.import("inflight._native")?.getattr("__file__")?;
    let arguments = ["-I", "-S", "-c", TEMPLATE_HELPER].map(str::to_owned);
    Ok(HelperCommand {
        program,
        arguments: [arguments.as_slice(), &[extension.extract()?]].concat(),
    })
}

/// Renders the chat templates of one model for the gateway that started this process, until it closes the
/// standard input.
#[pyfunction]
pub(crate) fn template_helper_main(py: Python<'_>) {
    py.detach(run_template_helper);
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

/// Runs `inflight simulate`; `argv` starts with the program's name. Blocks with the GIL released, and returns the exit
/// code. Options, help and messages are the simulation's own.
///
/// # Errors
/// `RuntimeError` in a forked child.
#[pyfunction]
pub(crate) fn simulate_main(py: Python<'_>, argv: Vec<String>) -> PyResult<i32> {
    process::refuse_after_fork()?;
    process::release_python_signals(py)?;
    Ok(py.detach(|| inflight_simulate::simulate_main(argv)))
}
