//! The chat completions request. Owns its parsing and what only chat has; shared fields are
//! `generation`'s. Knows nothing of templates: messages are kept as the template will see them.

mod image;
mod message;
mod reasoning;
mod tools;

use serde_json::{Map, Value};

pub use image::{Detail, Image, Part};
pub(crate) use image::{misplaced, take as take_image};
pub use message::{Function, Message, Role, ToolCall};
pub use reasoning::Reasoning;
pub(crate) use reasoning::take_effort;
pub use tools::{
    CUSTOM_INPUT, FunctionTool, GrammarSyntax, InputFormat, InputGrammar, ToolChoice, Tools,
};
pub(crate) use tools::{Form, NAMESPACE_END, in_namespace};

use crate::Parsed;
use crate::bounds::{MAX_MESSAGES, MAX_TOP_LOGPROBS};
use crate::error::{ApiError, code};
use crate::extensions::Extensions;
use crate::fields::Endpoint;
use crate::generation::Generation;
use crate::ignored::IgnoredFields;
use crate::reader::Fields;

/// A valid chat request.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    pub generation: Generation,
    /// At least one.
    pub messages: Vec<Message>,
    /// `None`: no log probabilities; `Some(k)`: with k alternatives, 0..=20.
    pub logprobs: Option<u32>,
    /// Whether the answer contains the model's reasoning, where the model has a format for it.
    pub include_reasoning: bool,
    pub template: TemplateOptions,
}

/// How the conversation becomes a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateOptions {
    /// Whether the prompt ends with the start of the assistant's turn; OpenAI's default is true.
    pub add_generation_prompt: bool,
    /// Whether the answer continues the last message, which is then the assistant's.
    pub continue_final_message: bool,
    /// Further variables for the template.
    pub kwargs: Map<String, Value>,
    /// What the model may call; `None` for most requests.
    pub tools: Option<Box<Tools>>,
    pub reasoning: Reasoning,
}

/// Parses and validates a body. Total: any bytes give a request or a 400.
pub fn parse(body: &[u8]) -> Result<Parsed<ChatRequest>, ApiError> {
    let mut fields = Fields::of_body(body)?;
    let mut ignored = IgnoredFields::default();
    let mut generation = Generation::take(&mut fields, Endpoint::Chat, &mut ignored)?;
    let messages = take_messages(&mut fields, &mut ignored)?;
    let template = take_template_options(&mut fields, &messages, &mut ignored)?;
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    if !wanted && top.is_some() {
        return Err(ApiError::invalid_request(
            "top_logprobs",
            "`top_logprobs` is only allowed when `logprobs` is true. Set `logprobs` or leave it out.",
        ));
    }
    let include_reasoning = fields.boolean("include_reasoning")?.unwrap_or(true);
    generation.take_extensions(&mut fields, Endpoint::Chat, &mut ignored)?;
    Extensions::check_logprobs(generation.extensions.as_deref(), wanted)?;
    fields.finish(Endpoint::Chat, "", &mut ignored)?;
    Ok(Parsed {
        request: ChatRequest {
            generation,
            messages,
            logprobs: wanted.then_some(top.unwrap_or(0)),
            include_reasoning,
            template,
        },
        ignored,
    })
}

/// Takes the conversation, which has a message at least.
pub(crate) fn take_messages(
    fields: &mut Fields<'_>,
    ignored: &mut IgnoredFields,
) -> Result<Vec<Message>, ApiError> {
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
    let messages = raw_messages.into_iter().enumerate();
    messages
        .map(|(index, raw)| Message::read(index, raw, ignored))
        .collect()
}

/// What the template's variables may not replace: each is a separate field, or the gateway's.
const NOT_KWARGS: [&str; 6] = [
    "messages",
    "tools",
    "documents",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
];

/// Refuses variables that would replace a separate field.
pub(crate) fn check_kwargs(kwargs: &Map<String, Value>) -> Result<(), ApiError> {
    match NOT_KWARGS.iter().find(|name| kwargs.contains_key(**name)) {
        None => Ok(()),
        Some(name) => Err(ApiError::invalid_request(
            format!("chat_template_kwargs.{name}"),
            format!(
                "`{name}` is not allowed in `chat_template_kwargs`. Send it as a top-level field."
            ),
        )),
    }
}

/// Takes how these messages become a prompt.
pub(crate) fn take_template_options(
    fields: &mut Fields<'_>,
    messages: &[Message],
    ignored: &mut IgnoredFields,
) -> Result<TemplateOptions, ApiError> {
    let kwargs = fields.object("chat_template_kwargs")?.unwrap_or_default();
    check_kwargs(&kwargs)?;
    let continues = fields.boolean("continue_final_message")?.unwrap_or(false);
    let adds = fields.boolean("add_generation_prompt")?;
    if continues && adds == Some(true) {
        return Err(ApiError::invalid_request(
            "continue_final_message",
            "`continue_final_message` and `add_generation_prompt` exclude each other. Set only one to true.",
        ));
    }
    let last = messages.last();
    if continues && !last.is_some_and(|last| last.role == Role::Assistant) {
        return Err(ApiError::invalid_request(
            "continue_final_message",
            "`continue_final_message` needs a last message with the role `assistant`. Add the text to \
             continue.",
        ));
    }
    Ok(TemplateOptions {
        add_generation_prompt: adds.unwrap_or(!continues),
        continue_final_message: continues,
        kwargs,
        tools: Tools::take(fields, Form::Nested, ignored)?,
        reasoning: Reasoning::take(fields)?,
    })
}

#[cfg(test)]
mod tests;
