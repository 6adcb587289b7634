//! Operations on waiting rows: merging what several iterations left, splitting what became too large.
//!
//! Pure. Knows neither streams nor the wire; `inflight_kserve::step` says what the columns mean.

use inflight_kserve::step::{FinishReason, Handle, Row, RowError, StepBatch};
use tonic::Code;

use crate::executor::ResponseBatch;

/// Merges rows of the same sequence, as rows of several iterations are after a client fell behind.
/// Rows of a sequence stay in order, and a request's final row stays its last.
pub(crate) fn merge<Id: Copy + Default + Ord>(batch: &StepBatch<Id>) -> StepBatch<Id> {
    merge_rows(batch, |_| false, |_, _| ())
}

/// [`merge`] for rows with large outputs: a row that has any stays by itself.
pub(crate) fn merge_responses(batch: &ResponseBatch) -> ResponseBatch {
    let of_row = |row: usize| {
        let tensors = batch.tensors.iter();
        tensors.filter(move |(index, _)| *index as usize == row)
    };
    let mut tensors = Vec::new();
    let has_tensors = |row: usize| {
        let found = batch
            .tensors
            .binary_search_by_key(&(row as u32), |(index, _)| *index);
        found.is_ok()
    };
    let rows = merge_rows(&batch.rows, has_tensors, |row, place| {
        tensors.extend(of_row(row).map(|(_, tensor)| (place as u32, tensor.clone())));
    });
    ResponseBatch { rows, tensors }
}

/// `stands_alone` rows merge with no other; `place_alone` receives where each of them went.
fn merge_rows<Id: Copy + Default + Ord>(
    batch: &StepBatch<Id>,
    stands_alone: impl Fn(usize) -> bool,
    mut place_alone: impl FnMut(usize, usize),
) -> StepBatch<Id> {
    let mut rows: Vec<Row<'_, Id>> = batch.rows().collect();
    let mut last: Vec<(Id, i32)> = rows
        .iter()
        .filter(|row| row.is_final)
        .map(|row| (row.id, row.sequence_index))
        .collect();
    last.sort_unstable();
    let order = |row: &Row<'_, Id>| {
        let ends_request = last.binary_search(&(row.id, row.sequence_index)).is_ok();
        (row.id, ends_request, row.sequence_index, row.index)
    };
    rows.sort_unstable_by(|left, right| {
        let by_id = left.id.cmp(&right.id);
        by_id.then_with(|| order(left).cmp(&order(right)))
    });

    let mut merged = StepBatch::default();
    let mut open: Option<Row<'_, Id>> = None;
    for row in &rows {
        let alone = stands_alone(row.index);
        match open.as_ref() {
            Some(before) if !alone && continues(before, row) => {
                extend_row(&mut merged, row);
                // What the merged row carries is decided by its first part.
                let state = open.get_or_insert(*row);
                state.finish_reason = row.finish_reason;
                state.is_final = row.is_final;
            }
            _ => {
                if alone {
                    place_alone(row.index, merged.ids.len());
                }
                merged.push(row);
                open = (!alone).then_some(*row);
            }
        }
    }
    merged
}

/// Whether `row` can be sent as more of the open row `before`.
fn continues<Id: PartialEq>(before: &Row<'_, Id>, row: &Row<'_, Id>) -> bool {
    let width = |row: &Row<'_, Id>| row.top_log_probs.map(|top| top.width);
    before.id == row.id
        && before.sequence_index == row.sequence_index
        && before.finish_reason == FinishReason::NotFinished
        && !before.is_final
        && before.error.is_none()
        && row.error.is_none()
        && row.cached_tokens.is_none()
        && row.context_phase.is_none()
        && row.prompt_log_probs.is_none()
        && (row.tokens.is_empty()
            || before.log_probs.is_some() == row.log_probs.is_some() && width(before) == width(row))
}

/// Adds a row's tokens to the last row of the batch.
fn extend_row<Id>(into: &mut StepBatch<Id>, row: &Row<'_, Id>) {
    into.token_ids.extend_from_slice(row.tokens);
    if let Some(end) = into.token_offsets.last_mut() {
        *end = into.token_ids.len() as u32;
    }
    if let Some(reason) = into.finish_reasons.last_mut() {
        *reason = row.finish_reason as u8;
    }
    if let Some(last) = into.finals.last_mut() {
        *last = u8::from(row.is_final);
    }
    into.log_probs
        .extend_from_slice(row.log_probs.unwrap_or_default());
    if let Some(top) = row.top_log_probs.filter(|_| !row.tokens.is_empty()) {
        into.top_log_prob_ids.extend_from_slice(top.ids);
        into.top_log_probs.extend_from_slice(top.values);
    }
}

/// Splits a batch into parts whose columns take about `limit` bytes at most, so that what waited long
/// still fits messages. A single row is never split.
pub(crate) fn split(batch: StepBatch, limit: usize) -> Vec<StepBatch> {
    if byte_size(&batch) <= limit {
        return vec![batch];
    }
    let mut parts = Vec::new();
    let mut part = StepBatch::default();
    for row in batch.rows() {
        if !part.ids.is_empty() && byte_size(&part) + row_size(&row) > limit {
            parts.push(std::mem::take(&mut part));
        }
        part.push(&row);
    }
    parts.push(part);
    parts
}

/// Bytes of the columns, nearly.
fn byte_size(batch: &StepBatch) -> usize {
    let prompts = batch.prompt_log_probs.iter();
    let phases = batch.context_phases.iter();
    24 * batch.ids.len()
        + 4 * (batch.token_ids.len() + batch.log_probs.len())
        + 8 * batch.top_log_prob_ids.len()
        + batch
            .errors
            .iter()
            .map(|error| 32 + error.text.len())
            .sum::<usize>()
        + phases.map(|phase| 8 + phase.params.len()).sum::<usize>()
        + prompts
            .map(|prompt| 4 * prompt.values.len() + 8 * prompt.top_ids.len())
            .sum::<usize>()
}

fn row_size(row: &Row<'_>) -> usize {
    let prompt = row.prompt_log_probs;
    24 + 4 * (row.tokens.len() + row.log_probs.map_or(0, <[f32]>::len))
        + 8 * row.top_log_probs.map_or(0, |top| top.ids.len())
        + row.error.map_or(0, |error| 32 + error.text.len())
        + row.context_phase.map_or(0, |params| 8 + params.len())
        + prompt.map_or(0, |prompt| {
            4 * prompt.values.len() + 8 * prompt.top_ids.len()
        })
}

/// A batch of one final row that carries an error.
pub(crate) fn error_row(
    handle: Handle,
    code: Code,
    text: String,
    retry_after_ms: u32,
) -> StepBatch {
    let error = RowError {
        row: 0,
        code,
        text,
        retry_after_ms,
    };
    StepBatch::from_iter([Row {
        finish_reason: FinishReason::Cancelled,
        is_final: true,
        error: Some(&error),
        ..Row::new(handle, &[])
    }])
}

#[cfg(test)]
mod tests;
