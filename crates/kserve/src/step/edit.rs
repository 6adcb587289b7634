//! Building batches: row by row, batch after batch, and under other ids.

use super::{ContextPhase, Row, StepBatch};

impl<Id: Copy> StepBatch<Id> {
    /// Appends one row with everything it carries; its `index` and the row numbers of its parts are
    /// given anew.
    pub fn push(&mut self, row: &Row<'_, Id>) {
        let index = self.ids.len() as u32;
        if self.token_offsets.is_empty() {
            self.token_offsets.push(0);
        }
        self.ids.push(row.id);
        self.sequence_index.push(row.sequence_index);
        self.finish_reasons.push(row.finish_reason as u8);
        self.finals.push(u8::from(row.is_final));
        self.token_ids.extend_from_slice(row.tokens);
        self.token_offsets.push(self.token_ids.len() as u32);
        if let Some(error) = row.error {
            let mut error = error.clone();
            error.row = index;
            self.errors.push(error);
        }
        if let Some(log_probs) = row.log_probs {
            self.log_prob_rows.push(index);
            self.log_probs.extend_from_slice(log_probs);
        }
        if let Some(top) = row.top_log_probs {
            self.top_log_prob_rows.push(index);
            self.top_log_prob_widths.push(top.width as u32);
            self.top_log_prob_ids.extend_from_slice(top.ids);
            self.top_log_probs.extend_from_slice(top.values);
        }
        if let Some(count) = row.cached_tokens {
            self.cached_tokens.push((index, count));
        }
        if let Some(params) = row.context_phase {
            let params = params.clone();
            self.context_phases
                .push(ContextPhase { row: index, params });
        }
        if let Some(prompt) = row.prompt_log_probs {
            let mut prompt = prompt.clone();
            prompt.row = index;
            self.prompt_log_probs.push(prompt);
        }
    }

    /// Appends all rows of `other`.
    pub fn append(&mut self, other: Self) {
        if self.ids.is_empty() {
            *self = other;
            return;
        }
        let row_base = self.ids.len() as u32;
        let token_base = self.token_ids.len() as u32;
        self.ids.extend_from_slice(&other.ids);
        self.sequence_index.extend_from_slice(&other.sequence_index);
        let offsets = other.token_offsets.iter().skip(1);
        self.token_offsets
            .extend(offsets.map(|offset| offset + token_base));
        self.token_ids.extend_from_slice(&other.token_ids);
        self.finish_reasons.extend_from_slice(&other.finish_reasons);
        self.finals.extend_from_slice(&other.finals);
        self.errors
            .extend(other.errors.into_iter().map(|mut error| {
                error.row += row_base;
                error
            }));
        self.log_prob_rows
            .extend(other.log_prob_rows.iter().map(|row| row + row_base));
        self.log_probs.extend_from_slice(&other.log_probs);
        self.top_log_prob_rows
            .extend(other.top_log_prob_rows.iter().map(|row| row + row_base));
        self.top_log_prob_widths
            .extend_from_slice(&other.top_log_prob_widths);
        self.top_log_prob_ids
            .extend_from_slice(&other.top_log_prob_ids);
        self.top_log_probs.extend_from_slice(&other.top_log_probs);
        let cached_tokens = other.cached_tokens.iter();
        self.cached_tokens
            .extend(cached_tokens.map(|(row, count)| (row + row_base, *count)));
        let phases = other.context_phases.into_iter();
        self.context_phases.extend(phases.map(|mut phase| {
            phase.row += row_base;
            phase
        }));
        let prompts = other.prompt_log_probs.into_iter();
        self.prompt_log_probs.extend(prompts.map(|mut prompt| {
            prompt.row += row_base;
            prompt
        }));
    }

    /// The same rows for other ids, one per row, as when an executor's rows go out under the handles of
    /// a stream. No other column is touched.
    pub fn with_ids<Other>(self, ids: Vec<Other>) -> StepBatch<Other> {
        StepBatch {
            ids,
            sequence_index: self.sequence_index,
            token_offsets: self.token_offsets,
            token_ids: self.token_ids,
            finish_reasons: self.finish_reasons,
            finals: self.finals,
            errors: self.errors,
            log_prob_rows: self.log_prob_rows,
            log_probs: self.log_probs,
            top_log_prob_rows: self.top_log_prob_rows,
            top_log_prob_widths: self.top_log_prob_widths,
            top_log_prob_ids: self.top_log_prob_ids,
            top_log_probs: self.top_log_probs,
            cached_tokens: self.cached_tokens,
            context_phases: self.context_phases,
            prompt_log_probs: self.prompt_log_probs,
        }
    }
}

impl<'a, Id: Copy + Default> FromIterator<Row<'a, Id>> for StepBatch<Id> {
    fn from_iter<Rows: IntoIterator<Item = Row<'a, Id>>>(rows: Rows) -> Self {
        let mut batch = Self::default();
        for row in rows {
            batch.push(&row);
        }
        batch
    }
}
