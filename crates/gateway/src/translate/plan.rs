//! What a request asks, settled against the model: defaults filled in, limits and capabilities
//! checked. Owns those rules; knows neither JSON nor tensors.
//!
//! Absent sampling fields take the model's generation config, else OpenAI's default, and all that the
//! sampler always reads is settled here: TensorRT-LLM's own default is greedy with a fixed seed.

use inflight_openai::ApiError;
use inflight_text::GenerationConfig;

use super::ask::Ask;
use crate::error;
use crate::upstream::served::{Ability, ServedModel};

/// Everything about one prompt's generation but its tokens and its handle.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub sequences: u32,
    pub max_tokens: u32,
    /// Whether rows come as tokens are made; otherwise one row per sequence.
    pub streaming: bool,
    pub sampling: Sampling,
    /// The end token; `None`: generate on.
    pub end_id: Option<i32>,
    pub pad_id: Option<i32>,
    /// Single tokens that end a sequence besides the end token, and are no part of its text.
    pub stop_ids: Vec<i32>,
    pub logit_bias: Vec<(i32, f32)>,
    /// `Some(k)`: log probabilities of generated tokens, with k alternatives.
    pub log_probs: Option<u32>,
    /// `Some(k)`: log probabilities of the prompt, with k alternatives.
    pub prompt_log_probs: Option<u32>,
    /// Whether the usage will be told.
    pub cached_tokens: bool,
}

/// The sampler's settings; `None` is neutral and is not sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    pub temperature: f32,
    /// 0: no limit. 1: greedy.
    pub top_k: i32,
    pub top_p: f32,
    pub min_p: Option<f32>,
    pub seed: u64,
    pub repetition_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub min_tokens: Option<i32>,
}

/// Settles `ask` for a prompt of `prompt_tokens` tokens, where they are known; `fresh_seed` is used
/// where none is asked.
///
/// # Errors
/// 400 with the field's name: the context is too short, an id is outside the vocabulary, or the
/// worker's executor cannot do what the field asks.
pub fn plan(
    ask: &Ask,
    model: &ServedModel,
    prompt_tokens: Option<usize>,
    fresh_seed: u64,
) -> Result<Plan, ApiError> {
    check_abilities(ask, model)?;
    check_ids(ask, model.vocabulary())?;
    let silent = GenerationConfig::default();
    let defaults = model
        .text
        .as_ref()
        .map_or(&silent, |text| text.generation());
    let mut stop_ids: Vec<i32> = Vec::new();
    let mut add = |id: u32| {
        if let Ok(id) = i32::try_from(id)
            && !stop_ids.contains(&id)
        {
            stop_ids.push(id);
        }
    };
    let mut end_id = None;
    if !ask.sampling.ignore_eos {
        let mut ends = defaults.eos_token_ids.iter().copied();
        end_id = ends.next();
        ends.for_each(&mut add);
    }
    ask.sampling
        .stop_token_ids
        .iter()
        .copied()
        .filter(|id| Some(*id) != end_id)
        .for_each(&mut add);
    let end_id = end_id.and_then(|id| i32::try_from(id).ok());
    let pad_id = defaults
        .pad_token_id
        .and_then(|id| i32::try_from(id).ok())
        .or(end_id);
    Ok(Plan {
        sequences: ask.n,
        max_tokens: max_tokens(ask, model, prompt_tokens)?,
        // A stop string ends an answer as soon as it is seen.
        streaming: match &model.triton {
            None => ask.stream || ask.has_stop_strings,
            Some(triton) => triton.streams(ask.stream, ask.has_stop_strings, model.text.is_some()),
        },
        sampling: sampling(ask, model, defaults, fresh_seed),
        end_id,
        pad_id,
        stop_ids,
        logit_bias: ask
            .sampling
            .logit_bias
            .iter()
            .map(|(id, bias)| (*id as i32, *bias))
            .collect(),
        log_probs: ask.log_probs,
        prompt_log_probs: ask.prompt_log_probs,
        cached_tokens: ask.tells_usage,
    })
}

fn sampling(
    ask: &Ask,
    model: &ServedModel,
    defaults: &GenerationConfig,
    fresh_seed: u64,
) -> Sampling {
    // What the client never asked for cannot be refused: a default that the model lacks is left out.
    let default_if =
        |able: Ability, value: Option<f32>| value.filter(|_| model.lacks(able).is_none());
    // A model that says `do_sample: false` is greedy until a temperature is asked for.
    let model_is_greedy = ask.sampling.temperature.is_none() && defaults.do_sample == Some(false);
    let temperature = ask
        .sampling
        .temperature
        .or(defaults.temperature)
        .unwrap_or(1.0);
    let top_p = ask.sampling.top_p.or(defaults.top_p).unwrap_or(1.0);
    let greedy = model_is_greedy || temperature <= 0.0 || top_p <= 0.0;
    let asked_top_k = ask.sampling.top_k.map(|k| i32::try_from(k).unwrap_or(0));
    let top_k = if greedy {
        1
    } else {
        asked_top_k.or(defaults.top_k).unwrap_or(0).max(0)
    };
    let min_p = if greedy {
        None
    } else {
        ask.sampling
            .min_p
            .or(default_if(Ability::MinP, defaults.min_p))
    };
    let repetition_penalty = ask.sampling.repetition_penalty.or(default_if(
        Ability::RepetitionPenalty,
        defaults.repetition_penalty,
    ));
    Sampling {
        // TensorRT-LLM has no temperature 0; greedy is top-k 1, whatever the rest.
        temperature: if greedy { 1.0 } else { temperature },
        top_k,
        top_p: if greedy { 1.0 } else { top_p },
        min_p: min_p.filter(|value| *value > 0.0),
        // Any 64 bits will do; a negative seed is as good as another.
        seed: ask.sampling.seed.map_or(fresh_seed, |seed| seed as u64),
        repetition_penalty: repetition_penalty.filter(|value| *value != 1.0),
        presence_penalty: ask.sampling.presence_penalty.filter(|value| *value != 0.0),
        frequency_penalty: ask.sampling.frequency_penalty.filter(|value| *value != 0.0),
        min_tokens: ask
            .sampling
            .min_tokens
            .filter(|count| *count > 0)
            .map(|count| count as i32),
    }
}

fn max_tokens(
    ask: &Ask,
    model: &ServedModel,
    prompt_tokens: Option<usize>,
) -> Result<u32, ApiError> {
    if prompt_tokens == Some(0) {
        return Err(ApiError::invalid_request(
            ask.prompt_field,
            "The prompt has no tokens. Send at least one.",
        ));
    }
    let (Some(context), Some(prompt_tokens)) = (model.context(), prompt_tokens) else {
        // The server checks what the gateway cannot know.
        return ask.max_tokens.or(ask.default_max_tokens).ok_or_else(|| {
            ApiError::invalid_request(
                "max_tokens",
                "Say how many tokens to generate: the gateway was not told how long this model's \
                 context is (`--max-seq-len`).",
            )
        });
    };
    let input = model.max_input().unwrap_or(context).min(context);
    let room = context.saturating_sub(prompt_tokens);
    let wanted = match ask.max_tokens {
        Some(wanted) => wanted as usize,
        None => ask
            .default_max_tokens
            .map_or(room, |default| room.min(default as usize)),
    };
    if prompt_tokens > input || wanted > room || room == 0 {
        return Err(error::context_length_exceeded(
            ask.prompt_field,
            context,
            prompt_tokens,
            ask.max_tokens,
        ));
    }
    Ok(wanted as u32)
}

fn check_abilities(ask: &Ask, model: &ServedModel) -> Result<(), ApiError> {
    let neutral = |value: Option<f32>, neutral: f32| value.is_none_or(|value| value == neutral);
    let sampling = &ask.sampling;
    let greedy = sampling.temperature.is_some_and(|value| value <= 0.0);
    let top_k = sampling.top_k.is_some_and(|count| count > 0);
    let min_p = sampling.min_p.is_some_and(|value| value > 0.0);
    let repetition = !neutral(sampling.repetition_penalty, 1.0);
    let presence = !neutral(sampling.presence_penalty, 0.0);
    let frequency = !neutral(sampling.frequency_penalty, 0.0);
    let min_tokens = sampling.min_tokens.is_some_and(|count| count > 0);
    let top_log_probs = ask.log_probs.is_some_and(|count| count > 0);
    let asked: [(bool, &'static str, Ability); 18] = [
        (ask.n > 1, "n", Ability::Sequences),
        (
            sampling.temperature.is_some(),
            "temperature",
            Ability::Temperature,
        ),
        (sampling.top_p.is_some(), "top_p", Ability::TopP),
        // Greedy is top-k 1; without it, the request would be sampled.
        (greedy, "temperature", Ability::TopK),
        (top_k, "top_k", Ability::TopK),
        (min_p, "min_p", Ability::MinP),
        (sampling.seed.is_some(), "seed", Ability::Seed),
        (repetition, "repetition_penalty", Ability::RepetitionPenalty),
        (presence, "presence_penalty", Ability::PresencePenalty),
        (frequency, "frequency_penalty", Ability::FrequencyPenalty),
        (min_tokens, "min_tokens", Ability::MinTokens),
        (
            !sampling.logit_bias.is_empty(),
            "logit_bias",
            Ability::LogitBias,
        ),
        (
            !sampling.stop_token_ids.is_empty(),
            "stop_token_ids",
            Ability::StopTokenIds,
        ),
        (sampling.ignore_eos, "ignore_eos", Ability::IgnoreEos),
        (
            ask.shows_special_tokens,
            "skip_special_tokens",
            Ability::ShowSpecialTokens,
        ),
        (ask.log_probs.is_some(), "logprobs", Ability::LogProbs),
        (top_log_probs, ask.top_log_probs_field, Ability::TopLogProbs),
        (
            ask.prompt_log_probs.is_some(),
            "echo",
            Ability::PromptLogProbs,
        ),
    ];
    let usage = (
        ask.stream && ask.tells_usage,
        "stream_options",
        Ability::Usage,
    );
    for (wanted, field, ability) in asked.into_iter().chain([usage]) {
        if wanted && let Some(reason) = model.lacks(ability) {
            let message = format!("`{field}` {reason}; leave the field out");
            return Err(ApiError::unsupported(field, message));
        }
    }
    Ok(())
}

fn check_ids(ask: &Ask, vocabulary: Option<u32>) -> Result<(), ApiError> {
    let Some(vocabulary) = vocabulary else {
        return Ok(());
    };
    let biased = ask
        .sampling
        .logit_bias
        .iter()
        .map(|(id, _)| ("logit_bias", *id));
    let stops = ask
        .sampling
        .stop_token_ids
        .iter()
        .map(|id| ("stop_token_ids", *id));
    for (field, id) in biased.chain(stops) {
        if id >= vocabulary {
            return Err(error::outside_vocabulary(field, i64::from(id), vocabulary));
        }
    }
    Ok(())
}
