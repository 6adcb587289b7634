//! A prompt's request as tensors of the core model. Pure: owns names, types and shapes; decides nothing.
//!
//! Source of names and shapes: the `tensorrt_llm` model of Triton's TensorRT-LLM backend; the prefix
//! `inflight_` marks ours.

use inflight_kserve::encoded::{EncodedRequest, RequestWriter};
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::names;
use inflight_kserve::step;
use inflight_models::sampling_params::Extras;

use crate::handles::Handle;
use crate::phases::Phases;
use crate::prompt_request::{PromptRequest, only_tokens, stop_words_list, words_list};

/// The request of one prompt under `handle`.
pub fn infer_request(
    core_model: &str,
    prompt: &PromptRequest<'_>,
    handle: Handle,
) -> EncodedRequest {
    let PromptRequest { params, tokens, .. } = *prompt;
    let capacity =
        size_of_val(tokens) + 12 * params.stop_ids.len() + 8 * params.logit_bias.len() + 128;
    let mut request = RequestWriter::new(core_model, prompt.request_id, capacity);
    let length = i32::try_from(tokens.len()).unwrap_or(i32::MAX);
    request
        .handle(step::Handle(handle.number()))
        .vector("input_ids", tokens)
        .scalar("input_lengths", length)
        .scalar(
            "request_output_len",
            i32::try_from(params.max_tokens).unwrap_or(i32::MAX),
        )
        .scalar("streaming", params.streaming)
        .scalar("exclude_input_in_output", true)
        .scalar("temperature", params.temperature)
        .scalar("runtime_top_k", params.top_k)
        .scalar("runtime_top_p", params.top_p)
        .scalar("seed", params.seed);
    if params.n > 1 {
        request.scalar(
            "num_return_sequences",
            i32::try_from(params.n).unwrap_or(i32::MAX),
        );
    }
    if let Some(id) = params.end_id {
        request.scalar("end_id", id);
    }
    if let Some(id) = params.pad_id {
        request.scalar("pad_id", id);
    }
    if !params.stop_ids.is_empty() {
        let shape = [1, 2, params.stop_ids.len() as i64];
        request.push(
            "stop_words_list",
            &shape,
            &stop_words_list(&params.stop_ids),
        );
    }
    let optional = [
        (names::MIN_P, params.min_p),
        ("repetition_penalty", params.repetition_penalty),
        ("presence_penalty", params.presence_penalty),
        ("frequency_penalty", params.frequency_penalty),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            request.scalar(name, value);
        }
    }
    if let Some(count) = params.min_tokens {
        request.scalar("min_tokens", count);
    }
    if !params.logit_bias.is_empty() {
        let (ids, values): (Vec<i32>, Vec<f32>) = params.logit_bias.iter().copied().unzip();
        request
            .vector(names::LOGIT_BIAS_IDS, &ids)
            .vector(names::LOGIT_BIAS_VALUES, &values);
    }
    request
        .output(names::OUTPUT_IDS)
        .output(names::FINISH_REASON);
    if let Some(alternatives) = params.log_probs {
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
    if let Some(alternatives) = params.prompt_log_probs {
        request
            .scalar(names::NUM_PROMPT_LOG_PROBS, alternatives as i32)
            .output(names::PROMPT_LOG_PROBS);
        if alternatives > 0 {
            request
                .output(names::PROMPT_TOP_LOG_PROB_IDS)
                .output(names::PROMPT_TOP_LOG_PROBS);
        }
    }
    for (name, value) in prompt.trace_parameters() {
        request.parameter(name, value);
    }
    if params.may_wait {
        request.parameter(names::MAY_WAIT, ParameterChoice::BoolParam(true));
    }
    if let Some(timeout) = prompt.timeout {
        // At least 1: 0 would be "no limit".
        let microseconds = i64::try_from(timeout.as_micros()).unwrap_or(i64::MAX);
        request.parameter(
            names::TIMEOUT,
            ParameterChoice::Int64Param(microseconds.max(1)),
        );
    }
    if params.cached_tokens {
        request.output(names::CACHED_TOKENS);
    }
    if let Some(extras) = &params.extras {
        write_extras(&mut request, extras);
    }
    write_phases(&mut request, prompt.phases);
    if !prompt.generated.is_empty() {
        write_generated(&mut request, prompt.generated);
    }
    request.build()
}

fn write_phases(request: &mut RequestWriter, phases: Phases<'_>) {
    let kind = match phases {
        Phases::Both => return,
        Phases::Context => names::CONTEXT_ONLY,
        Phases::Generation(params) => {
            let shape = [1, i64::try_from(params.len()).unwrap_or(i64::MAX)];
            request.push::<u8>(names::CONTEXT_PHASE_PARAMS, &shape, params);
            names::GENERATION_ONLY
        }
    };
    request.parameter(
        names::REQUEST_TYPE,
        ParameterChoice::StringParam(kind.to_owned()),
    );
}

fn write_generated(request: &mut RequestWriter, generated: &[Option<&[i32]>]) {
    let length = |tokens: &Option<&[i32]>| {
        tokens.map_or(-1, |tokens| i32::try_from(tokens.len()).unwrap_or(i32::MAX))
    };
    let lengths: Vec<i32> = generated.iter().map(length).collect();
    let ids: Vec<i32> = generated
        .iter()
        .flatten()
        .flat_map(|tokens| tokens.iter().copied())
        .collect();
    request.vector(names::GENERATED_LENGTHS, &lengths);
    if !ids.is_empty() {
        request.vector(names::GENERATED_IDS, &ids);
    }
}

fn write_extras(request: &mut RequestWriter, extras: &Extras) {
    if let Some(guide) = &extras.guide {
        request
            .push_bytes("guided_decoding_guide_type", &[1, 1], [guide.guide_type])
            .push_bytes("guided_decoding_guide", &[1, 1], [&*guide.guide]);
    }
    if let Some(beams) = &extras.beams {
        request
            .scalar("beam_width", beams.width)
            .scalar("len_penalty", beams.length_penalty)
            .scalar("early_stopping", beams.early_stopping);
    }
    if !extras.bad_words.is_empty() {
        let (width, list) = words_list(&extras.bad_words);
        request.push("bad_words_list", &[1, 2, width], &list);
    }
    if !extras.allowed_ids.is_empty() {
        let bias = only_tokens(&extras.allowed_ids, extras.vocabulary);
        request.vector("embedding_bias", &bias);
    }
    if let Some(thinking) = &extras.thinking {
        request
            .vector(names::THINKING_BUDGET, &[thinking.tokens])
            .vector(names::THINKING_END_IDS, &thinking.end);
        if !thinking.start.is_empty() {
            request.vector(names::THINKING_START_IDS, &thinking.start);
        }
    }
    if !extras.log_prob_ids.is_empty() {
        request.vector(names::LOG_PROB_IDS, &extras.log_prob_ids);
    }
    if let Some(size) = extras.no_repeat_ngram_size {
        request.scalar("no_repeat_ngram_size", size);
    }
    if let Some(salt) = &extras.cache_salt {
        request.push_bytes(names::CACHE_SALT, &[1, 1], [salt]);
    }
    if let Some(task) = extras.lora_task_id {
        request.scalar("lora_task_id", task);
    }
    let images = &extras.images.0;
    if !images.is_empty() {
        request.push_bytes(names::IMAGES, &[1, images.len() as i64], images);
    }
    if let Some(level) = extras.priority {
        let level = ParameterChoice::Int64Param(i64::from(level));
        request.parameter(names::PRIORITY, level);
    }
}
