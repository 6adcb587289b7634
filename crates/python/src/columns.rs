//! The packed columns of a response batch, read. Pure: bytes in, a [`StepBatch`] out.
//!
//! Owns the layout of `python/inflight/executors/base.py`'s `ResponseBatch`. How columns must fit
//! together is [`StepBatch::validate`]'s, which the worker calls for every executor. Knows nothing of
//! Python objects.

use inflight_kserve::step::{Code, PromptLogProbs, RowError, StepBatch};
use inflight_worker::executor::ClientId;

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

/// A column whose length is not a multiple of the size of its values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column `{column}` has {bytes} bytes, not a multiple of {width}")]
pub(crate) struct Ragged {
    column: &'static str,
    bytes: usize,
    width: usize,
}

impl RawColumns<'_> {
    /// Copies each column once.
    pub(crate) fn read(self) -> Result<StepBatch<ClientId>, Ragged> {
        Ok(StepBatch {
            ids: unpack("client_ids", self.client_ids, |bytes| {
                ClientId(u64::from_le_bytes(bytes))
            })?,
            sequence_index: unpack("sequence_index", self.sequence_index, i32::from_le_bytes)?,
            token_offsets: unpack("token_offsets", self.token_offsets, u32::from_le_bytes)?,
            token_ids: unpack("token_ids", self.token_ids, i32::from_le_bytes)?,
            finish_reasons: self.finish_reasons.to_vec(),
            finals: self.finals.to_vec(),
            errors: self
                .errors
                .into_iter()
                .map(|(row, code, text)| RowError {
                    row,
                    code: Code::from_i32(code),
                    text,
                    retry_after_ms: 0,
                })
                .collect(),
            log_prob_rows: unpack("log_prob_rows", self.log_prob_rows, u32::from_le_bytes)?,
            log_probs: unpack("log_probs", self.log_probs, f32::from_le_bytes)?,
            top_log_prob_rows: unpack(
                "top_log_prob_rows",
                self.top_log_prob_rows,
                u32::from_le_bytes,
            )?,
            top_log_prob_widths: unpack(
                "top_log_prob_widths",
                self.top_log_prob_widths,
                u32::from_le_bytes,
            )?,
            top_log_prob_ids: unpack(
                "top_log_prob_ids",
                self.top_log_prob_ids,
                i32::from_le_bytes,
            )?,
            top_log_probs: unpack("top_log_probs", self.top_log_probs, f32::from_le_bytes)?,
            cached_tokens: self.cached_tokens,
            prompt_log_probs: self
                .prompt_log_probs
                .into_iter()
                .map(RawPromptLogProbs::read)
                .collect::<Result<_, _>>()?,
        })
    }
}

impl RawPromptLogProbs<'_> {
    fn read(self) -> Result<PromptLogProbs, Ragged> {
        Ok(PromptLogProbs {
            row: self.row,
            values: unpack("prompt_log_probs", self.values, f32::from_le_bytes)?,
            width: self.width,
            top_ids: unpack("prompt_log_probs", self.top_ids, i32::from_le_bytes)?,
            top_values: unpack("prompt_log_probs", self.top_values, f32::from_le_bytes)?,
        })
    }
}

/// One copy out of the Python object; the loop compiles to a memory copy on little-endian machines.
pub(crate) fn unpack<const WIDTH: usize, T>(
    column: &'static str,
    bytes: &[u8],
    from_bytes: fn([u8; WIDTH]) -> T,
) -> Result<Vec<T>, Ragged> {
    let (values, rest) = bytes.as_chunks::<WIDTH>();
    if !rest.is_empty() {
        return Err(Ragged {
            column,
            bytes: bytes.len(),
            width: WIDTH,
        });
    }
    Ok(values.iter().map(|value| from_bytes(*value)).collect())
}
