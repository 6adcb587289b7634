//! A batch to and from one infer response. Owns which tensor holds which column.

use bytes::Bytes;
use tonic::Code;

use super::{ContextPhase, PromptLogProbs, RowError, StepBatch, StepError, validate};
use crate::encoded::ResponseWriter;
use crate::names;
use crate::streamed::{EncodedResponse, ResponseView};
use crate::tensor::{Element, TensorError, Tensors};

impl StepBatch {
    /// Encodes the batch as one response. A batch that does not [`validate`](Self::validate) becomes a
    /// message that does not decode.
    pub fn encode(&self, model_name: &str) -> EncodedResponse {
        self.write(model_name).build()
    }

    pub(super) fn write(&self, model_name: &str) -> ResponseWriter {
        let mut out = ResponseWriter::new(model_name, self.byte_size());
        out.vector(names::HANDLE, &self.ids);
        out.vector(names::SEQUENCE_INDEX, &self.sequence_index);
        out.vector(names::TOKEN_OFFSETS, &self.token_offsets);
        out.vector(names::OUTPUT_IDS, &self.token_ids);
        out.vector(names::FINISH_REASON, &self.finish_reasons);
        out.vector(names::FINAL, &self.finals);
        if !self.errors.is_empty() {
            let rows: Vec<u32> = self.errors.iter().map(|error| error.row).collect();
            let codes: Vec<i32> = self.errors.iter().map(|error| error.code as i32).collect();
            out.vector(names::ERROR_ROWS, &rows);
            out.vector(names::ERROR_CODES, &codes);
            let texts = self.errors.iter().map(|error| &error.text);
            out.bytes(names::ERROR_TEXTS, rows.len(), texts);
            let retries = self.errors.iter().map(|error| error.retry_after_ms);
            let retries: Vec<u32> = retries.collect();
            if retries.iter().any(|retry| *retry > 0) {
                out.vector(names::ERROR_RETRY_AFTER_MS, &retries);
            }
        }
        if !self.log_prob_rows.is_empty() {
            out.vector(names::LOG_PROB_ROWS, &self.log_prob_rows);
            out.vector(names::OUTPUT_LOG_PROBS, &self.log_probs);
        }
        if !self.top_log_prob_rows.is_empty() {
            out.vector(names::TOP_LOG_PROB_ROWS, &self.top_log_prob_rows);
            out.vector(names::TOP_LOG_PROB_WIDTHS, &self.top_log_prob_widths);
            out.vector(names::TOP_LOG_PROB_IDS, &self.top_log_prob_ids);
            out.vector(names::TOP_LOG_PROBS, &self.top_log_probs);
        }
        if !self.cached_tokens.is_empty() {
            let (rows, counts): (Vec<u32>, Vec<u32>) = self.cached_tokens.iter().copied().unzip();
            out.vector(names::CACHED_TOKENS_ROWS, &rows);
            out.vector(names::CACHED_TOKENS, &counts);
        }
        if !self.context_phases.is_empty() {
            let rows: Vec<u32> = self.context_phases.iter().map(|phase| phase.row).collect();
            out.vector(names::CONTEXT_PHASE_ROWS, &rows);
            let params = self.context_phases.iter().map(|phase| &phase.params);
            out.bytes(names::CONTEXT_PHASES, rows.len(), params);
        }
        if !self.prompt_log_probs.is_empty() {
            encode_prompts(&mut out, &self.prompt_log_probs);
        }
        out
    }

    /// Decodes a step message. Unknown tensors are ignored, so that later versions can add columns.
    ///
    /// # Errors
    /// When a column is missing or malformed, or columns do not agree. No part of the message is usable
    /// then.
    pub fn decode<'a>(response: impl Into<ResponseView<'a>>) -> Result<Self, StepError> {
        let response = response.into();
        let tensors = response.outputs()?;
        let batch = Self {
            ids: require(&tensors, names::HANDLE)?,
            sequence_index: require(&tensors, names::SEQUENCE_INDEX)?,
            token_offsets: require(&tensors, names::TOKEN_OFFSETS)?,
            token_ids: require(&tensors, names::OUTPUT_IDS)?,
            finish_reasons: require(&tensors, names::FINISH_REASON)?,
            finals: require(&tensors, names::FINAL)?,
            errors: decode_errors(&tensors)?,
            log_prob_rows: optional(&tensors, names::LOG_PROB_ROWS)?,
            log_probs: optional(&tensors, names::OUTPUT_LOG_PROBS)?,
            top_log_prob_rows: optional(&tensors, names::TOP_LOG_PROB_ROWS)?,
            top_log_prob_widths: optional(&tensors, names::TOP_LOG_PROB_WIDTHS)?,
            top_log_prob_ids: optional(&tensors, names::TOP_LOG_PROB_IDS)?,
            top_log_probs: optional(&tensors, names::TOP_LOG_PROBS)?,
            cached_tokens: decode_cached_tokens(&tensors)?,
            context_phases: decode_context_phases(&tensors)?,
            prompt_log_probs: decode_prompts(&tensors)?,
        };
        batch.validate()?;
        Ok(batch)
    }

    /// The size of the columns in bytes, nearly, so that encoding allocates once.
    pub(super) fn byte_size(&self) -> usize {
        // Per row: handle 8, sequence index and offset 4 each, finish reason and final 1 each.
        let errors = self
            .errors
            .iter()
            .map(|error| 16 + error.text.len())
            .sum::<usize>();
        let prompts = self
            .prompt_log_probs
            .iter()
            .map(|prompt| 12 + 4 * prompt.values.len() + 8 * prompt.top_ids.len())
            .sum::<usize>();
        let phases = self
            .context_phases
            .iter()
            .map(|phase| 8 + phase.params.len())
            .sum::<usize>();
        18 * self.ids.len()
            + 4 * (self.token_ids.len() + self.log_prob_rows.len() + self.log_probs.len())
            + 8 * (self.top_log_prob_rows.len() + self.top_log_prob_ids.len())
            + 8 * self.cached_tokens.len()
            + errors
            + phases
            + prompts
            + 16
    }
}

fn require<T: Element>(tensors: &Tensors<'_>, name: &str) -> Result<Vec<T>, TensorError> {
    tensors.require(name)?.values()
}

fn optional<T: Element>(tensors: &Tensors<'_>, name: &str) -> Result<Vec<T>, TensorError> {
    Ok(tensors.values(name)?.unwrap_or_default())
}

fn decode_errors(tensors: &Tensors<'_>) -> Result<Vec<RowError>, StepError> {
    let Some(rows) = tensors.values::<u32>(names::ERROR_ROWS)? else {
        return Ok(Vec::new());
    };
    let codes: Vec<i32> = require(tensors, names::ERROR_CODES)?;
    let texts = tensors.require(names::ERROR_TEXTS)?;
    validate::length(names::ERROR_CODES, rows.len() as u64, codes.len())?;
    validate::length(names::ERROR_TEXTS, rows.len() as u64, texts.count())?;
    let texts = texts.strings()?;
    let retries = tensors
        .values::<u32>(names::ERROR_RETRY_AFTER_MS)?
        .unwrap_or_else(|| vec![0; rows.len()]);
    validate::length(
        names::ERROR_RETRY_AFTER_MS,
        rows.len() as u64,
        retries.len(),
    )?;
    Ok(rows
        .into_iter()
        .zip(codes)
        .zip(texts)
        .zip(retries)
        .map(|(((row, code), text), retry_after_ms)| RowError {
            row,
            code: Code::from_i32(code),
            text: text.to_owned(),
            retry_after_ms,
        })
        .collect())
}

fn decode_cached_tokens(tensors: &Tensors<'_>) -> Result<Vec<(u32, u32)>, StepError> {
    let Some(rows) = tensors.values::<u32>(names::CACHED_TOKENS_ROWS)? else {
        return Ok(Vec::new());
    };
    let counts: Vec<u32> = require(tensors, names::CACHED_TOKENS)?;
    validate::length(names::CACHED_TOKENS, rows.len() as u64, counts.len())?;
    Ok(rows.into_iter().zip(counts).collect())
}

fn decode_context_phases(tensors: &Tensors<'_>) -> Result<Vec<ContextPhase>, StepError> {
    let Some(rows) = tensors.values::<u32>(names::CONTEXT_PHASE_ROWS)? else {
        return Ok(Vec::new());
    };
    let params = tensors.require(names::CONTEXT_PHASES)?;
    validate::length(names::CONTEXT_PHASES, rows.len() as u64, params.count())?;
    let params = params.elements()?.map(Bytes::copy_from_slice);
    let phases = rows.into_iter().zip(params);
    Ok(phases
        .map(|(row, params)| ContextPhase { row, params })
        .collect())
}

fn encode_prompts(out: &mut ResponseWriter, prompts: &[PromptLogProbs]) {
    let rows: Vec<u32> = prompts.iter().map(|prompt| prompt.row).collect();
    let mut offsets = Vec::with_capacity(prompts.len() + 1);
    offsets.push(0);
    let mut end = 0_u32;
    for prompt in prompts {
        end = end.saturating_add(u32::try_from(prompt.values.len()).unwrap_or(u32::MAX));
        offsets.push(end);
    }
    let values: Vec<f32> = concatenated(prompts, |prompt| &prompt.values);
    out.vector(names::PROMPT_LOG_PROB_ROWS, &rows);
    out.vector(names::PROMPT_LOG_PROB_OFFSETS, &offsets);
    out.vector(names::PROMPT_LOG_PROBS, &values);
    if prompts.iter().any(|prompt| prompt.width > 0) {
        let widths: Vec<u32> = prompts.iter().map(|prompt| prompt.width).collect();
        let ids: Vec<i32> = concatenated(prompts, |prompt| &prompt.top_ids);
        let values: Vec<f32> = concatenated(prompts, |prompt| &prompt.top_values);
        out.vector(names::PROMPT_TOP_LOG_PROB_WIDTHS, &widths);
        out.vector(names::PROMPT_TOP_LOG_PROB_IDS, &ids);
        out.vector(names::PROMPT_TOP_LOG_PROBS, &values);
    }
}

fn concatenated<T: Copy>(
    prompts: &[PromptLogProbs],
    part: impl Fn(&PromptLogProbs) -> &Vec<T>,
) -> Vec<T> {
    prompts
        .iter()
        .flat_map(|prompt| part(prompt).iter().copied())
        .collect()
}

fn decode_prompts(tensors: &Tensors<'_>) -> Result<Vec<PromptLogProbs>, StepError> {
    let Some(rows) = tensors.values::<u32>(names::PROMPT_LOG_PROB_ROWS)? else {
        return Ok(Vec::new());
    };
    let offsets: Vec<u32> = require(tensors, names::PROMPT_LOG_PROB_OFFSETS)?;
    let values: Vec<f32> = require(tensors, names::PROMPT_LOG_PROBS)?;
    validate::length(
        names::PROMPT_LOG_PROB_OFFSETS,
        rows.len() as u64 + 1,
        offsets.len(),
    )?;
    validate::offsets(names::PROMPT_LOG_PROB_OFFSETS, &offsets, values.len())?;
    let widths = tensors
        .values::<u32>(names::PROMPT_TOP_LOG_PROB_WIDTHS)?
        .unwrap_or_else(|| vec![0; rows.len()]);
    validate::length(
        names::PROMPT_TOP_LOG_PROB_WIDTHS,
        rows.len() as u64,
        widths.len(),
    )?;
    let ids: Vec<i32> = optional(tensors, names::PROMPT_TOP_LOG_PROB_IDS)?;
    let tops: Vec<f32> = optional(tensors, names::PROMPT_TOP_LOG_PROBS)?;
    let total = offsets
        .windows(2)
        .zip(&widths)
        .map(|(pair, width)| match pair {
            [start, end] => u64::from(end - start).saturating_mul(u64::from(*width)),
            _ => 0,
        })
        .fold(0, u64::saturating_add);
    validate::length(names::PROMPT_TOP_LOG_PROB_IDS, total, ids.len())?;
    validate::length(names::PROMPT_TOP_LOG_PROBS, total, tops.len())?;

    // All lengths agree, so the takes below come out even.
    let (mut values, mut ids, mut tops) = (values.into_iter(), ids.into_iter(), tops.into_iter());
    Ok(rows
        .into_iter()
        .zip(offsets.windows(2))
        .zip(widths)
        .map(|((row, pair), width)| {
            let positions = match pair {
                [start, end] => (end - start) as usize,
                _ => 0,
            };
            let alternatives = positions.saturating_mul(width as usize);
            PromptLogProbs {
                row,
                values: values.by_ref().take(positions).collect(),
                width,
                top_ids: ids.by_ref().take(alternatives).collect(),
                top_values: tops.by_ref().take(alternatives).collect(),
            }
        })
        .collect())
}
