//! The completions request. Owns its parsing, the forms of `prompt` and what only completions have;
//! shared fields are `generation`'s. Knows nothing of tokenizers: texts and token ids stay what they are.

mod prompt;

pub use prompt::Prompt;
pub(crate) use prompt::read_prompts;

use crate::Parsed;
use crate::bounds::MAX_TOP_LOGPROBS;
use crate::error::{ApiError, code};
use crate::extensions::Extensions;
use crate::fields::Endpoint;
use crate::generation::Generation;
use crate::ignored::IgnoredFields;
use crate::reader::Fields;

/// Prompts × n of one request.
const MAX_CHOICES: usize = 2_048;

/// A valid completions request.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    pub generation: Generation,
    /// At least one; none is an empty list of token ids.
    pub prompts: Vec<Prompt>,
    /// Whether the prompt's text comes first in each choice.
    pub echo: bool,
    /// `None`: no log probabilities; `Some(k)`: with k alternatives, 0..=20.
    pub logprobs: Option<u32>,
}

/// Parses and validates a body. Total: any bytes give a request or a 400.
pub fn parse(body: &[u8]) -> Result<Parsed<CompletionRequest>, ApiError> {
    let mut fields = Fields::of_body(body)?;
    let mut ignored = IgnoredFields::default();
    let mut generation = Generation::take(&mut fields, Endpoint::Completions, &mut ignored)?;
    let raw_prompt = fields.require("prompt")?;
    let prompts = read_prompts("prompt", raw_prompt)?;
    let choices = prompts.len().saturating_mul(generation.n as usize);
    if choices > MAX_CHOICES {
        return Err(ApiError::invalid_request(
            "prompt",
            format!(
                "Too many choices: `{}` prompts times `n` of `{}`. Ask for at most {MAX_CHOICES} \
                 in one request.",
                prompts.len(),
                generation.n
            ),
        )
        .with_code(code::ARRAY_ABOVE));
    }
    let echo = fields.boolean("echo")?.unwrap_or(false);
    let logprobs = fields.count("logprobs", 0..=MAX_TOP_LOGPROBS)?;
    generation.take_extensions(&mut fields, Endpoint::Completions, &mut ignored)?;
    Extensions::check_logprobs(generation.extensions.as_deref(), logprobs.is_some())?;
    let request = CompletionRequest {
        generation,
        prompts,
        echo,
        logprobs,
    };
    if request.generation.max_tokens == Some(0) && !request.echo {
        return Err(ApiError::invalid_request(
            "max_tokens",
            "Invalid value for `max_tokens`: `0`. Send at least 1, or set `echo` to score the prompt alone.",
        )
        .with_code(code::INTEGER_BELOW));
    }
    fields.finish(Endpoint::Completions, "", &mut ignored)?;
    Ok(Parsed { request, ignored })
}

#[cfg(test)]
mod tests;
