//! Writes a plan down as the core model's tensors. Owns names, types and shapes; decides nothing.
//!
//! Source of names and shapes: the `tensorrt_llm` model of Triton's TensorRT-LLM backend; the prefix
//! `inflight_` marks ours.

use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::names;
use inflight_kserve::tensor::RequestBuilder;

use super::plan::Plan;

/// Request parameter that carries W3C trace context; no model reads it.
pub const TRACE_PARENT: &str = "traceparent";

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    pub request_id: &'a str,
    pub trace_parent: Option<&'a str>,
}

/// The request of one prompt under `handle`.
pub fn infer_request(
    plan: &Plan,
    core_model: &str,
    origin: Origin<'_>,
    tokens: &[i32],
    handle: u64,
) -> ModelInferRequest {
    let capacity = size_of_val(tokens) + 12 * plan.stop_ids.len() + 8 * plan.logit_bias.len() + 128;
    let mut request = RequestBuilder::new(core_model, origin.request_id, capacity);
    let length = i32::try_from(tokens.len()).unwrap_or(i32::MAX);
    request
        .handle(handle)
        .vector("input_ids", tokens)
        .scalar("input_lengths", length)
        .scalar(
            "request_output_len",
            i32::try_from(plan.max_tokens).unwrap_or(i32::MAX),
        )
        .scalar("streaming", plan.streaming)
        .scalar("exclude_input_in_output", true)
        .scalar("temperature", plan.sampling.temperature)
        .scalar("runtime_top_k", plan.sampling.top_k)
        .scalar("runtime_top_p", plan.sampling.top_p)
        .scalar("seed", plan.sampling.seed);
    if plan.sequences > 1 {
        request.scalar(
            "num_return_sequences",
            i32::try_from(plan.sequences).unwrap_or(i32::MAX),
        );
    }
    if let Some(id) = plan.end_id {
        request.scalar("end_id", id);
    }
    if let Some(id) = plan.pad_id {
        request.scalar("pad_id", id);
    }
    if !plan.stop_ids.is_empty() {
        let shape = [1, 2, plan.stop_ids.len() as i64];
        request.push("stop_words_list", &shape, &stop_word_rows(&plan.stop_ids));
    }
    let optional = [
        (names::MIN_P, plan.sampling.min_p),
        ("repetition_penalty", plan.sampling.repetition_penalty),
        ("presence_penalty", plan.sampling.presence_penalty),
        ("frequency_penalty", plan.sampling.frequency_penalty),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            request.scalar(name, value);
        }
    }
    if let Some(count) = plan.sampling.min_tokens {
        request.scalar("min_tokens", count);
    }
    if !plan.logit_bias.is_empty() {
        let (ids, values): (Vec<i32>, Vec<f32>) = plan.logit_bias.iter().copied().unzip();
        request
            .vector(names::LOGIT_BIAS_IDS, &ids)
            .vector(names::LOGIT_BIAS_VALUES, &values);
    }
    request
        .output(names::OUTPUT_IDS)
        .output(names::FINISH_REASON);
    if let Some(alternatives) = plan.log_probs {
        request
            .scalar("return_log_probs", true)
            .output(names::OUTPUT_LOG_PROBS);
        if alternatives > 0 {
            request
                .scalar(names::NUM_TOP_LOG_PROBS, alternatives as i32)
                .output(names::TOP_LOG_PROB_IDS)
                .output(names::TOP_LOG_PROBS);
        }
    }
    if let Some(alternatives) = plan.prompt_log_probs {
        request
            .scalar(names::NUM_PROMPT_LOG_PROBS, alternatives as i32)
            .output(names::PROMPT_LOG_PROBS);
        if alternatives > 0 {
            request
                .output(names::PROMPT_TOP_LOG_PROB_IDS)
                .output(names::PROMPT_TOP_LOG_PROBS);
        }
    }
    if let Some(trace_parent) = origin.trace_parent {
        request.parameter(
            TRACE_PARENT,
            ParameterChoice::StringParam(trace_parent.to_owned()),
        );
    }
    if plan.cached_tokens {
        request.output(names::CACHED_TOKENS);
    }
    request.build()
}

/// Two rows: the words end to end, then where each ends; every word here is one token.
pub fn stop_word_rows(ids: &[i32]) -> Vec<i32> {
    let ends = 1..=i32::try_from(ids.len()).unwrap_or(i32::MAX);
    ids.iter().copied().chain(ends).collect()
}
