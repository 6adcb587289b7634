//! Operations on columns of rows: append a batch, append a row, merge rows that waited.
//!
//! Pure. Knows neither streams nor the wire; the columns' meaning stands in `inflight_kserve::step`.

use std::cmp::Ordering;

use inflight_kserve::step::{FinishReason, Row, StepBatch};

use crate::executor::ResponseBatch;

/// Appends all rows of `from`.
pub(crate) fn append(into: &mut StepBatch, from: StepBatch) {
    if into.handles.is_empty() {
        *into = from;
        return;
    }
    let row_base = into.handles.len() as u32;
    let token_base = into.token_ids.len() as u32;
    into.handles.extend_from_slice(&from.handles);
    into.sequence_index.extend_from_slice(&from.sequence_index);
    let offsets = from.token_offsets.iter().skip(1);
    into.token_offsets
        .extend(offsets.map(|offset| offset + token_base));
    into.token_ids.extend_from_slice(&from.token_ids);
    into.finish_reasons.extend_from_slice(&from.finish_reasons);
    into.finals.extend_from_slice(&from.finals);
    into.errors.extend(from.errors.into_iter().map(|mut error| {
        error.row += row_base;
        error
    }));
    into.log_prob_rows
        .extend(from.log_prob_rows.iter().map(|row| row + row_base));
    into.log_probs.extend_from_slice(&from.log_probs);
    into.top_log_prob_rows
        .extend(from.top_log_prob_rows.iter().map(|row| row + row_base));
    into.top_log_prob_widths
        .extend_from_slice(&from.top_log_prob_widths);
    into.top_log_prob_ids
        .extend_from_slice(&from.top_log_prob_ids);
    into.top_log_probs.extend_from_slice(&from.top_log_probs);
    into.cached_tokens.extend(
        from.cached_tokens
            .iter()
            .map(|(row, n)| (row + row_base, *n)),
    );
    into.prompt_log_probs
        .extend(from.prompt_log_probs.into_iter().map(|mut prompt| {
            prompt.row += row_base;
            prompt
        }));
}

/// Appends one row under another handle.
pub(crate) fn push_row(into: &mut StepBatch, row: &Row<'_>, handle: u64) {
    let place = into.handles.len() as u32;
    if into.token_offsets.is_empty() {
        into.token_offsets.push(0);
    }
    into.handles.push(handle);
    into.sequence_index.push(row.sequence_index);
    into.finish_reasons.push(row.finish_reason as u8);
    into.finals.push(u8::from(row.is_final));
    into.token_ids.extend_from_slice(row.tokens);
    into.token_offsets.push(into.token_ids.len() as u32);
    if let Some(error) = row.error {
        let mut error = error.clone();
        error.row = place;
        into.errors.push(error);
    }
    if let Some(log_probs) = row.log_probs {
        into.log_prob_rows.push(place);
        into.log_probs.extend_from_slice(log_probs);
    }
    if let Some(top) = row.top_log_probs {
        into.top_log_prob_rows.push(place);
        into.top_log_prob_widths.push(top.width as u32);
        into.top_log_prob_ids.extend_from_slice(top.ids);
        into.top_log_probs.extend_from_slice(top.values);
    }
    if let Some(count) = row.cached_tokens {
        into.cached_tokens.push((place, count));
    }
    if let Some(prompt) = row.prompt_log_probs {
        let mut prompt = prompt.clone();
        prompt.row = place;
        into.prompt_log_probs.push(prompt);
    }
}

/// Merges rows of the same sequence, as rows of several iterations are after a client fell behind.
/// Rows of a sequence stay in order, and a handle's final row stays its last.
pub(crate) fn compact(batch: &ResponseBatch) -> ResponseBatch {
    let mut rows: Vec<Row<'_>> = batch.rows.rows().collect();
    let mut last: Vec<(u64, i32)> = rows
        .iter()
        .filter(|row| row.is_final)
        .map(|row| (row.handle, row.sequence_index))
        .collect();
    last.sort_unstable();
    let order = |row: &Row<'_>| {
        let sequence = (row.handle, row.sequence_index);
        let ends_handle = last.binary_search(&sequence).is_ok();
        (row.handle, ends_handle, row.sequence_index, row.index)
    };
    rows.sort_unstable_by(|left, right| match left.handle.cmp(&right.handle) {
        Ordering::Equal => order(left).cmp(&order(right)),
        unequal => unequal,
    });

    let has_tensors = |row: &Row<'_>| {
        batch
            .tensors
            .binary_search_by_key(&(row.index as u32), |(place, _)| *place)
            .is_ok()
    };
    let mut merged = ResponseBatch::default();
    let mut open: Option<Row<'_>> = None;
    for row in &rows {
        let tensors = !batch.tensors.is_empty() && has_tensors(row);
        match open.as_ref() {
            Some(before) if !tensors && continues(before, row) => {
                extend_row(&mut merged.rows, row);
                // What the merged row carries is decided by its first part.
                let state = open.get_or_insert(*row);
                state.finish_reason = row.finish_reason;
                state.is_final = row.is_final;
            }
            _ => {
                push_row(&mut merged.rows, row, row.handle);
                open = (!tensors).then_some(*row);
                if tensors {
                    let place = merged.rows.handles.len() as u32 - 1;
                    let own = batch
                        .tensors
                        .iter()
                        .filter(|(at, _)| *at as usize == row.index);
                    merged
                        .tensors
                        .extend(own.map(|(_, tensor)| (place, tensor.clone())));
                }
            }
        }
    }
    merged
}

/// Whether `row` can be told as more of the open row `before`.
fn continues(before: &Row<'_>, row: &Row<'_>) -> bool {
    let width = |row: &Row<'_>| row.top_log_probs.map(|top| top.width);
    before.handle == row.handle
        && before.sequence_index == row.sequence_index
        && before.finish_reason == FinishReason::NotFinished
        && !before.is_final
        && before.error.is_none()
        && row.error.is_none()
        && row.cached_tokens.is_none()
        && row.prompt_log_probs.is_none()
        && (row.tokens.is_empty()
            || before.log_probs.is_some() == row.log_probs.is_some() && width(before) == width(row))
}

/// Adds a row's tokens to the last row of the batch, which it continues.
fn extend_row(into: &mut StepBatch, row: &Row<'_>) {
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
        if !part.handles.is_empty() && byte_size(&part) + row_size(&row) > limit {
            parts.push(std::mem::take(&mut part));
        }
        push_row(&mut part, &row, row.handle);
    }
    parts.push(part);
    parts
}

/// Bytes of the columns, nearly.
fn byte_size(batch: &StepBatch) -> usize {
    let prompts = batch.prompt_log_probs.iter();
    24 * batch.handles.len()
        + 4 * (batch.token_ids.len() + batch.log_probs.len())
        + 8 * batch.top_log_prob_ids.len()
        + batch
            .errors
            .iter()
            .map(|error| 32 + error.text.len())
            .sum::<usize>()
        + prompts
            .map(|prompt| 4 * prompt.values.len() + 8 * prompt.top_ids.len())
            .sum::<usize>()
}

fn row_size(row: &Row<'_>) -> usize {
    let prompt = row.prompt_log_probs;
    24 + 4 * (row.tokens.len() + row.log_probs.map_or(0, <[f32]>::len))
        + 8 * row.top_log_probs.map_or(0, |top| top.ids.len())
        + row.error.map_or(0, |error| 32 + error.text.len())
        + prompt.map_or(0, |prompt| {
            4 * prompt.values.len() + 8 * prompt.top_ids.len()
        })
}

/// A batch of one final row that carries an error.
pub(crate) fn error_row(handle: u64, code: i32, text: String) -> StepBatch {
    StepBatch {
        handles: vec![handle],
        sequence_index: vec![0],
        token_offsets: vec![0, 0],
        finish_reasons: vec![FinishReason::Cancelled as u8],
        finals: vec![1],
        errors: vec![inflight_kserve::step::RowError { row: 0, code, text }],
        ..StepBatch::default()
    }
}

#[cfg(test)]
mod tests;
