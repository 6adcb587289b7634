//! A batch row by row. Sparse columns are walked together with the rows, so that no row is searched for.

use bytes::Bytes;

use super::{ContextPhase, FinishReason, Handle, PromptLogProbs, RowError, StepBatch};

/// One row with everything it carries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row<'a, Id = Handle> {
    /// Row number in the batch.
    pub index: usize,
    /// Which request.
    pub id: Id,
    pub sequence_index: i32,
    pub tokens: &'a [i32],
    /// [`FinishReason::NotFinished`] unless this is its sequence's last row.
    pub finish_reason: FinishReason,
    /// Whether this is the request's last row of all.
    pub is_final: bool,
    pub error: Option<&'a RowError>,
    /// One value per token.
    pub log_probs: Option<&'a [f32]>,
    pub top_log_probs: Option<TopLogProbs<'a>>,
    pub cached_tokens: Option<u32>,
    /// What its context phase leaves for the worker that generates.
    pub context_phase: Option<&'a Bytes>,
    pub prompt_log_probs: Option<&'a PromptLogProbs>,
}

/// A row's alternatives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopLogProbs<'a> {
    /// Alternatives per token.
    pub width: usize,
    /// `[tokens × width]`, best first.
    pub ids: &'a [i32],
    pub values: &'a [f32],
}

impl<'a> TopLogProbs<'a> {
    /// The alternatives of one of the row's tokens; empty where there is no such token.
    pub fn token(&self, token: usize) -> impl Iterator<Item = (i32, f32)> + use<'a> {
        let start = token.saturating_mul(self.width);
        let ids = self.ids.get(start..).unwrap_or_default().iter().copied();
        let values = self.values.get(start..).unwrap_or_default().iter().copied();
        ids.zip(values).take(self.width)
    }
}

impl<'a, Id> Row<'a, Id> {
    /// More tokens of a request's first sequence, and nothing else.
    pub fn new(id: Id, tokens: &'a [i32]) -> Self {
        Self {
            index: 0,
            id,
            sequence_index: 0,
            tokens,
            finish_reason: FinishReason::NotFinished,
            is_final: false,
            error: None,
            log_probs: None,
            top_log_probs: None,
            cached_tokens: None,
            context_phase: None,
            prompt_log_probs: None,
        }
    }

    /// The same row for another id.
    pub fn with_id<Other>(self, id: Other) -> Row<'a, Other> {
        Row {
            index: self.index,
            id,
            sequence_index: self.sequence_index,
            tokens: self.tokens,
            finish_reason: self.finish_reason,
            is_final: self.is_final,
            error: self.error,
            log_probs: self.log_probs,
            top_log_probs: self.top_log_probs,
            cached_tokens: self.cached_tokens,
            context_phase: self.context_phase,
            prompt_log_probs: self.prompt_log_probs,
        }
    }
}

impl<Id> StepBatch<Id> {
    /// The rows in order. Columns of a batch that was never validated may run out early: what is
    /// missing then reads as zero or empty.
    pub fn rows(&self) -> Rows<'_, Id> {
        Rows {
            batch: self,
            next: 0,
            errors: &self.errors,
            log_prob_rows: &self.log_prob_rows,
            log_probs: &self.log_probs,
            top_rows: &self.top_log_prob_rows,
            top_widths: &self.top_log_prob_widths,
            top_ids: &self.top_log_prob_ids,
            top_values: &self.top_log_probs,
            cached_tokens: &self.cached_tokens,
            context_phases: &self.context_phases,
            prompts: &self.prompt_log_probs,
        }
    }
}

/// Iterates over a batch's rows. Each sparse column's slice is what the rows so far have left of it.
#[derive(Clone, Debug)]
pub struct Rows<'a, Id = Handle> {
    batch: &'a StepBatch<Id>,
    next: usize,
    errors: &'a [RowError],
    log_prob_rows: &'a [u32],
    log_probs: &'a [f32],
    top_rows: &'a [u32],
    top_widths: &'a [u32],
    top_ids: &'a [i32],
    top_values: &'a [f32],
    cached_tokens: &'a [(u32, u32)],
    context_phases: &'a [ContextPhase],
    prompts: &'a [PromptLogProbs],
}

impl<'a, Id: Copy> Iterator for Rows<'a, Id> {
    type Item = Row<'a, Id>;

    fn next(&mut self) -> Option<Row<'a, Id>> {
        let batch = self.batch;
        let index = self.next;
        let id = *batch.ids.get(index)?;
        self.next += 1;
        let start = batch.token_offsets.get(index).copied().unwrap_or(0) as usize;
        let end = batch.token_offsets.get(index + 1).copied().unwrap_or(0) as usize;
        let tokens = batch.token_ids.get(start..end).unwrap_or_default();
        let finish_reason = batch.finish_reasons.get(index).copied().unwrap_or(0);
        Some(Row {
            index,
            id,
            sequence_index: batch.sequence_index.get(index).copied().unwrap_or(0),
            tokens,
            finish_reason: FinishReason::from_number(finish_reason)
                .unwrap_or(FinishReason::NotFinished),
            is_final: batch.finals.get(index).is_some_and(|number| *number != 0),
            error: take_row(&mut self.errors, index, |error| error.row),
            log_probs: take_row(&mut self.log_prob_rows, index, |row| *row)
                .map(|_| take(&mut self.log_probs, tokens.len())),
            top_log_probs: self.take_top(index, tokens.len()),
            cached_tokens: take_row(&mut self.cached_tokens, index, |(row, _)| *row)
                .map(|(_, count)| *count),
            context_phase: take_row(&mut self.context_phases, index, |phase| phase.row)
                .map(|phase| &phase.params),
            prompt_log_probs: take_row(&mut self.prompts, index, |prompt| prompt.row),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.batch.ids.len() - self.next;
        (left, Some(left))
    }
}

impl<Id: Copy> ExactSizeIterator for Rows<'_, Id> {}

impl<'a, Id> Rows<'a, Id> {
    fn take_top(&mut self, index: usize, tokens: usize) -> Option<TopLogProbs<'a>> {
        take_row(&mut self.top_rows, index, |row| *row)?;
        let width = take(&mut self.top_widths, 1).first().copied().unwrap_or(0) as usize;
        let count = tokens.saturating_mul(width);
        Some(TopLogProbs {
            width,
            ids: take(&mut self.top_ids, count),
            values: take(&mut self.top_values, count),
        })
    }
}

/// Takes the first element off if it belongs to this row.
fn take_row<'a, T>(column: &mut &'a [T], index: usize, row: impl Fn(&T) -> u32) -> Option<&'a T> {
    let (first, rest) = column.split_first()?;
    if row(first) as usize != index {
        return None;
    }
    *column = rest;
    Some(first)
}

/// Takes up to `count` elements off.
fn take<'a, T>(column: &mut &'a [T], count: usize) -> &'a [T] {
    let (taken, rest) = column.split_at(count.min(column.len()));
    *column = rest;
    taken
}
