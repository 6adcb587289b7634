//! The invariants of a batch's columns. Pure; both ends check with it, the sender because a batch may
//! come from Python, the receiver because it comes from a peer.

use tonic::Code;

use super::{FinishReason, StepBatch, StepError};
use crate::names;

impl<Id> StepBatch<Id> {
    /// Checks that the columns agree with each other.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn validate(&self) -> Result<(), StepError> {
        let rows = self.ids.len();
        length(
            names::SEQUENCE_INDEX,
            rows as u64,
            self.sequence_index.len(),
        )?;
        length(names::FINISH_REASON, rows as u64, self.finish_reasons.len())?;
        length(names::FINAL, rows as u64, self.finals.len())?;
        if rows > 0 || !self.token_offsets.is_empty() {
            length(
                names::TOKEN_OFFSETS,
                rows as u64 + 1,
                self.token_offsets.len(),
            )?;
        }
        offsets(
            names::TOKEN_OFFSETS,
            &self.token_offsets,
            self.token_ids.len(),
        )?;
        value(names::SEQUENCE_INDEX, &self.sequence_index, |index| {
            *index >= 0
        })?;
        value(names::FINISH_REASON, &self.finish_reasons, |number| {
            FinishReason::from_number(*number).is_some()
        })?;
        value(names::FINAL, &self.finals, |number| *number <= 1)?;
        self.validate_errors()?;
        self.validate_log_probs()?;
        ascending(
            names::CACHED_TOKENS_ROWS,
            rows,
            self.cached_tokens.iter().map(|(row, _)| *row),
        )?;
        ascending(
            names::CONTEXT_PHASE_ROWS,
            rows,
            self.context_phases.iter().map(|phase| phase.row),
        )?;
        self.validate_prompt_log_probs()
    }

    /// The number of tokens of a row; 0 for a row that is not there.
    fn token_count(&self, row: u32) -> u64 {
        let row = row as usize;
        match (self.token_offsets.get(row), self.token_offsets.get(row + 1)) {
            (Some(start), Some(end)) => u64::from(end.saturating_sub(*start)),
            _ => 0,
        }
    }

    fn validate_errors(&self) -> Result<(), StepError> {
        let rows = self.ids.len();
        ascending(
            names::ERROR_ROWS,
            rows,
            self.errors.iter().map(|error| error.row),
        )?;
        for error in &self.errors {
            if error.code == Code::Ok {
                return Err(StepError::Value {
                    column: names::ERROR_CODES,
                    row: error.row as usize,
                    value: (error.code as i32).into(),
                });
            }
            if self.finals.get(error.row as usize) != Some(&1) {
                return Err(StepError::ErrorNotFinal { row: error.row });
            }
        }
        Ok(())
    }

    fn validate_log_probs(&self) -> Result<(), StepError> {
        let rows = self.ids.len();
        ascending(
            names::LOG_PROB_ROWS,
            rows,
            self.log_prob_rows.iter().copied(),
        )?;
        // No sum below overflows: rows and tokens are fewer than 2^32 each.
        let tokens = self
            .log_prob_rows
            .iter()
            .map(|row| self.token_count(*row))
            .sum();
        length(names::OUTPUT_LOG_PROBS, tokens, self.log_probs.len())?;

        ascending(
            names::TOP_LOG_PROB_ROWS,
            rows,
            self.top_log_prob_rows.iter().copied(),
        )?;
        let top_rows = self.top_log_prob_rows.len();
        length(
            names::TOP_LOG_PROB_WIDTHS,
            top_rows as u64,
            self.top_log_prob_widths.len(),
        )?;
        let values = self
            .top_log_prob_rows
            .iter()
            .zip(&self.top_log_prob_widths)
            .map(|(row, width)| self.token_count(*row).saturating_mul(u64::from(*width)))
            .fold(0, u64::saturating_add);
        length(names::TOP_LOG_PROB_IDS, values, self.top_log_prob_ids.len())?;
        length(names::TOP_LOG_PROBS, values, self.top_log_probs.len())
    }

    fn validate_prompt_log_probs(&self) -> Result<(), StepError> {
        let rows = self.prompt_log_probs.iter().map(|prompt| prompt.row);
        ascending(names::PROMPT_LOG_PROB_ROWS, self.ids.len(), rows)?;
        for prompt in &self.prompt_log_probs {
            let values = (prompt.values.len() as u64).saturating_mul(u64::from(prompt.width));
            length(names::PROMPT_TOP_LOG_PROB_IDS, values, prompt.top_ids.len())?;
            length(names::PROMPT_TOP_LOG_PROBS, values, prompt.top_values.len())?;
        }
        Ok(())
    }
}

pub(super) fn length(column: &'static str, expected: u64, actual: usize) -> Result<(), StepError> {
    if expected == actual as u64 {
        return Ok(());
    }
    Err(StepError::Length {
        column,
        expected,
        actual,
    })
}

/// Offsets into `total` values: from 0, never down, to the end. None at all is right for no values.
pub(super) fn offsets(
    column: &'static str,
    offsets: &[u32],
    total: usize,
) -> Result<(), StepError> {
    let mut previous = 0;
    for (position, next) in offsets.iter().copied().enumerate() {
        if position == 0 && next != 0 {
            return Err(StepError::OffsetStart {
                column,
                start: next,
            });
        }
        if next < previous {
            return Err(StepError::Offsets {
                column,
                position,
                previous,
                next,
            });
        }
        previous = next;
    }
    if previous as usize == total {
        return Ok(());
    }
    Err(StepError::OffsetEnd {
        column,
        end: previous,
        total,
    })
}

fn ascending(
    column: &'static str,
    rows: usize,
    numbers: impl Iterator<Item = u32>,
) -> Result<(), StepError> {
    let mut previous = None;
    for row in numbers {
        if row as usize >= rows {
            return Err(StepError::RowNumber { column, row, rows });
        }
        if let Some(previous) = previous.filter(|previous| *previous >= row) {
            return Err(StepError::RowOrder {
                column,
                previous,
                row,
            });
        }
        previous = Some(row);
    }
    Ok(())
}

fn value<T: Copy + Into<i64>>(
    column: &'static str,
    values: &[T],
    is_valid: impl Fn(&T) -> bool,
) -> Result<(), StepError> {
    match values.iter().position(|value| !is_valid(value)) {
        None => Ok(()),
        Some(row) => {
            let value = values.get(row).copied().map_or(0, Into::into);
            Err(StepError::Value { column, row, value })
        }
    }
}
