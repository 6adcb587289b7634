//! Turns what few requests ask for into parameters for a model: guides, beams, words and tokens that may not
//! come, cache salts and priorities. Owns their rules; `resolve` has those of every request.

use inflight_models::capability::{Capability, lacks};
use inflight_models::sampling_params::{Beams, Extras, Guide};
use inflight_models::served::ServedModel;
use inflight_openai::{ApiError, BeamSearch, Extensions};
use inflight_text::Tokenizer;

use super::requested::Requested;

/// The level of a request without a priority, in the middle of a worker's 100: vLLM's 0.
const USUAL_PRIORITY: i64 = 50;

/// The parameters.
///
/// # Errors
/// 400 with the field's name: the model cannot do what the field asks, or not together with another.
pub(super) fn resolve(
    requested: &Requested,
    extensions: &Extensions,
    model: &ServedModel,
) -> Result<Box<Extras>, ApiError> {
    check_capabilities(extensions, model)?;
    let beams = extensions.beams.filter(|search| search.width > 1);
    if let Some(search) = beams {
        check_search(requested, search, model)?;
    }
    let guide = extensions.guide.as_ref().map(|guide| Guide {
        guide_type: guide.kind.name(),
        guide: guide.text.clone(),
    });
    let mut extras = Extras {
        guide,
        beams: beams.map(|search| Beams {
            width: i32::try_from(search.width).unwrap_or(i32::MAX),
            length_penalty: search.length_penalty,
            early_stopping: search.early_stopping,
        }),
        allowed_ids: extensions
            .allowed_token_ids
            .iter()
            .filter_map(|id| i32::try_from(*id).ok())
            .collect(),
        log_prob_ids: extensions
            .logprob_token_ids
            .iter()
            .filter_map(|id| i32::try_from(*id).ok())
            .collect(),
        vocabulary: model.vocabulary().unwrap_or(0),
        no_repeat_ngram_size: extensions.no_repeat_ngram_size.map(|size| size as i32),
        cache_salt: extensions.cache_salt.clone(),
        priority: (extensions.priority != 0)
            .then(|| u32::try_from(USUAL_PRIORITY + extensions.priority).unwrap_or(1)),
        lora_task_id: requested.lora_task_id,
        ..Extras::default()
    };
    if model.takes_text() {
        extras.bad_texts = extensions
            .bad_words
            .iter()
            .flat_map(|word| both_forms(word))
            .collect();
    } else if let Some(text) = &model.text {
        extras.bad_words = bad_words(text.tokenizer(), &extensions.bad_words)?;
    }
    Ok(Box::new(extras))
}

/// A word at the beginning of a text, and after another.
fn both_forms(word: &str) -> [String; 2] {
    let word = word.trim_start();
    [word.to_owned(), format!(" {word}")]
}

/// The tokens of both forms of each word, as in vLLM.
fn bad_words(tokenizer: &Tokenizer, words: &[String]) -> Result<Vec<Vec<i32>>, ApiError> {
    let mut all: Vec<Vec<i32>> = Vec::new();
    for form in words.iter().flat_map(|word| both_forms(word)) {
        let tokens = tokenizer
            .encode(&form, false)
            .map_err(|error| ApiError::invalid_request("bad_words", format!("{error}.")))?;
        let tokens: Vec<i32> = tokens.iter().map(|id| *id as i32).collect();
        if !tokens.is_empty() && !all.contains(&tokens) {
            all.push(tokens);
        }
    }
    Ok(all)
}

fn check_capabilities(extensions: &Extensions, model: &ServedModel) -> Result<(), ApiError> {
    let guide = extensions.guide.as_ref().map_or("", |guide| guide.param);
    let searches = extensions.beams.is_some_and(|search| search.width > 1);
    let asked = [
        (!guide.is_empty(), guide, Capability::Guide),
        (searches, "use_beam_search", Capability::Beams),
        (
            !extensions.bad_words.is_empty(),
            "bad_words",
            Capability::BadWords,
        ),
        (
            !extensions.allowed_token_ids.is_empty(),
            "allowed_token_ids",
            Capability::AllowedTokens,
        ),
        (
            !extensions.logprob_token_ids.is_empty(),
            "logprob_token_ids",
            Capability::LogProbIds,
        ),
        (
            extensions.thinking_token_budget.is_some(),
            "thinking_token_budget",
            Capability::ThinkingBudget,
        ),
        (
            extensions.no_repeat_ngram_size.is_some(),
            "no_repeat_ngram_size",
            Capability::NoRepeatNgram,
        ),
        (
            extensions.cache_salt.is_some(),
            "cache_salt",
            Capability::CacheSalt,
        ),
        (
            extensions.prompt_logprobs.is_some(),
            "prompt_logprobs",
            Capability::PromptLogProbs,
        ),
        (
            extensions.return_token_ids,
            "return_token_ids",
            Capability::TokenPrompt,
        ),
        (extensions.priority != 0, "priority", Capability::Priority),
        (
            extensions.include_stop_str_in_output,
            "include_stop_str_in_output",
            Capability::ShowStops,
        ),
        (
            extensions.truncate_prompt_tokens.is_some(),
            "truncate_prompt_tokens",
            Capability::Truncation,
        ),
    ];
    for (wanted, field, capability) in asked {
        if wanted && let Some(reason) = lacks(model, capability) {
            let message = format!("`{field}` {reason}; omit the field");
            return Err(ApiError::unsupported(field, message));
        }
    }
    Ok(())
}

/// What a search cannot have: more beams than the executor, or what belongs to drawing tokens.
fn check_search(
    requested: &Requested,
    search: BeamSearch,
    model: &ServedModel,
) -> Result<(), ApiError> {
    let most = model.description.max_beam_width.max(1);
    if search.width > most {
        return Err(ApiError::invalid_request(
            "use_beam_search",
            format!(
                "The search has `{}` beams, but this model's executor searches with at most {most}. \
                 Ask for fewer, or raise the worker's `max_beam_width`.",
                search.width
            ),
        ));
    }
    let sampling = &requested.sampling;
    let drawing = [
        (sampling.top_p.is_some_and(|value| value < 1.0), "top_p"),
        (sampling.top_k.is_some_and(|value| value > 0), "top_k"),
        (sampling.min_p.is_some_and(|value| value > 0.0), "min_p"),
        (
            requested.log_probs.is_some_and(|count| count > 0),
            requested.top_log_probs_field,
        ),
    ];
    match drawing.into_iter().find(|(sent, _)| *sent) {
        Some((_, field)) => Err(ApiError::invalid_request(
            field,
            format!("`{field}` is not supported with beam search. Leave one of them out."),
        )),
        None => Ok(()),
    }
}
