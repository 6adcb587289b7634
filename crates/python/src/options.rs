//! Options that `inflight_worker` declares, as Python sees them: the list, and objects that are made of keywords.
//!
//! Knows the names of those options only that are not one value. An option that is left out, or `None`, takes the
//! default that Rust declares with its reason.

use std::collections::BTreeMap;

use bytes::Bytes;
use inflight_worker::{
    LogLevel, OptionKind, OptionValue, Options, SimulatedOptions, WorkerOptions,
};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyAttributeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// One option of a worker or of the simulated executor.
#[pyclass(frozen, get_all, name = "WorkerOption", module = "inflight._native")]
pub(crate) struct PyWorkerOption {
    name: String,
    help: &'static str,
    kind: &'static str,
    default: Py<PyAny>,
    min: Option<f64>,
    max: Option<f64>,
    value_name: Option<&'static str>,
    choices: Vec<&'static str>,
    environment: Option<&'static str>,
}

/// Every option of `WorkerOptions`, in the order of a command's help.
#[pyfunction]
pub(crate) fn worker_options(py: Python<'_>) -> PyResult<Vec<PyWorkerOption>> {
    list::<WorkerOptions>(py)
}

/// Every option of `SimulatedOptions`, in the order of a command's help.
#[pyfunction]
pub(crate) fn simulated_options(py: Python<'_>) -> PyResult<Vec<PyWorkerOption>> {
    list::<SimulatedOptions>(py)
}

/// How a worker listens, what it serves and where its bounds are.
#[pyclass(frozen, name = "WorkerOptions", module = "inflight._native")]
pub(crate) struct PyWorkerOptions(pub(crate) WorkerOptions);

#[pymethods]
impl PyWorkerOptions {
    /// # Errors
    /// `TypeError` for a keyword that is not an option, or not of its type; `ValueError` for a value out of range.
    #[new]
    #[pyo3(signature = (*, assets=None, **options))]
    fn new(
        assets: Option<BTreeMap<String, Vec<u8>>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut made: WorkerOptions = from_keywords(options)?;
        made.log_level = Some(LogLevel::new(inflight_gateway::set_log_level));
        let assets = assets.unwrap_or_default().into_iter();
        made.assets = assets
            .map(|(name, content)| (name, Bytes::from(content)))
            .collect();
        Ok(Self(made))
    }

    fn __getattr__(&self, py: Python<'_>, name: &str) -> PyResult<Py<PyAny>> {
        attribute(py, &self.0, name)
    }
}

/// The simulated executor's timing model and sizes.
#[pyclass(frozen, name = "SimulatedOptions", module = "inflight._native")]
pub(crate) struct PySimulatedOptions(pub(crate) SimulatedOptions);

#[pymethods]
impl PySimulatedOptions {
    /// # Errors
    /// As `WorkerOptions`; `ValueError` for an answer that is not of the vocabulary.
    #[new]
    #[pyo3(signature = (**options))]
    fn new(options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let made: SimulatedOptions = from_keywords(options)?;
        if let Some(id) = made.answer.iter().find(|id| **id >= made.vocab_size) {
            return Err(PyValueError::new_err(format!(
                "`answer` has the token id `{id}`; ids are below {}",
                made.vocab_size
            )));
        }
        Ok(Self(made))
    }

    fn __getattr__(&self, py: Python<'_>, name: &str) -> PyResult<Py<PyAny>> {
        attribute(py, &self.0, name)
    }
}

fn list<T: Options>(py: Python<'_>) -> PyResult<Vec<PyWorkerOption>> {
    let described = T::list().into_iter().map(|one| {
        Ok(PyWorkerOption {
            name: one.name,
            help: one.help,
            kind: one.kind.name(),
            default: to_python(py, one.default)?,
            min: one.min,
            max: one.max,
            value_name: one.value_name,
            choices: one.choices,
            environment: one.environment,
        })
    });
    described.collect()
}

fn from_keywords<T: Options>(given: Option<&Bound<'_, PyDict>>) -> PyResult<T> {
    let mut made = T::default();
    let options = T::list();
    for (name, value) in given.into_iter().flatten() {
        let name: String = name.extract()?;
        let Some(option) = options.iter().find(|option| option.name == name) else {
            return Err(PyTypeError::new_err(format!("unknown option `{name}`")));
        };
        if value.is_none() {
            continue;
        }
        let value = from_python(option.kind, &value).map_err(|error| {
            let reason = error.value(value.py()).to_string();
            PyTypeError::new_err(format!("option `{name}`: {reason}"))
        })?;
        made.set(option, value)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
    }
    Ok(made)
}

fn attribute<T: Options>(py: Python<'_>, made: &T, name: &str) -> PyResult<Py<PyAny>> {
    match made.get(name) {
        Some(value) => to_python(py, value),
        None => Err(PyAttributeError::new_err(format!(
            "unknown option `{name}`"
        ))),
    }
}

fn from_python(kind: OptionKind, value: &Bound<'_, PyAny>) -> PyResult<OptionValue> {
    Ok(match kind {
        OptionKind::Switch => OptionValue::Switch(value.extract()?),
        OptionKind::Integer => OptionValue::Integer(value.extract()?),
        OptionKind::Number => OptionValue::Number(value.extract()?),
        OptionKind::Text => OptionValue::Text(value.extract()?),
        OptionKind::File | OptionKind::Directory => OptionValue::Path(value.extract()?),
        OptionKind::Ids => OptionValue::Ids(value.extract()?),
    })
}

fn to_python(py: Python<'_>, value: OptionValue) -> PyResult<Py<PyAny>> {
    match value {
        OptionValue::Switch(value) => value.into_py_any(py),
        OptionValue::Integer(value) => value.into_py_any(py),
        OptionValue::Number(value) => value.into_py_any(py),
        OptionValue::Text(value) => value.into_py_any(py),
        // As text, which is what was given.
        OptionValue::Path(value) => value.display().to_string().into_py_any(py),
        OptionValue::Ids(ids) if !ids.is_empty() => ids.into_py_any(py),
        OptionValue::Ids(_) | OptionValue::Absent => Ok(py.None()),
    }
}
