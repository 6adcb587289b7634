//! Batches on their way out of Python: takes the columns from a `ResponseBatch` object and hands them to
//! [`columns`](crate::columns). Owns the reading of attributes.

use bytes::Bytes;
use inflight_worker::executor::{NamedTensor, ResponseBatch};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySequence, PyString};

use crate::columns::{RawColumns, RawPromptLogProbs};

/// Reads an `inflight.executors.base.ResponseBatch`.
///
/// # Errors
/// `TypeError` for an attribute of the wrong type, `ValueError` for a column of half a value. Whether the
/// columns fit together is checked by the code that uses them.
pub(crate) fn read(batch: &Bound<'_, PyAny>) -> PyResult<ResponseBatch> {
    let py = batch.py();
    // The objects are kept here, because the slices below borrow from them.
    let client_ids = column(batch, intern!(py, "client_ids"))?;
    let sequence_index = column(batch, intern!(py, "sequence_index"))?;
    let token_offsets = column(batch, intern!(py, "token_offsets"))?;
    let token_ids = column(batch, intern!(py, "token_ids"))?;
    let finish_reasons = column(batch, intern!(py, "finish_reasons"))?;
    let finals = column(batch, intern!(py, "finals"))?;
    let log_prob_rows = column(batch, intern!(py, "log_prob_rows"))?;
    let log_probs = column(batch, intern!(py, "log_probs"))?;
    let top_log_prob_rows = column(batch, intern!(py, "top_log_prob_rows"))?;
    let top_log_prob_widths = column(batch, intern!(py, "top_log_prob_widths"))?;
    let top_log_prob_ids = column(batch, intern!(py, "top_log_prob_ids"))?;
    let top_log_probs = column(batch, intern!(py, "top_log_probs"))?;
    let prompts: Vec<PromptEntry<'_>> = sparse(batch, intern!(py, "prompt_log_probs"))?;

    let rows = RawColumns {
        client_ids: client_ids.as_bytes(),
        sequence_index: sequence_index.as_bytes(),
        token_offsets: token_offsets.as_bytes(),
        token_ids: token_ids.as_bytes(),
        finish_reasons: finish_reasons.as_bytes(),
        finals: finals.as_bytes(),
        errors: sparse(batch, intern!(py, "errors"))?,
        log_prob_rows: log_prob_rows.as_bytes(),
        log_probs: log_probs.as_bytes(),
        top_log_prob_rows: top_log_prob_rows.as_bytes(),
        top_log_prob_widths: top_log_prob_widths.as_bytes(),
        top_log_prob_ids: top_log_prob_ids.as_bytes(),
        top_log_probs: top_log_probs.as_bytes(),
        cached_tokens: sparse(batch, intern!(py, "cached_tokens"))?,
        prompt_log_probs: prompts
            .iter()
            .map(
                |(row, values, width, top_ids, top_values)| RawPromptLogProbs {
                    row: *row,
                    values: values.as_bytes(),
                    width: *width,
                    top_ids: top_ids.as_bytes(),
                    top_values: top_values.as_bytes(),
                },
            )
            .collect(),
    }
    .read()
    .map_err(|ragged| PyValueError::new_err(ragged.to_string()))?;
    let tensors = tensors(batch, rows.ids.len())?;
    Ok(ResponseBatch { rows, tensors })
}

type PromptEntry<'py> = (
    u32,
    Bound<'py, PyBytes>,
    u32,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

pub(crate) fn column<'py>(
    batch: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
) -> PyResult<Bound<'py, PyBytes>> {
    let value = batch.getattr(name)?;
    value.cast_into::<PyBytes>().map_err(|error| {
        let found = type_name(&error.into_inner());
        PyTypeError::new_err(format!("column `{name}` is `{found}`, expected `bytes`"))
    })
}

/// A sparse column: a sequence of tuples, nearly always empty.
pub(crate) fn sparse<'py, T>(
    batch: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
) -> PyResult<Vec<T>>
where
    T: FromPyObjectOwned<'py>,
{
    let value = batch.getattr(name)?;
    let sequence = value.cast_into::<PySequence>().map_err(|error| {
        let found = type_name(&error.into_inner());
        PyTypeError::new_err(format!("column `{name}` is `{found}`, expected a sequence"))
    })?;
    let length = sequence.len()?;
    let mut entries = Vec::with_capacity(length);
    for position in 0..length {
        let entry = sequence.get_item(position)?;
        entries.push(entry.extract::<T>().map_err(|error| {
            let error: PyErr = error.into();
            PyTypeError::new_err(format!("column `{name}`, entry {position}: {error}"))
        })?);
    }
    Ok(entries)
}

fn tensors(batch: &Bound<'_, PyAny>, rows: usize) -> PyResult<Vec<(u32, NamedTensor)>> {
    let py = batch.py();
    let entries: Vec<(u32, Bound<'_, PyAny>)> = sparse(batch, intern!(py, "tensors"))?;
    entries
        .into_iter()
        .map(|(row, tensor)| {
            if row as usize >= rows {
                return Err(PyValueError::new_err(format!(
                    "column `tensors` names row `{row}` of a batch with {rows} rows"
                )));
            }
            let data = column(&tensor, intern!(py, "data"))?;
            let tensor = NamedTensor {
                name: tensor.getattr(intern!(py, "name"))?.extract()?,
                datatype: tensor.getattr(intern!(py, "datatype"))?.extract()?,
                shape: tensor.getattr(intern!(py, "shape"))?.extract()?,
                data: Bytes::copy_from_slice(data.as_bytes()),
            };
            Ok((row, tensor))
        })
        .collect()
}

fn type_name(value: &Bound<'_, PyAny>) -> String {
    value
        .get_type()
        .name()
        .map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}
