//! The chat completions request. Owns its parsing and what only chat has; shared fields are
//! `generation`'s. Knows no template: messages are kept as the template will see them.

mod message;

pub use message::{Function, Message, Role, ToolCall};

use crate::Parsed;
use crate::error::{ApiError, code};
use crate::fields::Endpoint;
use crate::generation::Generation;
use crate::ignored::IgnoredFields;
use crate::reader::Fields;

/// A conversation longer than this has no model that reads it.
const MAX_MESSAGES: usize = 16_384;
/// OpenAI's limit.
const MAX_TOP_LOGPROBS: u32 = 20;

/// A valid chat request.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    pub generation: Generation,
    /// At least one.
    pub messages: Vec<Message>,
    /// `None`: no log probabilities; `Some(k)`: with k alternatives, 0..=20.
    pub logprobs: Option<u32>,
}

/// Parses and validates a body. Total: any bytes give a request or a 400.
pub fn parse(body: &[u8]) -> Result<Parsed<ChatRequest>, ApiError> {
    let mut fields = Fields::of_body(body)?;
    let mut ignored = IgnoredFields::default();
    let generation = Generation::take(&mut fields, Endpoint::Chat, &mut ignored)?;
    let raw_messages = fields
        .list("messages", MAX_MESSAGES)?
        .ok_or_else(|| fields.missing("messages"))?;
    if raw_messages.is_empty() {
        return Err(ApiError::invalid_request(
            "messages",
            "Invalid value for `messages`: the array is empty. Send at least one message.",
        )
        .with_code(code::EMPTY_ARRAY));
    }
    let mut messages = Vec::with_capacity(raw_messages.len());
    for (index, raw) in raw_messages.into_iter().enumerate() {
        messages.push(Message::read(index, raw, &mut ignored)?);
    }
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    if !wanted && top.is_some_and(|top| top > 0) {
        return Err(ApiError::invalid_request(
            "top_logprobs",
            "`top_logprobs` is only allowed when `logprobs` is true. Set `logprobs` or leave it out.",
        ));
    }
    fields.finish(Endpoint::Chat, "", &mut ignored)?;
    Ok(Parsed {
        request: ChatRequest {
            generation,
            messages,
            logprobs: wanted.then_some(top.unwrap_or(0)),
        },
        ignored,
    })
}

#[cfg(test)]
mod tests;
