//! The fields that few requests have: what other servers offer beyond OpenAI's fields, and structured output.
//! Owns their ranges and their parsing. A request without any of them pays one comparison.

use crate::bounds::{self, MAX_MAX_TOKENS, MAX_N, MAX_PRIORITY, MAX_TOKEN_ID, MAX_TOP_LOGPROBS};
use crate::error::ApiError;
use crate::fields::Endpoint;
use crate::guide::{self, Guide};
use crate::ignored::IgnoredFields;
use crate::reader::{Fields, shortened, token_id, too_many};

const MAX_BAD_WORDS: usize = 256;
const MAX_BAD_WORD_BYTES: usize = 1024;
const MAX_ALLOWED_TOKEN_IDS: usize = 65_536;
/// What executors report of one token.
const MAX_LOGPROB_TOKEN_IDS: usize = 100;
const MAX_CACHE_SALT_BYTES: usize = 1024;

/// What a request asks for beyond the usual fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extensions {
    /// What the answer must match.
    pub guide: Option<Guide>,
    pub beams: Option<BeamSearch>,
    /// Texts that must not be generated; none is empty.
    pub bad_words: Vec<String>,
    /// The only tokens that may be generated; empty: any.
    pub allowed_token_ids: Vec<u32>,
    /// The tokens whose log probabilities are reported with each generated one; empty: the likeliest.
    pub logprob_token_ids: Vec<u32>,
    /// Tokens that the model may think for; `None`: as many as it likes.
    pub thinking_token_budget: Option<u32>,
    /// Runs of this many tokens may come once only.
    pub no_repeat_ngram_size: Option<u32>,
    /// Requests with different salts share no part of the KV cache.
    pub cache_salt: Option<String>,
    /// Lower goes first, as in vLLM; -49..=49.
    pub priority: i64,
    /// Whether a stop string that ended a choice is part of its text.
    pub include_stop_str_in_output: bool,
    pub truncate_prompt_tokens: Option<Truncation>,
    /// Whether a prompt that is cut keeps its beginning, in place of its end.
    pub truncates_end: bool,
    /// Whether the answer lists the ids of the prompt's and of the generated tokens.
    pub return_token_ids: bool,
    /// Whether log probabilities name tokens `token_id:ID` instead of by text.
    pub return_tokens_as_token_ids: bool,
    /// `Some(k)`: log probabilities of the prompt, with k alternatives, 0..=20.
    pub prompt_logprobs: Option<u32>,
}

/// A search for the likeliest sequences, of which the best `n` are the choices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamSearch {
    /// At least `n`.
    pub width: u32,
    /// Above 0 favors long answers; vLLM's default is 1.
    pub length_penalty: f32,
    /// Whether the search ends as soon as there are as many answers as beams.
    pub early_stopping: bool,
}

/// How much of a prompt is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// As much as the model's context can hold.
    Fit,
    Last(u32),
}

impl Extensions {
    /// Refuses tokens that are named where no log probabilities are asked for.
    pub(crate) fn check_logprobs(this: Option<&Self>, wanted: bool) -> Result<(), ApiError> {
        if wanted || this.is_none_or(|extensions| extensions.logprob_token_ids.is_empty()) {
            return Ok(());
        }
        Err(ApiError::invalid_request(
            "logprob_token_ids",
            "`logprob_token_ids` is only allowed with `logprobs`. Set `logprobs` or leave it out.",
        ))
    }

    /// Takes what is left of the fields that belong here. `n` choices are asked for, as events if `stream`.
    pub(crate) fn take(
        fields: &mut Fields<'_>,
        endpoint: Endpoint,
        n: u32,
        stream: bool,
        ignored: &mut IgnoredFields,
    ) -> Result<Option<Box<Self>>, ApiError> {
        if fields.is_empty() {
            return Ok(None);
        }
        let taken = Self {
            guide: guide::take(fields, endpoint, ignored)?,
            beams: take_beams(fields, n)?,
            bad_words: take_bad_words(fields)?,
            allowed_token_ids: take_allowed_token_ids(fields)?,
            logprob_token_ids: take_logprob_token_ids(fields)?,
            thinking_token_budget: fields.count("thinking_token_budget", 0..=MAX_MAX_TOKENS)?,
            no_repeat_ngram_size: fields
                .count("no_repeat_ngram_size", 0..=MAX_TOKEN_ID)?
                .filter(|size| *size > 0),
            cache_salt: take_cache_salt(fields)?,
            priority: fields
                .integer("priority", -MAX_PRIORITY..=MAX_PRIORITY)?
                .unwrap_or(0),
            include_stop_str_in_output: fields
                .boolean("include_stop_str_in_output")?
                .unwrap_or(false),
            truncate_prompt_tokens: take_truncation(fields)?,
            truncates_end: take_side(fields)?,
            return_token_ids: fields.boolean("return_token_ids")?.unwrap_or(false),
            return_tokens_as_token_ids: fields
                .boolean("return_tokens_as_token_ids")?
                .unwrap_or(false),
            prompt_logprobs: take_prompt_logprobs(fields, stream)?,
        };
        if let (Some(_), Some(guide)) = (taken.beams, &taken.guide) {
            return Err(ApiError::invalid_request(
                guide.param,
                format!(
                    "`{}` is not supported with beam search. Leave one of them out.",
                    guide.param
                ),
            ));
        }
        if taken.thinking_token_budget.is_some() {
            let guide = taken.guide.as_ref().map(|guide| guide.param);
            let other = guide.or(taken.beams.map(|_| "use_beam_search"));
            if let Some(other) = other {
                return Err(ApiError::invalid_request(
                    "thinking_token_budget",
                    format!(
                        "`thinking_token_budget` is not supported with `{other}`. Leave one of them out."
                    ),
                ));
            }
        }
        Ok((taken != Self::default()).then(|| Box::new(taken)))
    }
}

/// Beams by the names of vLLM and `trtllm-serve` (`use_beam_search`, `best_of`) and of Hugging Face (`num_beams`).
fn take_beams(fields: &mut Fields<'_>, n: u32) -> Result<Option<BeamSearch>, ApiError> {
    let asked = fields.boolean("use_beam_search")?;
    let mut width = None;
    for name in ["num_beams", "beam_width"] {
        let count = fields.count(name, 1..=MAX_N)?;
        if let (Some(one), Some(other)) = (width, count)
            && one != other
        {
            return Err(ApiError::invalid_request(
                name,
                format!("`num_beams` is `{one}` and `{name}` is `{other}`. Send only one."),
            ));
        }
        width = width.or(count);
    }
    // One beam is the absence of a search, unless one was asked for.
    let searches = asked.unwrap_or(width.is_some_and(|width| width > 1));
    if asked == Some(false) && width.is_some_and(|width| width > 1) {
        return Err(ApiError::invalid_request(
            "use_beam_search",
            "`use_beam_search` is false, but several beams are asked for. Send only one.",
        ));
    }
    let best_of = fields.count("best_of", 1..=MAX_N)?;
    let length_penalty = fields.decimal("length_penalty", bounds::LENGTH_PENALTY)?;
    let early_stopping = fields.boolean("early_stopping")?;
    if !searches {
        return without_beams(n, best_of, length_penalty, early_stopping);
    }
    // 1 is what an absent field means, whatever n is.
    let best_of = best_of.filter(|count| *count > 1 || n == 1);
    let (name, width) = match (width, best_of) {
        (Some(width), _) => ("num_beams", width),
        (None, Some(best_of)) => ("best_of", best_of),
        (None, None) => ("n", n),
    };
    if width < n {
        return Err(ApiError::invalid_request(
            name,
            format!("`{name}` is `{width}` and `n` is `{n}`. Search with at least `n` beams."),
        ));
    }
    Ok(Some(BeamSearch {
        width,
        length_penalty: length_penalty.unwrap_or(1.0),
        early_stopping: early_stopping.unwrap_or(false),
    }))
}

/// Refuses what has an effect on a search alone.
fn without_beams(
    n: u32,
    best_of: Option<u32>,
    length_penalty: Option<f32>,
    early_stopping: Option<bool>,
) -> Result<Option<BeamSearch>, ApiError> {
    if let Some(best_of) = best_of.filter(|count| *count != n && *count != 1) {
        return Err(ApiError::unsupported(
            "best_of",
            format!(
                "`best_of` is `{best_of}` and `n` is `{n}`; ranking sampled candidates is not \
                 supported. Leave it out, set it to `n`, or set `use_beam_search`."
            ),
        ));
    }
    let alone = [
        (
            length_penalty.is_some_and(|penalty| penalty != 1.0),
            "length_penalty",
        ),
        (early_stopping == Some(true), "early_stopping"),
    ];
    match alone.into_iter().find(|(sent, _)| *sent) {
        Some((_, name)) => Err(ApiError::invalid_request(
            name,
            format!(
                "`{name}` is only allowed with beam search. Set `use_beam_search` or leave it out."
            ),
        )),
        None => Ok(None),
    }
}

fn take_bad_words(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let Some(raw) = fields.take("bad_words") else {
        return Ok(Vec::new());
    };
    let words: Vec<String> = serde_json::from_str(raw.get())
        .map_err(|_| crate::reader::wrong_type("bad_words", "an array of strings", raw))?;
    if words.len() > MAX_BAD_WORDS {
        return Err(too_many("bad_words", words.len(), MAX_BAD_WORDS));
    }
    for word in &words {
        if word.trim_ascii().is_empty() || word.len() > MAX_BAD_WORD_BYTES {
            return Err(ApiError::invalid_request(
                "bad_words",
                format!(
                    "Invalid value for `bad_words`: a word has `{}` bytes. Send words of 1 to \
                     {MAX_BAD_WORD_BYTES} bytes that are not blank.",
                    word.len()
                ),
            ));
        }
    }
    Ok(words)
}

fn take_allowed_token_ids(fields: &mut Fields<'_>) -> Result<Vec<u32>, ApiError> {
    let ids = fields
        .list("allowed_token_ids", MAX_ALLOWED_TOKEN_IDS)?
        .unwrap_or_default();
    ids.into_iter()
        .map(|raw| token_id("allowed_token_ids", raw))
        .collect()
}

fn take_logprob_token_ids(fields: &mut Fields<'_>) -> Result<Vec<u32>, ApiError> {
    let name = "logprob_token_ids";
    let Some(ids) = fields.list(name, MAX_LOGPROB_TOKEN_IDS)? else {
        return Ok(Vec::new());
    };
    if ids.is_empty() {
        return Err(ApiError::invalid_request(
            name,
            "Invalid value for `logprob_token_ids`: it is empty. Send at least one token id, or leave it out.",
        ));
    }
    let mut taken: Vec<u32> = Vec::with_capacity(ids.len());
    for raw in ids {
        let id = token_id(name, raw)?;
        // Each is reported once.
        if !taken.contains(&id) {
            taken.push(id);
        }
    }
    Ok(taken)
}

fn take_cache_salt(fields: &mut Fields<'_>) -> Result<Option<String>, ApiError> {
    let salt = fields.string("cache_salt")?;
    if let Some(salt) = &salt
        && (salt.is_empty() || salt.len() > MAX_CACHE_SALT_BYTES)
    {
        return Err(ApiError::invalid_request(
            "cache_salt",
            format!(
                "Invalid value for `cache_salt`: it has `{}` bytes. Send 1 to {MAX_CACHE_SALT_BYTES}.",
                salt.len()
            ),
        ));
    }
    Ok(salt)
}

/// An answer in events cannot contain them, in vLLM either.
fn take_prompt_logprobs(fields: &mut Fields<'_>, stream: bool) -> Result<Option<u32>, ApiError> {
    let name = "prompt_logprobs";
    let count = fields.count(name, 0..=MAX_TOP_LOGPROBS)?;
    if count.is_some() && stream {
        return Err(ApiError::invalid_request(
            name,
            "`prompt_logprobs` is only allowed when `stream` is false. Leave it out or unset `stream`.",
        ));
    }
    Ok(count)
}

/// vLLM's `truncation_side`.
fn take_side(fields: &mut Fields<'_>) -> Result<bool, ApiError> {
    let name = "truncation_side";
    match fields.string(name)?.as_deref() {
        None | Some("left") => Ok(false),
        Some("right") => Ok(true),
        Some(other) => Err(ApiError::invalid_request(
            name,
            format!(
                "Invalid value for `truncation_side`: `{}`. Send `left` or `right`.",
                shortened(other)
            ),
        )),
    }
}

fn take_truncation(fields: &mut Fields<'_>) -> Result<Option<Truncation>, ApiError> {
    let name = "truncate_prompt_tokens";
    let kept = fields.integer(name, -1..=i64::from(MAX_TOKEN_ID))?;
    match kept {
        None => Ok(None),
        Some(-1) => Ok(Some(Truncation::Fit)),
        Some(0) => Err(ApiError::invalid_request(
            name,
            "Invalid value for `truncate_prompt_tokens`: `0`. Send how many tokens to keep, or -1 for as \
             many as the model's context can hold.",
        )),
        Some(kept) => Ok(u32::try_from(kept).ok().map(Truncation::Last)),
    }
}
