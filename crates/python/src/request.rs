//! Requests on their way into Python: builds the dataclasses of `inflight.executors.base`, once per
//! request. Knows nothing of responses or of who calls.

use inflight_worker::executor::{ClientId, NamedTensor, OutputConfig, Request, SamplingConfig};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

/// Values as keyword arguments of their names, which Python's dataclasses have for their fields. The order of fields is
/// Python's own affair, and a field that the client left out takes the default given there.
macro_rules! keywords {
    ($py:expr, $($name:ident),* $(,)?) => {{
        let fields = PyDict::new($py);
        $($name.set(&fields, intern!($py, stringify!($name)))?;)*
        fields
    }};
}

/// The fields of a value as keyword arguments. None can be forgotten: the pattern has no rest.
macro_rules! all_fields {
    ($py:expr, $value:expr, $type:ident { $($name:ident),* $(,)? }) => {{
        let $type { $($name),* } = $value;
        keywords!($py, $($name),*)
    }};
}

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

    fn request<'py>(&self, py: Python<'py>, request: &Request) -> PyResult<Bound<'py, PyAny>> {
        let Request {
            client_id: ClientId(client_id),
            input_token_ids,
            max_tokens,
            streaming,
            sampling_config,
            output_config,
            end_id,
            pad_id,
            bad_words,
            stop_words,
            embedding_bias,
            logit_bias,
            tensors,
            generated,
            // Only responses need them.
            generated_sums: _,
        } = request;
        let input_token_ids = PyList::new(py, input_token_ids)?;
        let sampling_config = self.sampling(py, sampling_config)?;
        let output_config = self.output(py, output_config)?;
        let packed = embedding_bias.iter().flat_map(|bias| bias.to_le_bytes());
        let packed: Vec<u8> = packed.collect();
        let embedding_bias = (!packed.is_empty()).then(|| PyBytes::new(py, &packed));
        let tensors = tensors.iter().map(|tensor| self.tensor(py, tensor));
        let tensors: Vec<Bound<'_, PyAny>> = tensors.collect::<PyResult<_>>()?;
        let fields = keywords!(
            py,
            client_id,
            input_token_ids,
            max_tokens,
            streaming,
            sampling_config,
            output_config,
            end_id,
            pad_id,
            bad_words,
            stop_words,
            embedding_bias,
            logit_bias,
            tensors,
            generated,
        );
        self.request.bind(py).call((), Some(&fields))
    }

    fn sampling<'py>(
        &self,
        py: Python<'py>,
        config: &SamplingConfig,
    ) -> PyResult<Bound<'py, PyAny>> {
        let fields = all_fields!(
            py,
            config,
            SamplingConfig {
                beam_width,
                num_return_sequences,
                top_k,
                top_p,
                top_p_min,
                top_p_reset_ids,
                top_p_decay,
                min_p,
                seed,
                temperature,
                min_tokens,
                beam_search_diversity_rate,
                repetition_penalty,
                presence_penalty,
                frequency_penalty,
                length_penalty,
                early_stopping,
                no_repeat_ngram_size,
            }
        );
        self.sampling_config.bind(py).call((), Some(&fields))
    }

    fn output<'py>(&self, py: Python<'py>, config: &OutputConfig) -> PyResult<Bound<'py, PyAny>> {
        let fields = all_fields!(
            py,
            config,
            OutputConfig {
                return_log_probs,
                return_context_logits,
                return_generation_logits,
                return_perf_metrics,
                num_top_log_probs,
                num_prompt_log_probs,
            }
        );
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

/// What a keyword argument is made of.
trait Keyword<'py> {
    fn set(self, fields: &Bound<'py, PyDict>, name: &Bound<'py, PyString>) -> PyResult<()>;
}

macro_rules! always_set {
    ($($type:ty),*) => {$(
        impl<'py> Keyword<'py> for $type {
            fn set(self, fields: &Bound<'py, PyDict>, name: &Bound<'py, PyString>) -> PyResult<()> {
                fields.set_item(name, self)
            }
        }
    )*};
}
always_set!(&bool, &u32, &u64, Bound<'py, PyAny>, Bound<'py, PyList>);

/// Set where the client sent it.
impl<'py, T: IntoPyObject<'py> + Clone> Keyword<'py> for &Option<T> {
    fn set(self, fields: &Bound<'py, PyDict>, name: &Bound<'py, PyString>) -> PyResult<()> {
        let value = self.clone();
        value.map_or(Ok(()), |value| fields.set_item(name, value))
    }
}

impl<'py> Keyword<'py> for Option<Bound<'py, PyBytes>> {
    fn set(self, fields: &Bound<'py, PyDict>, name: &Bound<'py, PyString>) -> PyResult<()> {
        self.map_or(Ok(()), |value| fields.set_item(name, value))
    }
}

/// Set where there is any.
impl<'py, 'a, T> Keyword<'py> for &'a Vec<T>
where
    &'a T: IntoPyObject<'py>,
{
    fn set(self, fields: &Bound<'py, PyDict>, name: &Bound<'py, PyString>) -> PyResult<()> {
        match self.is_empty() {
            true => Ok(()),
            false => fields.set_item(name, PyList::new(fields.py(), self)?),
        }
    }
}
