//! Turns what a request asks for into sampling parameters for a model: fills in defaults, checks limits and
//! capabilities. Owns those rules; knows neither JSON nor tensors.
//!
//! Absent sampling fields take the model's generation config, else OpenAI's default. Whatever the sampler
//! always reads is set here, because TensorRT-LLM's own default is greedy with a fixed seed.

use inflight_models::capability::{Capability, has, lacks};
use inflight_models::sampling_params::SamplingParams;
use inflight_models::served::ServedModel;
use inflight_openai::{ApiError, BeamSearch, Extensions, Sampling};
use inflight_text::GenerationConfig;

use super::extras;
use super::requested::Requested;
use crate::error;

/// The parameters for a prompt of `prompt_tokens` tokens, if known. `fresh_seed` is used when the request
/// has no seed.
///
/// # Errors
/// 400 with the field's name: the context is too short, an id is outside the vocabulary, or the
/// worker's executor cannot do what the field asks.
pub fn resolve(
    requested: &Requested,
    model: &ServedModel,
    prompt_tokens: Option<usize>,
    fresh_seed: u64,
) -> Result<SamplingParams, ApiError> {
    check_capabilities(requested, model)?;
    check_ids(requested, model.vocabulary())?;
    let extras = match (&requested.extensions, requested.lora_task_id) {
        (None, None) => None,
        (Some(extensions), _) => Some(extras::resolve(requested, extensions, model)?),
        (None, Some(_)) => Some(extras::resolve(requested, &Extensions::default(), model)?),
    };
    let searches = requested
        .extensions
        .as_ref()
        .and_then(|extensions| extensions.beams);
    let scored = requested
        .extensions
        .as_ref()
        .and_then(|extensions| extensions.prompt_logprobs);
    let silent = GenerationConfig::default();
    let defaults = model
        .text
        .as_ref()
        .map_or(&silent, |text| text.generation());
    let ends = end_tokens(requested, defaults);
    let sampling = &requested.sampling;
    // A default that the model lacks is left out: the client never asked for it.
    let default_if =
        |capability: Capability, value: Option<f32>| value.filter(|_| has(model, capability));
    let draw = Draw::of(sampling, defaults, searches);
    let min_p = sampling
        .min_p
        .or_else(|| default_if(Capability::MinP, defaults.min_p));
    let repetition_penalty = sampling
        .repetition_penalty
        .or_else(|| default_if(Capability::RepetitionPenalty, defaults.repetition_penalty));
    Ok(SamplingParams {
        n: requested.n,
        max_tokens: max_tokens(requested, model, prompt_tokens)?,
        // A stop string ends an answer as soon as it is seen.
        streaming: match model.triton() {
            None => (requested.stream || requested.has_stop_strings) && !draw.searches,
            Some(triton) => triton.streams(
                requested.stream,
                requested.has_stop_strings,
                model.text.is_some(),
            ),
        },
        may_wait: false,
        // TensorRT-LLM has no temperature 0; greedy is top-k 1, whatever the rest.
        temperature: draw.temperature,
        top_k: draw.top_k,
        top_p: draw.top_p,
        min_p: min_p.filter(|value| draw.top_k != 1 && !draw.searches && *value > 0.0),
        // Any 64 bits will do; a negative seed is as good as another.
        seed: sampling.seed.map_or(fresh_seed, |seed| seed as u64),
        repetition_penalty: repetition_penalty.filter(|value| *value != 1.0),
        presence_penalty: sampling.presence_penalty.filter(|value| *value != 0.0),
        frequency_penalty: sampling.frequency_penalty.filter(|value| *value != 0.0),
        min_tokens: sampling
            .min_tokens
            .filter(|count| *count > 0)
            .map(|count| count as i32),
        end_id: ends.end_id,
        pad_id: ends.pad_id,
        stop_ids: ends.stop_ids,
        logit_bias: sampling
            .logit_bias
            .iter()
            .map(|(id, bias)| (*id as i32, *bias))
            .collect(),
        log_probs: requested.log_probs,
        prompt_log_probs: requested.prompt_log_probs.max(scored),
        cached_tokens: requested.reports_usage,
        extras,
    })
}

/// How a token is drawn.
struct Draw {
    temperature: f32,
    top_k: i32,
    top_p: f32,
    /// Several beams: tokens are ranked, not drawn.
    searches: bool,
}

impl Draw {
    const GREEDY: Self = Self {
        temperature: 1.0,
        top_k: 1,
        top_p: 1.0,
        searches: false,
    };

    fn of(sampling: &Sampling, defaults: &GenerationConfig, search: Option<BeamSearch>) -> Self {
        match search {
            None => {}
            Some(search) if search.width <= 1 => return Self::GREEDY,
            // The model's defaults are for drawing. A temperature that was asked for scales the scores.
            Some(_) => {
                return Self {
                    temperature: sampling
                        .temperature
                        .filter(|value| *value > 0.0)
                        .unwrap_or(1.0),
                    top_k: 0,
                    top_p: 1.0,
                    searches: true,
                };
            }
        }
        // A model that says `do_sample: false` is greedy until a temperature is requested.
        let model_is_greedy = sampling.temperature.is_none() && defaults.do_sample == Some(false);
        let temperature = sampling.temperature.or(defaults.temperature);
        let temperature = temperature.unwrap_or(1.0);
        let top_p = sampling.top_p.or(defaults.top_p).unwrap_or(1.0);
        if model_is_greedy || temperature <= 0.0 || top_p <= 0.0 {
            return Self::GREEDY;
        }
        let top_k = sampling.top_k.map(|k| i32::try_from(k).unwrap_or(0));
        Self {
            temperature,
            top_k: top_k.or(defaults.top_k).unwrap_or(0).max(0),
            top_p,
            searches: false,
        }
    }
}

struct EndTokens {
    end_id: Option<i32>,
    pad_id: Option<i32>,
    stop_ids: Vec<i32>,
}

/// The model's first end token is the end token; its others and the requested ones are stop tokens.
fn end_tokens(requested: &Requested, defaults: &GenerationConfig) -> EndTokens {
    let sampling = &requested.sampling;
    let mut stop_ids: Vec<i32> = Vec::new();
    let mut add = |id: u32| {
        if let Ok(id) = i32::try_from(id)
            && !stop_ids.contains(&id)
        {
            stop_ids.push(id);
        }
    };
    let mut end_id = None;
    if !sampling.ignore_eos {
        let mut ends = defaults.eos_token_ids.iter().copied();
        end_id = ends.next();
        ends.for_each(&mut add);
    }
    let requested_ids = sampling.stop_token_ids.iter().copied();
    requested_ids
        .filter(|id| Some(*id) != end_id)
        .for_each(&mut add);
    let end_id = end_id.and_then(|id| i32::try_from(id).ok());
    let pad_id = defaults.pad_token_id.and_then(|id| i32::try_from(id).ok());
    EndTokens {
        end_id,
        pad_id: pad_id.or(end_id),
        stop_ids,
    }
}

fn max_tokens(
    requested: &Requested,
    model: &ServedModel,
    prompt_tokens: Option<usize>,
) -> Result<u32, ApiError> {
    if prompt_tokens == Some(0) {
        return Err(ApiError::invalid_request(
            requested.prompt_field,
            "The prompt must have at least one token.",
        ));
    }
    let (Some(context), Some(prompt_tokens)) = (model.context(), prompt_tokens) else {
        // The server checks what the gateway cannot know.
        let wanted = requested.max_tokens.or(requested.default_max_tokens);
        return wanted.map(|wanted| wanted.max(1)).ok_or_else(|| {
            ApiError::invalid_request(
                "max_tokens",
                "`max_tokens` is required for this model, because the gateway was started without its \
                 `--max-seq-len`.",
            )
        });
    };
    let input = model.max_input().unwrap_or(context).min(context);
    let room = context.saturating_sub(prompt_tokens);
    let wanted = match requested.max_tokens {
        Some(wanted) if requested.fits_context => room.min(wanted.max(1) as usize),
        // Executors generate at least one token; the gateway drops it.
        Some(wanted) => wanted.max(1) as usize,
        None => requested
            .default_max_tokens
            .map_or(room, |default| room.min(default as usize)),
    };
    if prompt_tokens > input || wanted > room || room == 0 {
        return Err(error::context_length_exceeded(
            requested.prompt_field,
            context,
            prompt_tokens,
            requested.max_tokens,
        ));
    }
    Ok(wanted as u32)
}

fn check_capabilities(requested: &Requested, model: &ServedModel) -> Result<(), ApiError> {
    let neutral = |value: Option<f32>, neutral: f32| value.is_none_or(|value| value == neutral);
    let sampling = &requested.sampling;
    let searches = requested
        .extensions
        .as_ref()
        .is_some_and(|extensions| extensions.beams.is_some());
    let greedy = !searches && sampling.temperature.is_some_and(|value| value <= 0.0);
    let top_k = sampling.top_k.is_some_and(|count| count > 0);
    let min_p = sampling.min_p.is_some_and(|value| value > 0.0);
    let repetition = !neutral(sampling.repetition_penalty, 1.0);
    let presence = !neutral(sampling.presence_penalty, 0.0);
    let frequency = !neutral(sampling.frequency_penalty, 0.0);
    let min_tokens = sampling.min_tokens.is_some_and(|count| count > 0);
    let top_log_probs = requested.log_probs.is_some_and(|count| count > 0);
    let asked: [(bool, &'static str, Capability); 19] = [
        (requested.n > 1, "n", Capability::Sequences),
        (
            sampling.temperature.is_some(),
            "temperature",
            Capability::Temperature,
        ),
        (sampling.top_p.is_some(), "top_p", Capability::TopP),
        // Greedy is top-k 1; without it, the request would be sampled.
        (greedy, "temperature", Capability::TopK),
        (top_k, "top_k", Capability::TopK),
        (min_p, "min_p", Capability::MinP),
        (sampling.seed.is_some(), "seed", Capability::Seed),
        (
            repetition,
            "repetition_penalty",
            Capability::RepetitionPenalty,
        ),
        (presence, "presence_penalty", Capability::PresencePenalty),
        (frequency, "frequency_penalty", Capability::FrequencyPenalty),
        (min_tokens, "min_tokens", Capability::MinTokens),
        (
            !sampling.logit_bias.is_empty(),
            "logit_bias",
            Capability::LogitBias,
        ),
        (
            !sampling.stop_token_ids.is_empty(),
            "stop_token_ids",
            Capability::StopTokenIds,
        ),
        (sampling.ignore_eos, "ignore_eos", Capability::IgnoreEos),
        (
            requested.shows_special_tokens,
            "skip_special_tokens",
            Capability::ShowSpecialTokens,
        ),
        (
            requested.chooses_special_tokens,
            "add_special_tokens",
            Capability::AddSpecialTokens,
        ),
        (
            requested.log_probs.is_some(),
            "logprobs",
            Capability::LogProbs,
        ),
        (
            top_log_probs,
            requested.top_log_probs_field,
            Capability::TopLogProbs,
        ),
        (
            requested.prompt_log_probs.is_some(),
            "echo",
            Capability::PromptLogProbs,
        ),
    ];
    let usage = (
        requested.stream && requested.reports_usage,
        "stream_options",
        Capability::Usage,
    );
    for (wanted, field, capability) in asked.into_iter().chain([usage]) {
        if wanted && let Some(reason) = lacks(model, capability) {
            let message = format!("`{field}` {reason}; omit the field");
            return Err(ApiError::unsupported(field, message));
        }
    }
    Ok(())
}

fn check_ids(requested: &Requested, vocabulary: Option<u32>) -> Result<(), ApiError> {
    let Some(vocabulary) = vocabulary else {
        return Ok(());
    };
    let biased = requested
        .sampling
        .logit_bias
        .iter()
        .map(|(id, _)| ("logit_bias", *id));
    let stops = requested
        .sampling
        .stop_token_ids
        .iter()
        .map(|id| ("stop_token_ids", *id));
    let extensions = requested.extensions.iter();
    let allowed = extensions
        .clone()
        .flat_map(|extensions| &extensions.allowed_token_ids)
        .map(|id| ("allowed_token_ids", *id));
    let named = extensions
        .flat_map(|extensions| &extensions.logprob_token_ids)
        .map(|id| ("logprob_token_ids", *id));
    for (field, id) in biased.chain(stops).chain(allowed).chain(named) {
        if id >= vocabulary {
            return Err(error::outside_vocabulary(field, i64::from(id), vocabulary));
        }
    }
    Ok(())
}
