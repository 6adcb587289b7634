//! The core model for Python: its table, and its requests inside a server that is not ours (Triton). Owns
//! the crossing only: one call per request, one per iteration. What is parsed and answered, and how, is
//! `inflight_worker::embedded`'s.

use bytes::Bytes;
use inflight_kserve::inference::ModelInferResponse;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::tensor::{DataType, RequestBuilder};
use inflight_worker::embedded::{self, Parsed};
use inflight_worker::executor::{ClientId, IterationStats};
use inflight_worker::{
    CORE_MODEL, CORE_MODEL_VERSION, core_inputs, core_outputs, core_parameters, executor_gauges,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyInt, PyList, PyTuple};

use crate::executor::read_info;
use crate::request::RequestClasses;
use crate::response;

/// An input tensor of the core model.
#[pyclass(frozen, get_all, module = "inflight._native")]
pub(crate) struct CoreInput {
    name: &'static str,
    datatype: &'static str,
    dims: Py<PyTuple>,
    optional: bool,
    ragged: bool,
    squeezed: bool,
    any_float: bool,
    declared: bool,
    capability: Option<&'static str>,
    path: Option<&'static str>,
}

/// An output tensor of the core model.
#[pyclass(frozen, get_all, module = "inflight._native")]
pub(crate) struct CoreOutput {
    name: &'static str,
    datatype: &'static str,
    dims: Py<PyTuple>,
    declared: bool,
}

impl CoreInput {
    pub(crate) fn new(py: Python<'_>, row: inflight_worker::CoreInput) -> PyResult<Self> {
        Ok(Self {
            name: row.name,
            datatype: row.datatype.name(),
            dims: PyTuple::new(py, row.dims)?.unbind(),
            optional: row.optional,
            ragged: row.ragged,
            squeezed: row.squeezed,
            any_float: row.any_float,
            declared: row.declared,
            capability: row.role.capability,
            path: row.role.path,
        })
    }
}

impl CoreOutput {
    pub(crate) fn new(py: Python<'_>, row: inflight_worker::OutputSpec) -> PyResult<Self> {
        Ok(Self {
            name: row.name,
            datatype: row.datatype.name(),
            dims: PyTuple::new(py, row.dims)?.unbind(),
            declared: row.declared,
        })
    }
}

/// A request parameter of the core model.
#[pyclass(frozen, get_all, module = "inflight._native")]
pub(crate) struct CoreParameter {
    name: &'static str,
    capability: &'static str,
}

/// The table of the core model.
#[pyclass(frozen, get_all, module = "inflight._native")]
pub(crate) struct CoreModel {
    name: &'static str,
    version: &'static str,
    inputs: Py<PyTuple>,
    outputs: Py<PyTuple>,
    parameters: Py<PyTuple>,
}

/// The core model's inputs, outputs and request parameters.
#[pyfunction]
pub(crate) fn core_model(py: Python<'_>) -> PyResult<CoreModel> {
    let mut inputs = Vec::new();
    for row in core_inputs() {
        inputs.push(Py::new(py, CoreInput::new(py, row)?)?);
    }
    let mut outputs = Vec::new();
    for row in core_outputs() {
        outputs.push(Py::new(py, CoreOutput::new(py, row)?)?);
    }
    let mut parameters = Vec::new();
    for row in core_parameters() {
        let (name, capability) = (row.name, row.capability);
        parameters.push(Py::new(py, CoreParameter { name, capability })?);
    }
    Ok(CoreModel {
        name: CORE_MODEL,
        version: CORE_MODEL_VERSION,
        inputs: PyTuple::new(py, inputs)?.unbind(),
        outputs: PyTuple::new(py, outputs)?.unbind(),
        parameters: PyTuple::new(py, parameters)?.unbind(),
    })
}

/// Why a request, or one of its rows, gets no answer.
#[pyclass(frozen, get_all, module = "inflight._native")]
pub(crate) struct Refusal {
    status: i32,
    text: String,
}

impl From<embedded::Refusal> for Refusal {
    fn from(refusal: embedded::Refusal) -> Self {
        Self {
            status: refusal.status,
            text: refusal.text,
        }
    }
}

/// A request that was understood.
#[pyclass(frozen, get_all, module = "inflight._native")]
pub(crate) struct ParsedRequest {
    is_stop: bool,
    requests: Py<PyList>,
    streaming: bool,
    sequences: u32,
}

/// What one row of the executor became.
#[pyclass(frozen, get_all, module = "inflight._native")]
pub(crate) struct RowResponse {
    client_id: u64,
    is_final: bool,
    outputs: Option<Py<PyList>>,
    refusal: Option<Py<Refusal>>,
}

/// A tensor with its batch dimension: name, KServe datatype, shape, packed bytes.
pub(crate) type TensorEntry<'py> = (String, String, Vec<i64>, Bound<'py, PyBytes>);

/// The requests of one core model that have not ended.
#[pyclass(frozen, module = "inflight._native")]
pub(crate) struct CoreRequests {
    requests: embedded::CoreRequests,
    classes: RequestClasses,
}

#[pymethods]
impl CoreRequests {
    #[new]
    #[pyo3(signature = (info, *, max_message_bytes, exclude_input_in_output=false))]
    fn new(
        info: &Bound<'_, PyAny>,
        max_message_bytes: usize,
        exclude_input_in_output: bool,
    ) -> PyResult<Self> {
        let read = read_info(info)?;
        Ok(Self {
            requests: embedded::CoreRequests::new(read, max_message_bytes, exclude_input_in_output),
            classes: RequestClasses::import(info.py())?,
        })
    }

    fn parse<'py>(
        &self,
        py: Python<'py>,
        request_id: &str,
        inputs: Vec<TensorEntry<'py>>,
        outputs: Vec<String>,
        parameters: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut message = RequestBuilder::new(CORE_MODEL, request_id, 0);
        for (name, datatype, shape, data) in inputs {
            let datatype = DataType::from_name(&datatype).ok_or_else(|| {
                PyValueError::new_err(format!(
                    "tensor `{name}` has the unknown datatype `{datatype}`"
                ))
            })?;
            message.push_raw(
                name,
                datatype,
                &shape,
                Bytes::copy_from_slice(data.as_bytes()),
            );
        }
        for name in outputs {
            message.output(name);
        }
        for (name, value) in parameters {
            message.parameter(name.extract::<String>()?, parameter(&name, &value)?);
        }
        match self.requests.parse(message.build()) {
            Err(refusal) => Ok(Bound::new(py, Refusal::from(refusal))?.into_any()),
            Ok(Parsed::Stop) => parsed(py, true, PyList::empty(py), false, 0),
            Ok(Parsed::Work {
                requests,
                streaming,
                sequences,
            }) => {
                let built = self.classes.build(py, &requests);
                if built.is_err() {
                    let ids: Vec<ClientId> = requests.iter().map(|one| one.client_id).collect();
                    self.requests.forget(&ids);
                }
                parsed(py, false, built?, streaming, sequences)
            }
        }
    }

    fn respond(&self, py: Python<'_>, batch: &Bound<'_, PyAny>) -> PyResult<Vec<RowResponse>> {
        let batch = response::read(batch)?;
        let answers = self
            .requests
            .respond(&batch)
            .map_err(|malformed| PyValueError::new_err(malformed.to_string()))?;
        answers
            .into_iter()
            .map(|answer| {
                let (outputs, refusal) = match answer.result {
                    None => (None, None),
                    Some(Ok(response)) => (Some(tensors(py, &response)?.unbind()), None),
                    Some(Err(refusal)) => (None, Some(Py::new(py, Refusal::from(refusal))?)),
                };
                Ok(RowResponse {
                    client_id: answer.client_id.0,
                    is_final: answer.is_final,
                    outputs,
                    refusal,
                })
            })
            .collect()
    }

    fn forget(&self, client_ids: Vec<u64>) {
        let client_ids: Vec<ClientId> = client_ids.into_iter().map(ClientId).collect();
        self.requests.forget(&client_ids);
    }
}

fn parsed<'py>(
    py: Python<'py>,
    is_stop: bool,
    requests: Bound<'py, PyList>,
    streaming: bool,
    sequences: u32,
) -> PyResult<Bound<'py, PyAny>> {
    let parsed = ParsedRequest {
        is_stop,
        requests: requests.unbind(),
        streaming,
        sequences,
    };
    Ok(Bound::new(py, parsed)?.into_any())
}

/// A request parameter as KServe has it. Python's `bool` is an `int`, so it is asked first.
fn parameter(name: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<ParameterChoice> {
    if value.is_instance_of::<PyBool>() {
        return Ok(ParameterChoice::BoolParam(value.extract()?));
    }
    if value.is_instance_of::<PyInt>() {
        return match value.extract::<i64>() {
            Ok(number) => Ok(ParameterChoice::Int64Param(number)),
            Err(_) => Ok(ParameterChoice::Uint64Param(value.extract()?)),
        };
    }
    if let Ok(number) = value.extract::<f64>() {
        return Ok(ParameterChoice::DoubleParam(number));
    }
    value
        .extract()
        .map(ParameterChoice::StringParam)
        .map_err(|_| {
            PyTypeError::new_err(format!(
                "request parameter `{name}` must be a boolean, a number or a string"
            ))
        })
}

/// The outputs of a response, each as (name, datatype, shape, bytes).
pub(crate) fn tensors<'py>(
    py: Python<'py>,
    response: &ModelInferResponse,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for (output, data) in response.outputs.iter().zip(&response.raw_output_contents) {
        let shape = PyTuple::new(py, &output.shape)?;
        list.append((
            &output.name,
            &output.datatype,
            shape,
            PyBytes::new(py, data),
        ))?;
    }
    Ok(list)
}

/// A family of gauges: name, help, label, and the values by value of the label.
type Gauges = (
    &'static str,
    &'static str,
    &'static str,
    Vec<(&'static str, f64)>,
);

/// The executor's gauges as the worker's metrics page shows them. `stats` is the JSON of an iteration's
/// statistics, under TensorRT-LLM's keys.
///
/// # Errors
/// `ValueError` where the statistics cannot be read.
#[pyfunction]
#[pyo3(name = "executor_gauges")]
pub(crate) fn gauges(stats: Option<&str>, active: usize) -> PyResult<Vec<Gauges>> {
    let stats: Option<IterationStats> =
        stats
            .map(serde_json::from_str)
            .transpose()
            .map_err(|malformed| {
                PyValueError::new_err(format!("iteration statistics cannot be read: {malformed}"))
            })?;
    Ok(executor_gauges(stats.as_ref(), active)
        .into_iter()
        .map(|family| (family.name, family.help, family.label, family.values))
        .collect())
}
