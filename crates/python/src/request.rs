//! Requests on their way into Python: builds the dataclasses of `inflight.executors.base`, once per
//! request. Knows nothing of responses or of who calls.

use inflight_worker::executor::{NamedTensor, OutputConfig, Request, SamplingConfig};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

/// The dataclasses, looked up once.
pub(crate) struct RequestClasses {
    request: Py<PyAny>,
    sampling_config: Py<PyAny>,
    output_config: Py<PyAny>,
    named_tensor: Py<PyAny>,
}

impl RequestClasses {
    pub(crate) fn import(py: Python<'_>) -> PyResult<Self> {
        let base = py.import("inflight.executors.base")?;
        Ok(Self {
            request: base.getattr("Request")?.unbind(),
            sampling_config: base.getattr("SamplingConfig")?.unbind(),
            output_config: base.getattr("OutputConfig")?.unbind(),
            named_tensor: base.getattr("NamedTensor")?.unbind(),
        })
    }

    /// `list[Request]`, in order.
    pub(crate) fn build<'py>(
        &self,
        py: Python<'py>,
        requests: &[Request],
    ) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for request in requests {
            list.append(self.request(py, request)?)?;
        }
        Ok(list)
    }

    // Keywords rather than positions: the order of the dataclass's fields is Python's own affair, and
    // a field that the client left out takes the default given there.
    fn request<'py>(&self, py: Python<'py>, request: &Request) -> PyResult<Bound<'py, PyAny>> {
        let fields = PyDict::new(py);
        fields.set_item(intern!(py, "client_id"), request.client_id.0)?;
        fields.set_item(
            intern!(py, "input_token_ids"),
            PyList::new(py, &request.input_token_ids)?,
        )?;
        fields.set_item(intern!(py, "max_tokens"), request.max_tokens)?;
        fields.set_item(intern!(py, "streaming"), request.streaming)?;
        fields.set_item(
            intern!(py, "sampling_config"),
            self.sampling(py, &request.sampling_config)?,
        )?;
        fields.set_item(
            intern!(py, "output_config"),
            self.output(py, &request.output_config)?,
        )?;
        set(&fields, intern!(py, "end_id"), request.end_id)?;
        set(&fields, intern!(py, "pad_id"), request.pad_id)?;
        if !request.bad_words.is_empty() {
            fields.set_item(
                intern!(py, "bad_words"),
                PyList::new(py, &request.bad_words)?,
            )?;
        }
        if !request.stop_words.is_empty() {
            fields.set_item(
                intern!(py, "stop_words"),
                PyList::new(py, &request.stop_words)?,
            )?;
        }
        if !request.embedding_bias.is_empty() {
            let mut packed = Vec::with_capacity(request.embedding_bias.len() * size_of::<f32>());
            packed.extend(
                request
                    .embedding_bias
                    .iter()
                    .flat_map(|bias| bias.to_le_bytes()),
            );
            fields.set_item(intern!(py, "embedding_bias"), PyBytes::new(py, &packed))?;
        }
        if !request.logit_bias.is_empty() {
            fields.set_item(
                intern!(py, "logit_bias"),
                PyList::new(py, request.logit_bias.iter().copied())?,
            )?;
        }
        if !request.tensors.is_empty() {
            let tensors = PyList::empty(py);
            for tensor in &request.tensors {
                tensors.append(self.tensor(py, tensor)?)?;
            }
            fields.set_item(intern!(py, "tensors"), tensors)?;
        }
        if !request.generated.is_empty() {
            fields.set_item(
                intern!(py, "generated"),
                PyList::new(py, &request.generated)?,
            )?;
        }
        self.request.bind(py).call((), Some(&fields))
    }

    fn sampling<'py>(
        &self,
        py: Python<'py>,
        config: &SamplingConfig,
    ) -> PyResult<Bound<'py, PyAny>> {
        let fields = PyDict::new(py);
        fields.set_item(intern!(py, "beam_width"), config.beam_width)?;
        fields.set_item(
            intern!(py, "num_return_sequences"),
            config.num_return_sequences,
        )?;
        set(&fields, intern!(py, "top_k"), config.top_k)?;
        set(&fields, intern!(py, "top_p"), config.top_p)?;
        set(&fields, intern!(py, "top_p_min"), config.top_p_min)?;
        set(
            &fields,
            intern!(py, "top_p_reset_ids"),
            config.top_p_reset_ids,
        )?;
        set(&fields, intern!(py, "top_p_decay"), config.top_p_decay)?;
        set(&fields, intern!(py, "min_p"), config.min_p)?;
        set(&fields, intern!(py, "seed"), config.seed)?;
        set(&fields, intern!(py, "temperature"), config.temperature)?;
        set(&fields, intern!(py, "min_tokens"), config.min_tokens)?;
        set(
            &fields,
            intern!(py, "beam_search_diversity_rate"),
            config.beam_search_diversity_rate,
        )?;
        set(
            &fields,
            intern!(py, "repetition_penalty"),
            config.repetition_penalty,
        )?;
        set(
            &fields,
            intern!(py, "presence_penalty"),
            config.presence_penalty,
        )?;
        set(
            &fields,
            intern!(py, "frequency_penalty"),
            config.frequency_penalty,
        )?;
        set(
            &fields,
            intern!(py, "length_penalty"),
            config.length_penalty,
        )?;
        set(
            &fields,
            intern!(py, "early_stopping"),
            config.early_stopping,
        )?;
        set(
            &fields,
            intern!(py, "no_repeat_ngram_size"),
            config.no_repeat_ngram_size,
        )?;
        self.sampling_config.bind(py).call((), Some(&fields))
    }

    fn output<'py>(&self, py: Python<'py>, config: &OutputConfig) -> PyResult<Bound<'py, PyAny>> {
        let fields = PyDict::new(py);
        fields.set_item(intern!(py, "return_log_probs"), config.return_log_probs)?;
        fields.set_item(
            intern!(py, "return_context_logits"),
            config.return_context_logits,
        )?;
        fields.set_item(
            intern!(py, "return_generation_logits"),
            config.return_generation_logits,
        )?;
        fields.set_item(
            intern!(py, "return_perf_metrics"),
            config.return_perf_metrics,
        )?;
        fields.set_item(intern!(py, "num_top_log_probs"), config.num_top_log_probs)?;
        set(
            &fields,
            intern!(py, "num_prompt_log_probs"),
            config.num_prompt_log_probs,
        )?;
        self.output_config.bind(py).call((), Some(&fields))
    }

    fn tensor<'py>(&self, py: Python<'py>, tensor: &NamedTensor) -> PyResult<Bound<'py, PyAny>> {
        self.named_tensor.bind(py).call1((
            &tensor.name,
            &tensor.datatype,
            PyTuple::new(py, &tensor.shape)?,
            PyBytes::new(py, &tensor.data),
        ))
    }
}

/// Sets a field that the client sent.
fn set<'py, T: IntoPyObject<'py>>(
    fields: &Bound<'py, PyDict>,
    name: &Bound<'py, pyo3::types::PyString>,
    value: Option<T>,
) -> PyResult<()> {
    value.map_or(Ok(()), |value| fields.set_item(name, value))
}
