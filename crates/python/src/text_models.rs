//! The text models for Python: their tensors, and their requests inside a server that is not ours (Triton). Owns the
//! crossing only; what they answer is `inflight_worker::text_models`'.

use bytes::Bytes;
use inflight_kserve::inference::{ModelInferRequest, ModelInferResponse};
use inflight_kserve::tensor::{DataType, RequestBuilder, ResponseBuilder};
use inflight_text::ModelFiles;
use inflight_worker::text_models::{self as models, TextModelKind, TextOptions, text_model_tables};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::core_model::{CoreInput, CoreOutput, Refusal, TensorEntry, tensors};
use crate::text::refused;

/// The tensors of one text model.
#[pyclass(frozen, get_all, module = "inflight._native")]
pub(crate) struct TextModel {
    name: &'static str,
    inputs: Py<PyTuple>,
    outputs: Py<PyTuple>,
}

/// The tables of the text models.
#[pyfunction]
pub(crate) fn text_models(py: Python<'_>) -> PyResult<Vec<TextModel>> {
    text_model_tables()
        .map(|table| {
            let mut inputs = Vec::with_capacity(table.inputs.len());
            for row in table.inputs {
                inputs.push(Py::new(py, CoreInput::new(py, row)?)?);
            }
            let mut outputs = Vec::with_capacity(table.outputs.len());
            for row in table.outputs {
                outputs.push(Py::new(py, CoreOutput::new(py, row)?)?);
            }
            Ok(TextModel {
                name: table.name,
                inputs: PyTuple::new(py, inputs)?.unbind(),
                outputs: PyTuple::new(py, outputs)?.unbind(),
            })
        })
        .collect()
}

/// The text models over one model's files. Immutable, safe to share between threads.
#[pyclass(frozen, module = "inflight._native")]
pub(crate) struct TextModels(models::TextModels);

#[pymethods]
impl TextModels {
    #[new]
    #[pyo3(signature = (
        files, *, vocab_size=None, max_batch_size=None, core_model=None, add_special_tokens=true,
        skip_special_tokens=true, exclude_input_in_output=false, accumulate_tokens=false
    ))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keywords in Python, each with a default"
    )]
    fn new(
        py: Python<'_>,
        files: ModelFiles,
        vocab_size: Option<u32>,
        max_batch_size: Option<usize>,
        core_model: Option<String>,
        add_special_tokens: bool,
        skip_special_tokens: bool,
        exclude_input_in_output: bool,
        accumulate_tokens: bool,
    ) -> PyResult<Self> {
        let default = TextOptions::default();
        let options = TextOptions {
            vocab_size,
            max_input_len: None,
            max_batch_size: max_batch_size.unwrap_or(default.max_batch_size),
            core_model: core_model.unwrap_or(default.core_model),
            draft_model: None,
            add_special_tokens,
            skip_special_tokens,
            exclude_input_in_output,
            accumulate_tokens,
        };
        py.detach(|| models::TextModels::load(&files, options))
            .map(Self)
            .map_err(|error| refused(&error))
    }

    /// The outputs of `preprocessing`, or a refusal.
    fn preprocess<'py>(
        &self,
        py: Python<'py>,
        inputs: Vec<TensorEntry<'py>>,
        outputs: Vec<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let message = message("", inputs, outputs)?;
        answer(py, py.detach(|| self.0.preprocess(&message)))
    }

    /// The outputs of `postprocessing`, or a refusal.
    fn postprocess<'py>(
        &self,
        py: Python<'py>,
        inputs: Vec<TensorEntry<'py>>,
        outputs: Vec<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let message = message("", inputs, outputs)?;
        answer(py, py.detach(|| self.0.postprocess(&message)))
    }

    /// A request of `tensorrt_llm_bls` as the core model's, or a refusal.
    fn generation<'py>(
        &self,
        py: Python<'py>,
        inputs: Vec<TensorEntry<'py>>,
        outputs: Vec<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let message = message("", inputs, outputs)?;
        match py.detach(|| self.0.generation(TextModelKind::Bls, &message)) {
            Err(refusal) => Ok(Bound::new(py, Refusal::from(refusal))?.into_any()),
            Ok(generation) => {
                let models::Generation {
                    request, answer, ..
                } = generation;
                let inputs = PyList::empty(py);
                for (input, data) in request.inputs.iter().zip(&request.raw_input_contents) {
                    inputs.append((
                        &input.name,
                        &input.datatype,
                        PyTuple::new(py, &input.shape)?,
                        pyo3::types::PyBytes::new(py, data),
                    ))?;
                }
                let outputs = request.outputs.into_iter().map(|output| output.name);
                let generation = Generation {
                    inputs: inputs.unbind(),
                    outputs: outputs.collect(),
                    answer: Mutex::new(answer),
                };
                Ok(Bound::new(py, generation)?.into_any())
            }
        }
    }
}

/// A request of `tensorrt_llm_bls`: what the core model is asked, and what its answers become.
#[pyclass(frozen, module = "inflight._native")]
pub(crate) struct Generation {
    #[pyo3(get)]
    inputs: Py<PyList>,
    #[pyo3(get)]
    outputs: Vec<String>,
    answer: Mutex<models::TextAnswer>,
}

#[pymethods]
impl Generation {
    /// The outputs for one response of the core model, if it has any.
    fn push<'py>(
        &self,
        py: Python<'py>,
        outputs: Vec<TensorEntry<'py>>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let mut response = ResponseBuilder::new("", "", 0);
        for (name, datatype, shape, data) in outputs {
            let datatype = known(&name, &datatype)?;
            response.push_raw(
                name,
                datatype,
                &shape,
                Bytes::copy_from_slice(data.as_bytes()),
            );
        }
        let response = response.build();
        let answer = py
            .detach(|| self.answer.lock().push(&response))
            .map_err(|malformed| PyValueError::new_err(malformed.to_string()))?;
        answer.map(|answer| tensors(py, &answer)).transpose()
    }

    /// The outputs of the responses that a stream's end shows to be text after all.
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyList>>> {
        let rest = self.answer.lock().finish();
        rest.iter().map(|answer| tensors(py, answer)).collect()
    }

    #[getter]
    fn is_stopped(&self) -> bool {
        self.answer.lock().is_stopped()
    }
}

fn known(name: &str, datatype: &str) -> PyResult<DataType> {
    DataType::from_name(datatype).ok_or_else(|| {
        PyValueError::new_err(format!(
            "tensor `{name}` has the unknown datatype `{datatype}`"
        ))
    })
}

fn message(
    id: &str,
    inputs: Vec<TensorEntry<'_>>,
    outputs: Vec<String>,
) -> PyResult<ModelInferRequest> {
    let mut message = RequestBuilder::new("", id, 0);
    for (name, datatype, shape, data) in inputs {
        let datatype = known(&name, &datatype)?;
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
    Ok(message.build())
}

fn answer<'py>(
    py: Python<'py>,
    answer: Result<ModelInferResponse, inflight_worker::embedded::Refusal>,
) -> PyResult<Bound<'py, PyAny>> {
    match answer {
        Ok(response) => Ok(tensors(py, &response)?.into_any()),
        Err(refusal) => Ok(Bound::new(py, Refusal::from(refusal))?.into_any()),
    }
}
