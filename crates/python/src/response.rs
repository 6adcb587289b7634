//! Batches on their way out of Python: reads the columns of an `inflight.executors.base.ResponseBatch`, each copied
//! once. How columns must fit together is [`StepBatch::validate`]'s, which the worker calls for every executor.

use bytes::Bytes;
use inflight_kserve::step::{Code, PromptLogProbs, RowError, StepBatch};
use inflight_worker::executor::{ClientId, NamedTensor, ResponseBatch};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySequence, PyString};

use crate::columns::{Ragged, unpack};

/// Reads an `inflight.executors.base.ResponseBatch`.
///
/// # Errors
/// `TypeError` for an attribute of the wrong type, `ValueError` for a column of half a value. Whether the
/// columns fit together is checked by the code that uses them.
pub(crate) fn read(batch: &Bound<'_, PyAny>) -> PyResult<ResponseBatch> {
    let py = batch.py();
    let ragged = |problem: Ragged| PyValueError::new_err(problem.to_string());
    /// The values of a column, whose name is the attribute's.
    macro_rules! values {
        ($name:ident, $from_bytes:expr) => {
            unpack(
                stringify!($name),
                column(batch, intern!(py, stringify!($name)))?.as_bytes(),
                $from_bytes,
            )
            .map_err(ragged)?
        };
    }
    let rows = StepBatch {
        ids: values!(client_ids, |bytes| ClientId(u64::from_le_bytes(bytes))),
        sequence_index: values!(sequence_index, i32::from_le_bytes),
        token_offsets: values!(token_offsets, u32::from_le_bytes),
        token_ids: values!(token_ids, i32::from_le_bytes),
        finish_reasons: values!(finish_reasons, u8::from_le_bytes),
        finals: values!(finals, u8::from_le_bytes),
        errors: errors(batch)?,
        log_prob_rows: values!(log_prob_rows, u32::from_le_bytes),
        log_probs: values!(log_probs, f32::from_le_bytes),
        top_log_prob_rows: values!(top_log_prob_rows, u32::from_le_bytes),
        top_log_prob_widths: values!(top_log_prob_widths, u32::from_le_bytes),
        top_log_prob_ids: values!(top_log_prob_ids, i32::from_le_bytes),
        top_log_probs: values!(top_log_probs, f32::from_le_bytes),
        cached_tokens: sparse(batch, intern!(py, "cached_tokens"))?,
        // Among `tensors`, under its name in Triton.
        context_phases: Vec::new(),
        prompt_log_probs: prompt_log_probs(batch)?,
    };
    let tensors = tensors(batch, rows.ids.len())?;
    Ok(ResponseBatch { rows, tensors })
}

fn errors(batch: &Bound<'_, PyAny>) -> PyResult<Vec<RowError>> {
    let entries: Vec<(u32, i32, String)> = sparse(batch, intern!(batch.py(), "errors"))?;
    let errors = entries.into_iter().map(|(row, code, text)| RowError {
        row,
        code: Code::from_i32(code),
        text,
        retry_after_ms: 0,
    });
    Ok(errors.collect())
}

/// Row, values, number of alternatives, their ids, their values.
type PromptEntry<'py> = (
    u32,
    Bound<'py, PyBytes>,
    u32,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

fn prompt_log_probs(batch: &Bound<'_, PyAny>) -> PyResult<Vec<PromptLogProbs>> {
    let name = "prompt_log_probs";
    let entries: Vec<PromptEntry<'_>> = sparse(batch, intern!(batch.py(), "prompt_log_probs"))?;
    let read = |(row, values, width, ids, tops): PromptEntry<'_>| {
        Ok(PromptLogProbs {
            row,
            values: unpack(name, values.as_bytes(), f32::from_le_bytes)?,
            width,
            top_ids: unpack(name, ids.as_bytes(), i32::from_le_bytes)?,
            top_values: unpack(name, tops.as_bytes(), f32::from_le_bytes)?,
        })
    };
    let entries: Result<_, Ragged> = entries.into_iter().map(read).collect();
    entries.map_err(|problem| PyValueError::new_err(problem.to_string()))
}

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
