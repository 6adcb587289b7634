//! The packed columns of a response batch, read and checked. Pure: bytes in, a [`StepBatch`] out.
//!
//! Owns the layout of `python/inflight/executors/base.py`'s `ResponseBatch` and every rule that a batch
//! must keep before the rest of the worker may index into it. Knows nothing of Python objects.

use inflight_kserve::step::{FinishReason, PromptLogProbs, RowError, StepBatch};

/// The columns as an executor gave them; names and meanings are `ResponseBatch`'s.
#[derive(Debug, Default)]
pub(crate) struct RawColumns<'a> {
    pub(crate) client_ids: &'a [u8],
    pub(crate) sequence_index: &'a [u8],
    pub(crate) token_offsets: &'a [u8],
    pub(crate) token_ids: &'a [u8],
    pub(crate) finish_reasons: &'a [u8],
    pub(crate) finals: &'a [u8],
    pub(crate) errors: Vec<(u32, i32, String)>,
    pub(crate) log_prob_rows: &'a [u8],
    pub(crate) log_probs: &'a [u8],
    pub(crate) top_log_prob_rows: &'a [u8],
    pub(crate) top_log_prob_widths: &'a [u8],
    pub(crate) top_log_prob_ids: &'a [u8],
    pub(crate) top_log_probs: &'a [u8],
    pub(crate) cached_tokens: Vec<(u32, u32)>,
    pub(crate) prompt_log_probs: Vec<RawPromptLogProbs<'a>>,
}

/// One entry of `prompt_log_probs`: (row, values, k, ids, values of the alternatives).
#[derive(Debug)]
pub(crate) struct RawPromptLogProbs<'a> {
    pub(crate) row: u32,
    pub(crate) values: &'a [u8],
    pub(crate) width: u32,
    pub(crate) top_ids: &'a [u8],
    pub(crate) top_values: &'a [u8],
}

/// Why a batch cannot be used. Always the executor's mistake, never a request's.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum MalformedBatch {
    #[error("column `{column}` holds {bytes} bytes, which is no multiple of {width}")]
    Ragged {
        column: &'static str,
        bytes: usize,
        width: usize,
    },
    #[error("column `{column}` has {found} values where {expected} were expected, {reason}")]
    Length {
        column: &'static str,
        found: usize,
        expected: usize,
        reason: &'static str,
    },
    #[error(
        "column `token_offsets` must start at 0, never fall, and end at the number of tokens `{tokens}`"
    )]
    Offsets { tokens: usize },
    #[error("column `{column}` names row `{row}` of a batch with {rows} rows")]
    Row {
        column: &'static str,
        row: u32,
        rows: usize,
    },
    #[error("column `{column}` must name rows in ascending order, each once")]
    Order { column: &'static str },
    #[error("column `{column}` holds `{value}` in row {row}, expected {expected}")]
    Value {
        column: &'static str,
        row: usize,
        value: i64,
        expected: &'static str,
    },
}

impl RawColumns<'_> {
    /// Copies each column once and checks what the rest of the worker relies on: lengths that agree,
    /// offsets that stay inside, rows that exist, numbers that mean something.
    pub(crate) fn read(self) -> Result<StepBatch, MalformedBatch> {
        let handles: Vec<u64> = unpack("client_ids", self.client_ids, u64::from_le_bytes)?;
        let rows = handles.len();
        let sequence_index = unpack("sequence_index", self.sequence_index, i32::from_le_bytes)?;
        let token_ids = unpack("token_ids", self.token_ids, i32::from_le_bytes)?;
        let token_offsets = unpack("token_offsets", self.token_offsets, u32::from_le_bytes)?;
        expect_length("sequence_index", sequence_index.len(), rows, PER_ROW)?;
        expect_length("finish_reasons", self.finish_reasons.len(), rows, PER_ROW)?;
        expect_length("finals", self.finals.len(), rows, PER_ROW)?;
        check_offsets(&token_offsets, rows, token_ids.len())?;
        check_values(&sequence_index, self.finish_reasons, self.finals)?;

        let tokens_of = |row: u32| -> usize {
            let row = row as usize;
            match (token_offsets.get(row), token_offsets.get(row + 1)) {
                (Some(&start), Some(&end)) => (end - start) as usize,
                _ => 0,
            }
        };

        let log_prob_rows = unpack("log_prob_rows", self.log_prob_rows, u32::from_le_bytes)?;
        check_sparse_rows("log_prob_rows", &log_prob_rows, rows)?;
        let log_probs = unpack("log_probs", self.log_probs, f32::from_le_bytes)?;
        let expected = log_prob_rows.iter().map(|&row| tokens_of(row)).sum();
        expect_length(
            "log_probs",
            log_probs.len(),
            expected,
            "one per token of the rows named",
        )?;

        let top_rows = unpack(
            "top_log_prob_rows",
            self.top_log_prob_rows,
            u32::from_le_bytes,
        )?;
        check_sparse_rows("top_log_prob_rows", &top_rows, rows)?;
        let widths = unpack(
            "top_log_prob_widths",
            self.top_log_prob_widths,
            u32::from_le_bytes,
        )?;
        expect_length(
            "top_log_prob_widths",
            widths.len(),
            top_rows.len(),
            "one per row named",
        )?;
        let expected = top_rows
            .iter()
            .zip(&widths)
            .map(|(&row, &width)| tokens_of(row).saturating_mul(width as usize))
            .fold(0, usize::saturating_add);
        let top_ids = unpack(
            "top_log_prob_ids",
            self.top_log_prob_ids,
            i32::from_le_bytes,
        )?;
        expect_length("top_log_prob_ids", top_ids.len(), expected, PER_ALTERNATIVE)?;
        let top_values = unpack("top_log_probs", self.top_log_probs, f32::from_le_bytes)?;
        expect_length("top_log_probs", top_values.len(), expected, PER_ALTERNATIVE)?;

        for &(row, code, _) in &self.errors {
            check_row("errors", row, rows)?;
            if !(1..=16).contains(&code) {
                return Err(MalformedBatch::Value {
                    column: "errors",
                    row: row as usize,
                    value: code.into(),
                    expected: "a gRPC status code from 1 to 16",
                });
            }
        }
        for &(row, _) in &self.cached_tokens {
            check_row("cached_tokens", row, rows)?;
        }

        Ok(StepBatch {
            handles,
            sequence_index,
            token_offsets,
            token_ids,
            finish_reasons: self.finish_reasons.to_vec(),
            finals: self.finals.to_vec(),
            errors: self
                .errors
                .into_iter()
                .map(|(row, code, text)| RowError { row, code, text })
                .collect(),
            log_prob_rows,
            log_probs,
            top_log_prob_rows: top_rows,
            top_log_prob_widths: widths,
            top_log_prob_ids: top_ids,
            top_log_probs: top_values,
            cached_tokens: self.cached_tokens,
            prompt_log_probs: self
                .prompt_log_probs
                .into_iter()
                .map(|entry| entry.read(rows))
                .collect::<Result<_, _>>()?,
        })
    }
}

impl RawPromptLogProbs<'_> {
    fn read(self, rows: usize) -> Result<PromptLogProbs, MalformedBatch> {
        check_row("prompt_log_probs", self.row, rows)?;
        let values = unpack("prompt_log_probs", self.values, f32::from_le_bytes)?;
        let expected = values.len().saturating_mul(self.width as usize);
        let top_ids = unpack("prompt_log_probs ids", self.top_ids, i32::from_le_bytes)?;
        expect_length(
            "prompt_log_probs ids",
            top_ids.len(),
            expected,
            PER_PROMPT_ALTERNATIVE,
        )?;
        let top_values = unpack(
            "prompt_log_probs alternatives",
            self.top_values,
            f32::from_le_bytes,
        )?;
        expect_length(
            "prompt_log_probs alternatives",
            top_values.len(),
            expected,
            PER_PROMPT_ALTERNATIVE,
        )?;
        Ok(PromptLogProbs {
            row: self.row,
            values,
            width: self.width,
            top_ids,
            top_values,
        })
    }
}

const PER_ROW: &str = "one per row";
const PER_ALTERNATIVE: &str = "tokens times width of the rows named";
const PER_PROMPT_ALTERNATIVE: &str = "prompt tokens times width";

/// One copy out of the Python object; the loop compiles to a memory copy on little-endian machines.
fn unpack<const WIDTH: usize, T>(
    column: &'static str,
    bytes: &[u8],
    from_bytes: fn([u8; WIDTH]) -> T,
) -> Result<Vec<T>, MalformedBatch> {
    let (values, rest) = bytes.as_chunks::<WIDTH>();
    if !rest.is_empty() {
        return Err(MalformedBatch::Ragged {
            column,
            bytes: bytes.len(),
            width: WIDTH,
        });
    }
    Ok(values.iter().map(|value| from_bytes(*value)).collect())
}

fn expect_length(
    column: &'static str,
    found: usize,
    expected: usize,
    reason: &'static str,
) -> Result<(), MalformedBatch> {
    if found == expected {
        return Ok(());
    }
    Err(MalformedBatch::Length {
        column,
        found,
        expected,
        reason,
    })
}

fn check_offsets(offsets: &[u32], rows: usize, tokens: usize) -> Result<(), MalformedBatch> {
    if rows == 0 && offsets.is_empty() {
        return expect_length("token_ids", tokens, 0, "none without rows");
    }
    expect_length(
        "token_offsets",
        offsets.len(),
        rows + 1,
        "one more than rows",
    )?;
    let bounded = offsets.first() == Some(&0)
        && offsets.last().is_some_and(|&last| last as usize == tokens)
        && offsets.is_sorted();
    if bounded {
        Ok(())
    } else {
        Err(MalformedBatch::Offsets { tokens })
    }
}

fn check_values(
    sequence_index: &[i32],
    finish_reasons: &[u8],
    finals: &[u8],
) -> Result<(), MalformedBatch> {
    if let Some(row) = sequence_index.iter().position(|&index| index < 0) {
        return Err(MalformedBatch::Value {
            column: "sequence_index",
            row,
            value: sequence_index[row].into(),
            expected: "0 or more",
        });
    }
    if let Some(row) = finish_reasons
        .iter()
        .position(|&reason| FinishReason::from_number(reason).is_none())
    {
        return Err(MalformedBatch::Value {
            column: "finish_reasons",
            row,
            value: finish_reasons[row].into(),
            expected: "a FinishReason from 0 to 5",
        });
    }
    if let Some(row) = finals.iter().position(|&last| last > 1) {
        return Err(MalformedBatch::Value {
            column: "finals",
            row,
            value: finals[row].into(),
            expected: "0 or 1",
        });
    }
    Ok(())
}

fn check_row(column: &'static str, row: u32, rows: usize) -> Result<(), MalformedBatch> {
    if (row as usize) < rows {
        return Ok(());
    }
    Err(MalformedBatch::Row { column, row, rows })
}

fn check_sparse_rows(
    column: &'static str,
    named: &[u32],
    rows: usize,
) -> Result<(), MalformedBatch> {
    if !named.windows(2).all(|pair| pair[0] < pair[1]) {
        return Err(MalformedBatch::Order { column });
    }
    // Ascending, so the last is the largest.
    named
        .last()
        .map_or(Ok(()), |&row| check_row(column, row, rows))
}
