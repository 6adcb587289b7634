//! The gateway's options as Python sees them: read from `inflight_gateway`, where each is declared.

use std::path::PathBuf;

use inflight_gateway::{OptionInfo, OptionValues};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// One option of `inflight gateway`.
#[pyclass(frozen, name = "GatewayOption", module = "inflight._native")]
pub(crate) struct PyGatewayOption(OptionInfo);

#[pymethods]
impl PyGatewayOption {
    #[getter]
    fn flag(&self) -> &str {
        &self.0.flag
    }

    #[getter]
    fn value_name(&self) -> &str {
        &self.0.value_name
    }

    #[getter]
    fn help(&self) -> &str {
        &self.0.help
    }

    #[getter]
    fn default(&self) -> Option<&str> {
        self.0.default.as_deref()
    }

    #[getter]
    fn environment(&self) -> Option<&str> {
        self.0.environment.as_deref()
    }

    #[getter]
    fn is_multiple(&self) -> bool {
        self.0.is_multiple
    }

    #[getter]
    fn choices(&self) -> Vec<String> {
        self.0.choices.clone()
    }
}

/// Every option of `inflight gateway`, in the order of its help.
#[pyfunction]
pub(crate) fn gateway_options() -> Vec<PyGatewayOption> {
    let options = inflight_gateway::option_list();
    options.into_iter().map(PyGatewayOption).collect()
}

/// The options in a file, each with its values as text; only `known` ones may be there.
///
/// # Errors
/// `ValueError` with a sentence that names the file.
#[pyfunction]
pub(crate) fn read_option_file(path: PathBuf, known: Vec<String>) -> PyResult<OptionValues> {
    inflight_gateway::read_option_file(&path, &known).map_err(PyValueError::new_err)
}

/// What takes the place of the value of a variable of OpenTelemetry that cannot be used, and a warning; `None`: it
/// can.
#[pyfunction]
pub(crate) fn trace_variable(name: &str, value: &str) -> Option<(String, String)> {
    let replaced = inflight_traces::replaced(name, value)?;
    Some((replaced.value, replaced.warning))
}

/// What is wrong with arguments for `inflight gateway`, or `None`. `argv` starts with the program's name.
#[pyfunction]
pub(crate) fn check_gateway_arguments(argv: Vec<String>) -> Option<String> {
    inflight_gateway::check_arguments(&argv).err()
}
