//! One row of a batch to one executor request, every value within the model's limits.

use inflight_kserve::names;

use crate::executor::{NamedTensor, Request, SamplingConfig};
use crate::model::{Field, Flags, Range};

use super::error::value;
use super::resumed::{self, Resumed};
use super::tensors::{Batch, Input};
use super::{Limits, RequestError, words::words};

/// Alternatives reported for each token at most: OpenAI asks for up to 20; more only fills messages.
const MAX_TOP_LOG_PROBS: u32 = 100;
/// Sequences of one prompt at most: OpenAI's limit on n.
const MAX_SEQUENCES: u32 = 128;
/// Token ids with a bias at most: OpenAI allows 300; every one is looked at in every step.
const MAX_LOGIT_BIAS: usize = 4096;

/// What a row holds besides the request itself.
#[derive(Default)]
struct Parts {
    prompt_length: Option<i32>,
    max_tokens: Option<i32>,
    bias_ids: Vec<i32>,
    bias_values: Vec<f32>,
    resumed: Resumed,
}

pub(super) fn row(
    batch: &Batch<'_>,
    row: usize,
    flags: &Flags,
    streaming: bool,
    limits: &Limits,
) -> Result<Request, RequestError> {
    let mut request = Request {
        streaming,
        sampling_config: SamplingConfig {
            beam_width: 1,
            num_return_sequences: 1,
            ..SamplingConfig::default()
        },
        ..Request::default()
    };
    request.output_config.return_log_probs = flags.return_log_probs;
    request.output_config.return_context_logits = flags.return_context_logits;
    request.output_config.return_generation_logits = flags.return_generation_logits;
    request.output_config.return_perf_metrics = flags.return_perf_metrics;

    let mut parts = Parts::default();
    let mut prompt = None;
    for input in &batch.inputs {
        if matches!(input.spec.role.field, Field::Prompt) {
            prompt = Some(input);
        } else if !input.is_skipped(row, limits)? {
            read(input, row, &mut request, &mut parts, limits)?;
        }
    }
    request.logit_bias = logit_bias(&parts, limits)?;
    let max_tokens = parts.max_tokens.ok_or(RequestError::Missing {
        tensor: "request_output_len",
    })?;
    request.max_tokens = u32::try_from(max_tokens)
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| value("request_output_len", max_tokens, "at least 1"))?;
    read_prompt(prompt, row, &parts, &mut request, limits)?;
    check_lengths(&request, limits)?;
    request.generated = parts.resumed.sequences(&request, limits)?;
    resumed::check_sums(&request)?;
    Ok(request)
}

fn read(
    input: &Input<'_>,
    row: usize,
    request: &mut Request,
    parts: &mut Parts,
    limits: &Limits,
) -> Result<(), RequestError> {
    let name = input.spec.name;
    let vocab_size = limits.info.vocab_size;
    let config = &mut request.sampling_config;
    match input.spec.role.field {
        // The prompt is read once its length is known; handle and flags hold for the batch.
        Field::Prompt | Field::Handle | Field::Flag(..) => {}
        Field::PromptLength => parts.prompt_length = Some(input.scalar(row)?),
        Field::MaxTokens => parts.max_tokens = Some(input.scalar(row)?),
        Field::BeamWidth => {
            config.beam_width = count(name, input.scalar(row)?, 1, limits.info.max_beam_width)?;
        }
        Field::NumReturnSequences => {
            config.num_return_sequences = count(name, input.scalar(row)?, 1, MAX_SEQUENCES)?;
        }
        Field::EndId => request.end_id = optional_token(name, input.scalar(row)?, vocab_size)?,
        Field::PadId => request.pad_id = optional_token(name, input.scalar(row)?, vocab_size)?,
        Field::StopWords => {
            request.stop_words = words(name, &input.values::<i32>(row)?, vocab_size)?;
        }
        Field::BadWords => {
            request.bad_words = words(name, &input.values::<i32>(row)?, vocab_size)?;
        }
        Field::EmbeddingBias => {
            let bias: Vec<f32> = input.values(row)?;
            if !bias.is_empty() && bias.len() != vocab_size as usize {
                let expected = vocab_size as usize;
                return Err(RequestError::Length {
                    tensor: name,
                    actual: bias.len(),
                    expected,
                });
            }
            // Minus infinity bans a token; not-a-number would spoil every one.
            if let Some(bad) = bias.iter().find(|bias| bias.is_nan()) {
                return Err(value(name, bad, "numbers"));
            }
            request.embedding_bias = bias;
        }
        Field::LogitBiasIds => parts.bias_ids = input.values(row)?,
        Field::LogitBiasValues => parts.bias_values = input.values(row)?,
        Field::Seed => config.seed = Some(input.scalar(row)?),
        Field::NumTopLogProbs => {
            request.output_config.num_top_log_probs =
                count(name, input.scalar(row)?, 0, MAX_TOP_LOG_PROBS)?;
        }
        Field::NumPromptLogProbs => {
            request.output_config.num_prompt_log_probs =
                Some(count(name, input.scalar(row)?, 0, MAX_TOP_LOG_PROBS)?);
        }
        Field::GeneratedIds => parts.resumed.ids = input.values(row)?,
        Field::GeneratedLengths => parts.resumed.lengths = input.values(row)?,
        Field::GeneratedSums => request.generated_sums = input.values(row)?,
        Field::EarlyStopping => {
            config.early_stopping = Some(i32::from(input.scalar::<bool>(row)?));
        }
        Field::TopP => {
            let top_p: f32 = input.scalar(row)?;
            if top_p.is_nan() || top_p > 1.0 {
                return Err(value(name, top_p, "at most 1"));
            }
            config.top_p = (top_p > 0.0).then_some(top_p);
        }
        Field::TokenId(_, set) => {
            let id: i32 = input.scalar(row)?;
            if id >= 0 {
                optional_token(name, id, vocab_size)?;
                set(config, id);
            }
        }
        Field::Float(_, set, range) => {
            let number: f32 = input.scalar(row)?;
            within(name, f64::from(number), range)?;
            set(config, number);
        }
        Field::Int(_, set, range) => {
            let number: i32 = input.scalar(row)?;
            within(name, f64::from(number), range)?;
            set(config, number);
        }
        Field::Passed => {
            let tensor = input.row(row);
            request.tensors.push(NamedTensor {
                name: name.to_owned(),
                datatype: tensor.datatype.name().to_owned(),
                shape: tensor.shape.to_vec(),
                data: tensor.data,
            });
        }
    }
    Ok(())
}

/// Takes the prompt's tokens without their padding. Its length is looked at before its ids are
/// unpacked, so that an absurd prompt costs nothing.
fn read_prompt(
    prompt: Option<&Input<'_>>,
    row: usize,
    parts: &Parts,
    request: &mut Request,
    limits: &Limits,
) -> Result<(), RequestError> {
    let length = parts.prompt_length.ok_or(RequestError::Missing {
        tensor: "input_lengths",
    })?;
    let encoder = request
        .tensors
        .iter()
        .any(|tensor| tensor.name == "encoder_input_features");
    let Some(prompt) = prompt else {
        if encoder {
            return Ok(());
        }
        return Err(RequestError::Missing {
            tensor: "input_ids",
        });
    };
    let held = prompt
        .shape()
        .first()
        .and_then(|held| usize::try_from(*held).ok())
        .unwrap_or(0);
    let tokens = usize::try_from(length)
        .ok()
        .filter(|length| *length <= held)
        .ok_or(RequestError::PromptLength {
            length: i64::from(length),
            held,
        })?;
    if tokens == 0 && !encoder {
        return Err(RequestError::EmptyPrompt);
    }
    let limit = limits.info.max_input_len.min(limits.info.max_seq_len);
    if tokens > limit as usize {
        return Err(RequestError::PromptTooLong { tokens, limit });
    }
    let mut ids = prompt.row(row);
    ids.data.truncate(tokens * size_of::<i32>());
    let mut ids: Vec<i32> = ids.values()?;
    // A prompt table's virtual tokens have ids from vocab_size on.
    let virtual_tokens = request
        .tensors
        .iter()
        .any(|tensor| tensor.name == names::PROMPT_TABLE);
    let last = if virtual_tokens {
        u32::MAX
    } else {
        limits.info.vocab_size
    };
    let beyond = |id: &i32| !u32::try_from(*id).is_ok_and(|id| id < last);
    if limits.wraps_token_ids
        && let Ok(size @ 1..) = i32::try_from(limits.info.vocab_size)
    {
        for id in ids.iter_mut().filter(|id| beyond(id)) {
            *id = id.rem_euclid(size);
        }
    }
    if let Some(bad) = ids.iter().find(|id| beyond(id)) {
        let expected = format!("a token id below `{}`", limits.info.vocab_size);
        return Err(value("input_ids", bad, &expected));
    }
    request.input_token_ids = ids;
    Ok(())
}

fn check_lengths(request: &Request, limits: &Limits) -> Result<(), RequestError> {
    let (info, prompt) = (&limits.info, request.input_token_ids.len());
    let total = prompt as u64 + u64::from(request.max_tokens);
    if total > u64::from(info.max_seq_len) {
        return Err(RequestError::TooManyTokens {
            prompt,
            max_tokens: request.max_tokens,
            limit: info.max_seq_len,
        });
    }
    let row = u64::from(info.vocab_size) * size_of::<f32>() as u64;
    // A streaming response has one step's logits; the others have all at once.
    let generated = if request.streaming {
        1
    } else {
        u64::from(request.max_tokens)
    };
    let beams = u64::from(request.sampling_config.beam_width);
    let config = &request.output_config;
    for (wanted, output, tokens) in [
        (
            config.return_context_logits,
            "context_logits",
            prompt as u64,
        ),
        (
            config.return_generation_logits,
            "generation_logits",
            generated * beams,
        ),
    ] {
        let bytes = tokens.saturating_mul(row);
        if wanted && bytes > limits.max_message_bytes as u64 {
            return Err(RequestError::OutputTooLarge {
                output,
                bytes,
                limit: limits.max_message_bytes,
            });
        }
    }
    Ok(())
}

fn logit_bias(parts: &Parts, limits: &Limits) -> Result<Vec<(i32, f32)>, RequestError> {
    use inflight_kserve::names::{LOGIT_BIAS_IDS, LOGIT_BIAS_VALUES};
    if parts.bias_ids.len() != parts.bias_values.len() {
        return Err(RequestError::Length {
            tensor: LOGIT_BIAS_VALUES,
            actual: parts.bias_values.len(),
            expected: parts.bias_ids.len(),
        });
    }
    if parts.bias_ids.len() > MAX_LOGIT_BIAS {
        let actual = parts.bias_ids.len();
        return Err(RequestError::Length {
            tensor: LOGIT_BIAS_IDS,
            actual,
            expected: MAX_LOGIT_BIAS,
        });
    }
    for id in &parts.bias_ids {
        if !u32::try_from(*id).is_ok_and(|id| id < limits.info.vocab_size) {
            let expected = format!("a token id below `{}`", limits.info.vocab_size);
            return Err(value(LOGIT_BIAS_IDS, id, &expected));
        }
    }
    if let Some(bad) = parts.bias_values.iter().find(|bias| bias.is_nan()) {
        return Err(value(LOGIT_BIAS_VALUES, bad, "numbers"));
    }
    Ok(parts
        .bias_ids
        .iter()
        .copied()
        .zip(parts.bias_values.iter().copied())
        .collect())
}

/// A token id, or none where it is negative, as Triton's clients write it.
fn optional_token(
    tensor: &'static str,
    id: i32,
    vocab_size: u32,
) -> Result<Option<i32>, RequestError> {
    match u32::try_from(id) {
        Err(_) => Ok(None),
        Ok(number) if number < vocab_size => Ok(Some(id)),
        Ok(_) => Err(value(
            tensor,
            id,
            &format!("a token id below `{vocab_size}`, or -1"),
        )),
    }
}

fn count(tensor: &'static str, number: i32, low: u32, high: u32) -> Result<u32, RequestError> {
    u32::try_from(number)
        .ok()
        .filter(|number| (low..=high).contains(number))
        .ok_or_else(|| value(tensor, number, &format!("`{low}` to `{high}`")))
}

fn within(tensor: &'static str, number: f64, range: Range) -> Result<(), RequestError> {
    if number.is_finite() && number >= range.low && number <= range.high {
        return Ok(());
    }
    let expected = match (range.low.is_finite(), range.high.is_finite()) {
        (true, true) => format!("`{}` to `{}`", range.low, range.high),
        (true, false) if range.low > 0.0 => "a number above 0".to_owned(),
        (true, false) => format!("a number from `{}` on", range.low),
        _ => "a finite number".to_owned(),
    };
    Err(value(tensor, number, &expected))
}
