//! From a prompt's text or token ids to what is sent for it. Owns the limits that are checked before
//! anything costs much; knows nothing of which endpoint asks.

use std::borrow::Cow;
use std::sync::Arc;

use inflight_models::capability::{Capability, lacks};
use inflight_models::sampling_params::SamplingParams;
use inflight_models::served::ServedModel;
use inflight_openai::{ApiError, Generation, Truncation};
use inflight_streams::choice::Echo;
use inflight_text::{Scope, TextModel};
use inflight_translate::error::{outside_vocabulary, text_too_long};
use inflight_translate::requested::Requested;
use inflight_translate::resolve::resolve;

/// One prompt of a request.
#[derive(Debug)]
pub(super) struct PreparedPrompt {
    /// For a model that takes token ids.
    pub tokens: Vec<i32>,
    /// For a model that takes text.
    pub text: String,
    /// How many tokens the prompt is, where the gateway can count it.
    pub count: Option<u64>,
    pub params: SamplingParams,
    pub echo: Option<Arc<Echo>>,
}

/// Whether a text brings its special tokens or is to get them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpecialTokens {
    /// A chat template writes them itself.
    Written,
    Added,
}

impl SpecialTokens {
    /// What a prompt needs that the model's chat template has rendered.
    pub(super) fn after_template(served: &ServedModel) -> Self {
        match served.chat_template() {
            Some(template) if template.lacks_special_tokens() => Self::Added,
            _ => Self::Written,
        }
    }

    /// What the request asks for, or the endpoint's `default`.
    pub(super) fn of(generation: &Generation, default: Self) -> Self {
        match generation.add_special_tokens {
            Some(true) => Self::Added,
            Some(false) => Self::Written,
            None => default,
        }
    }
}

/// Settles a prompt of text.
///
/// # Errors
/// 400 when the text cannot fit or the tokenizer cannot take it, and see [`resolve`].
pub(super) fn text(
    requested: &Requested,
    served: &ServedModel,
    text: String,
    special: SpecialTokens,
    echo: bool,
) -> Result<PreparedPrompt, ApiError> {
    let field = requested.prompt_field;
    let model = served.text.as_deref();
    if served.takes_text() {
        return server_tokenizes(requested, served, text, special, echo);
    }
    let model = model.ok_or_else(|| no_tokenizer(field))?;
    let truncation = truncation(requested);
    let adds = special == SpecialTokens::Added;
    let tokens = match truncation {
        None => tokenize(served, model, field, &text, adds, requested.scope)?,
        Some(_) => encode(model, field, &text, adds, requested.scope)?,
    };
    let kept = kept(requested, served, tokens.len())?;
    if kept == tokens.len() {
        return tokens_with_echo(requested, served, &tokens, echo.then_some(text));
    }
    let tokens = cut(requested, &tokens, kept);
    let text = echo.then(|| decoded(model, field, tokens)).transpose()?;
    tokens_with_echo(requested, served, tokens, text)
}

fn truncation(requested: &Requested) -> Option<Truncation> {
    requested.extensions.as_ref()?.truncate_prompt_tokens
}

/// So many of a prompt's tokens, of the end that the request keeps.
fn cut<'a>(requested: &Requested, tokens: &'a [u32], kept: usize) -> &'a [u32] {
    let extensions = requested.extensions.as_ref();
    let range = match extensions.is_some_and(|asked| asked.truncates_end) {
        true => 0..kept,
        false => tokens.len() - kept..tokens.len(),
    };
    tokens.get(range).unwrap_or_default()
}

/// How many of a prompt's tokens the request keeps.
///
/// # Errors
/// 400: as many as fit are asked for, and the model's context is not known.
fn kept(requested: &Requested, served: &ServedModel, tokens: usize) -> Result<usize, ApiError> {
    let most = match truncation(requested) {
        None => return Ok(tokens),
        Some(Truncation::Last(most)) => most as usize,
        Some(Truncation::Fit) => {
            let context = served.context().ok_or_else(|| {
                ApiError::invalid_request(
                    "truncate_prompt_tokens",
                    "`truncate_prompt_tokens` cannot be -1 for this model, because the gateway was started \
                     without its `--max-seq-len`. Send how many tokens to keep.",
                )
            })?;
            let wanted = requested.max_tokens.or(requested.default_max_tokens);
            let room = context.saturating_sub(wanted.unwrap_or(1).max(1) as usize);
            room.min(served.max_input().unwrap_or(room))
        }
    };
    Ok(tokens.min(most))
}

fn decoded(model: &TextModel, field: &'static str, tokens: &[u32]) -> Result<String, ApiError> {
    let decoded = model.tokenizer().decode(tokens, true);
    decoded.map_err(|error| ApiError::invalid_request(field, format!("{error}.")))
}

/// Settles a prompt of token ids.
///
/// # Errors
/// 400 when the model takes text or does not have the ids, and see [`resolve`].
pub(super) fn tokens(
    requested: &Requested,
    served: &ServedModel,
    tokens: &[u32],
    echo: bool,
) -> Result<PreparedPrompt, ApiError> {
    let field = requested.prompt_field;
    if let Some(reason) = lacks(served, Capability::TokenPrompt) {
        let message = format!("`{field}` as token ids {reason}; send text");
        return Err(ApiError::unsupported(field, message));
    }
    let kept = kept(requested, served, tokens.len())?;
    let tokens = cut(requested, tokens, kept);
    let text = match (&served.text, echo) {
        (Some(model), true) => Some(decoded(model, field, tokens)?),
        _ => None,
    };
    tokens_with_echo(requested, served, tokens, text)
}

fn tokens_with_echo(
    requested: &Requested,
    served: &ServedModel,
    tokens: &[u32],
    echo: Option<String>,
) -> Result<PreparedPrompt, ApiError> {
    let params = resolve(requested, served, Some(tokens.len()), rand::random())?;
    // Where it is not known, the wire's type still has an end.
    let vocabulary = served.vocabulary().unwrap_or(i32::MAX as u32);
    if let Some(id) = tokens.iter().find(|id| **id >= vocabulary) {
        return Err(outside_vocabulary(
            requested.prompt_field,
            i64::from(*id),
            vocabulary,
        ));
    }
    let tokens: Vec<i32> = tokens.iter().map(|&id| id as i32).collect();
    let echo = echo.map(|text| {
        Arc::new(Echo {
            text,
            tokens: tokens.clone(),
        })
    });
    Ok(PreparedPrompt {
        count: Some(tokens.len() as u64),
        tokens,
        text: String::new(),
        params,
        echo,
    })
}

/// The text goes to the server as it is. The gateway's own tokenizer, if it has one, only counts.
fn server_tokenizes(
    requested: &Requested,
    served: &ServedModel,
    text: String,
    special: SpecialTokens,
    echo: bool,
) -> Result<PreparedPrompt, ApiError> {
    let field = requested.prompt_field;
    let model = served.text.as_deref();
    let adds = served
        .triton()
        .is_some_and(|model| model.adds_special_tokens);
    let sent = match model {
        Some(model) if special == SpecialTokens::Written && adds => without_first(model, &text),
        _ => Cow::Borrowed(text.as_str()),
    };
    let tokens = model.map(|model| tokenize(served, model, field, &sent, adds, requested.scope));
    let count = tokens.transpose()?.map(|tokens| tokens.len());
    // What has no text has no tokens, unless the server adds some; none is asked of the gateway's tokenizer.
    let count = if sent.is_empty() { Some(0) } else { count };
    let params = resolve(requested, served, count, rand::random())?;
    let sent = sent.into_owned();
    let echo = echo.then(|| {
        Arc::new(Echo {
            text,
            tokens: Vec::new(),
        })
    });
    Ok(PreparedPrompt {
        tokens: Vec::new(),
        text: sent,
        count: count.map(|count| count as u64),
        params,
        echo,
    })
}

/// A template writes the token that begins a prompt, and so does a server's tokenizer: one is left out.
fn without_first<'a>(model: &TextModel, text: &'a str) -> Cow<'a, str> {
    let tokenizer = model.tokenizer();
    let added = tokenizer.encode("", true).unwrap_or_default();
    let first = added.first().and_then(|id| tokenizer.token_text(*id));
    let rest = first.and_then(|first| text.strip_prefix(&*first.text()));
    Cow::Borrowed(rest.unwrap_or(text))
}

/// Tokens of a prompt's text; a text that is far too long is refused before it costs anything.
pub(super) fn tokenize(
    served: &ServedModel,
    model: &TextModel,
    field: &'static str,
    text: &str,
    add_special_tokens: bool,
    scope: Scope,
) -> Result<Vec<u32>, ApiError> {
    let tokenizer = model.tokenizer();
    let fewest = tokenizer.fewest_tokens(text.len());
    if let Some(context) = served.context().filter(|context| fewest > *context) {
        return Err(text_too_long(field, context, fewest));
    }
    encode(model, field, text, add_special_tokens, scope)
}

fn encode(
    model: &TextModel,
    field: &'static str,
    text: &str,
    add_special_tokens: bool,
    scope: Scope,
) -> Result<Vec<u32>, ApiError> {
    let tokenizer = model.tokenizer();
    let tokens = tokenizer.encode_for(scope, text, add_special_tokens);
    tokens.map_err(|error| ApiError::invalid_request(field, format!("{error}.")))
}

pub(super) fn no_tokenizer(field: &'static str) -> ApiError {
    tracing::error!("a model that takes token ids has no tokenizer");
    ApiError::invalid_request(field, "The model has no tokenizer.")
}
