//! Step batching: one KServe response per engine iteration. Its tensors are columns with a row for each
//! sequence that moved. Owns the columns and their codec; knows nothing of executors, streams or text.
//!
//! A row is new output of one sequence of one request. The rows of a request are in order, and exactly one
//! is final, also after a cancellation or an error: an error of one request is in its row, never in the
//! message's `error_message`.
//!
//! ```
//! use inflight_kserve::step::{FinishReason, Handle, Row, StepBatch};
//! use inflight_kserve::streamed::StreamedResponse;
//!
//! let last = Row {
//!     finish_reason: FinishReason::EndId,
//!     is_final: true,
//!     ..Row::new(Handle(8), &[12])
//! };
//! let iteration = StepBatch::from_iter([Row::new(Handle(7), &[10, 11]), last]);
//! let message = iteration.encode("tensorrt_llm");
//!
//! let received = StepBatch::decode(message.view()?)?;
//! for row in received.rows() {
//!     println!("{}: {:?}, final: {}", row.id, row.tokens, row.is_final);
//! }
//! assert_eq!(received, iteration);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | column | tensor | type, shape |
//! |---|---|---|
//! | ids | `inflight_handle` | UINT64 `[rows]` |
//! | sequence_index | `inflight_sequence_index` | INT32 `[rows]` |
//! | token_offsets | `inflight_token_offsets` | UINT32 `[rows + 1]` |
//! | token_ids | `output_ids` | INT32 `[tokens]` |
//! | finish_reasons | `inflight_finish_reason` | UINT8 `[rows]` |
//! | finals | `inflight_final` | UINT8 `[rows]` |
//!
//! Sparse columns are sent only if a row has them; `*_rows` holds row numbers in ascending order.
//!
//! | columns | tensors | type |
//! |---|---|---|
//! | errors | `inflight_error_rows`, `_codes`, `_texts` | UINT32, INT32, BYTES |
//! | their retry times, if any has one | `inflight_error_retry_after_ms` | UINT32 |
//! | log_prob_rows, log_probs | `inflight_log_prob_rows`, `output_log_probs` | UINT32, FP32 |
//! | top_log_prob_rows, _widths | `inflight_top_log_prob_rows`, `_widths` | UINT32 |
//! | top_log_prob_ids, top_log_probs | `inflight_top_log_prob_ids`, `inflight_top_log_probs` | INT32, FP32 |
//! | cached_tokens | `inflight_cached_tokens_rows`, `inflight_cached_tokens` | UINT32, UINT32 |
//! | context_phases | `inflight_context_phase_rows`, `inflight_context_phases` | UINT32, BYTES |
//! | prompt_log_probs | `inflight_prompt_log_prob_rows`, `_offsets`, `inflight_prompt_log_probs` | UINT32, UINT32 `[n + 1]`, FP32 |
//! | their alternatives | `inflight_prompt_top_log_prob_widths`, `_ids`, `inflight_prompt_top_log_probs` | UINT32, INT32, FP32 |
//!
//! A request joins a step stream with [`RequestBuilder::handle`](crate::tensor::RequestBuilder::handle) and
//! is cancelled with [`stop_request`].

use bytes::Bytes;

mod codec;
mod edit;
mod error;
mod handle;
mod leaving;
mod rows;
mod validate;

pub use error::StepError;
pub use handle::{Handle, is_stop, stop_request};
pub use leaving::{is_leaving, leaving_message};
pub use rows::{Row, Rows, TopLogProbs};

/// The status codes of [`RowError`].
pub use tonic::Code;

#[cfg(test)]
mod tests;

/// Why a sequence ended: TensorRT-LLM's FinishReason, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FinishReason {
    NotFinished = 0,
    EndId = 1,
    StopWords = 2,
    Length = 3,
    TimedOut = 4,
    Cancelled = 5,
}

impl FinishReason {
    /// The reason with this number, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::NotFinished,
            1 => Self::EndId,
            2 => Self::StopWords,
            3 => Self::Length,
            4 => Self::TimedOut,
            5 => Self::Cancelled,
            _ => return None,
        })
    }
}

/// The rows of one engine iteration, as columns. An empty batch is valid: there was no progress.
///
/// `Id` says by which number the rows name their requests: [`Handle`] on the wire; an executor has
/// its own client ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepBatch<Id = Handle> {
    /// Which request each row belongs to.
    pub ids: Vec<Id>,
    /// Which of the request's `num_return_sequences`, from 0.
    pub sequence_index: Vec<i32>,
    /// Row r's tokens are `token_ids[token_offsets[r]..token_offsets[r + 1]]`; starts with 0.
    pub token_offsets: Vec<u32>,
    pub token_ids: Vec<i32>,
    /// [`FinishReason`] number: non-zero on a sequence's last row.
    pub finish_reasons: Vec<u8>,
    /// 1 on the request's last row of all, else 0.
    pub finals: Vec<u8>,
    pub errors: Vec<RowError>,
    /// Rows that carry log probabilities: as many values as the row has tokens, one row after another.
    pub log_prob_rows: Vec<u32>,
    pub log_probs: Vec<f32>,
    /// Alternatives: for each row in `top_log_prob_rows`, its width k in `top_log_prob_widths`, and
    /// tokens × k ids and values, best first.
    pub top_log_prob_rows: Vec<u32>,
    pub top_log_prob_widths: Vec<u32>,
    pub top_log_prob_ids: Vec<i32>,
    pub top_log_probs: Vec<f32>,
    /// Prompt tokens found in the KV cache; on a request's first row, when it asked.
    pub cached_tokens: Vec<(u32, u32)>,
    /// On the last row of a request that asked for its context phase alone.
    pub context_phases: Vec<ContextPhase>,
    /// On a request's first row, when it asked.
    pub prompt_log_probs: Vec<PromptLogProbs>,
}

/// What a context phase leaves for the worker that generates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextPhase {
    pub row: u32,
    /// Triton's `context_phase_params`: the executor's own bytes.
    pub params: Bytes,
}

/// Why one request failed.
#[derive(Clone, Debug, PartialEq)]
pub struct RowError {
    pub row: u32,
    /// Anything but OK.
    pub code: Code,
    pub text: String,
    /// Milliseconds after which a retry may succeed, for a worker that is full; 0: not known.
    pub retry_after_ms: u32,
}

/// Log probabilities of a prompt: position 0 has none and holds NaN.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptLogProbs {
    pub row: u32,
    /// `[prompt tokens]`
    pub values: Vec<f32>,
    /// Alternatives per position; may be 0.
    pub width: u32,
    /// `[prompt tokens × width]`; position 0's ids are -1.
    pub top_ids: Vec<i32>,
    pub top_values: Vec<f32>,
}
