//! Text for Python: a model's tokenizer and incremental detokenization, as the gateway has them. Owns the
//! crossing only; `inflight_text` owns what the results are. Knows nothing of tensors.

use std::sync::Arc;

use inflight_text::{Detokenizer, ModelFiles, TextError, TextModel, tokenizer_json};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

pub(crate) fn refused(error: &dyn std::error::Error) -> PyErr {
    PyValueError::new_err(inflight_base::error_chain(error))
}

/// A model's tokenizer and the ids that its files name. Immutable, safe to share between threads.
#[pyclass(frozen, name = "Tokenizer", module = "inflight._native")]
pub(crate) struct PyTokenizer(Arc<TextModel>);

#[pymethods]
impl PyTokenizer {
    #[new]
    fn new(py: Python<'_>, files: ModelFiles) -> PyResult<Self> {
        py.detach(|| TextModel::load(&files))
            .map(|model| Self(Arc::new(model)))
            .map_err(|error| refused(&error))
    }

    #[pyo3(signature = (text, add_special_tokens=true))]
    fn encode(&self, py: Python<'_>, text: &str, add_special_tokens: bool) -> PyResult<Vec<u32>> {
        py.detach(|| self.0.tokenizer().encode(text, add_special_tokens))
            .map_err(|error| refused(&error))
    }

    #[pyo3(signature = (ids, skip_special_tokens=true))]
    fn decode(&self, py: Python<'_>, ids: Vec<u32>, skip_special_tokens: bool) -> PyResult<String> {
        py.detach(|| self.0.tokenizer().decode(&ids, skip_special_tokens))
            .map_err(|error| refused(&error))
    }

    #[getter]
    fn vocab_size(&self) -> usize {
        self.0.tokenizer().vocab_size()
    }

    #[getter]
    fn eos_token_ids(&self) -> Vec<u32> {
        self.0.generation().eos_token_ids.clone()
    }

    #[getter]
    fn pad_token_id(&self) -> Option<u32> {
        self.0.generation().pad_token_id
    }
}

/// `tokenizer.json` made of a model's other tokenizer files.
///
/// # Errors
/// `ValueError` where they make none.
#[pyfunction]
pub(crate) fn convert_tokenizer(py: Python<'_>, files: ModelFiles) -> PyResult<Vec<u8>> {
    let made = py.detach(|| tokenizer_json(&files));
    let made = made.and_then(|made| {
        made.ok_or(TextError::MissingFile {
            name: "tokenizer.json",
        })
    });
    made.map_err(|error| refused(&error))
}

/// One sequence's text as its ids arrive.
#[pyclass(name = "Detokenizer", module = "inflight._native")]
pub(crate) struct PyDetokenizer(Detokenizer);

#[pymethods]
impl PyDetokenizer {
    #[new]
    #[pyo3(signature = (tokenizer, skip_special_tokens=true))]
    fn new(tokenizer: &PyTokenizer, skip_special_tokens: bool) -> Self {
        let tokenizer = Arc::clone(tokenizer.0.tokenizer());
        Self(Detokenizer::new(tokenizer, skip_special_tokens))
    }

    fn push(&mut self, ids: Vec<u32>) -> String {
        let mut out = String::new();
        for id in ids {
            self.0.push(id, &mut out);
        }
        out
    }

    fn finish(&mut self) -> String {
        let mut out = String::new();
        self.0.finish(&mut out);
        out
    }
}
