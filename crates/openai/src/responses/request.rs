//! The request of `/v1/responses`. Owns its parsing, and its translation into a chat request; what a
//! `previous_response_id` refers to comes in as items.

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::item::{InputItem, Item};
use super::messages::messages;
use super::object::{ReasoningSettings, Settings, TextSettings};
use crate::Parsed;
use crate::bounds::{MAX_MESSAGES, MAX_TOP_LOGPROBS};
use crate::chat::{
    ChatRequest, Form, Reasoning, TemplateOptions, Tools, check_kwargs, take_effort,
};
use crate::error::{ApiError, code};
use crate::fields::Endpoint;
use crate::generation::Generation;
use crate::guide::{self, Guide};
use crate::ignored::IgnoredFields;
use crate::metadata;
use crate::reader::{self, Fields, too_many, wrong_type};

/// Above every sensible number of calls.
const MAX_MAX_TOOL_CALLS: u32 = i32::MAX as u32;

const LOGPROBS: &str = "message.output_text.logprobs";
/// What else `include` may name: parts of items that no answer here has.
const ABSENT_PARTS: [&str; 6] = [
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
];

/// A valid request.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponseRequest {
    pub generation: Generation,
    /// At least one.
    pub input: Vec<InputItem>,
    pub settings: Settings,
    /// Whether items of reasoning are to have `encrypted_content`.
    pub seals_reasoning: bool,
    /// `None`: no log probabilities; `Some(k)`: with k alternatives, 0..=20.
    pub logprobs: Option<u32>,
    /// Further variables for the template.
    pub template_kwargs: Map<String, Value>,
    /// What the model may call; `None`: nothing.
    pub tools: Option<Box<Tools>>,
    pub reasoning: Reasoning,
}

/// Parses and validates a body. Total: any bytes give a request or a 400.
pub fn parse(body: &[u8]) -> Result<Parsed<ResponseRequest>, ApiError> {
    let mut fields = Fields::of_body(body)?;
    let mut ignored = IgnoredFields::default();
    fields.refuse_own(Endpoint::Responses)?;
    let asked = settings(&mut fields, &mut ignored)?;
    let reasoning = Reasoning {
        effort: asked.reasoning.effort.clone(),
        ..Reasoning::take(&mut fields)?
    };
    let tools = Tools::take(&mut fields, Form::Flat, &mut ignored)?;
    let mut generation = Generation::take(&mut fields, Endpoint::Responses, &mut ignored)?;
    // A response always contains its usage.
    generation.include_usage = generation.stream;
    generation.continuous_usage = false;
    let input = take_input(&mut fields, &mut ignored)?;
    let kwargs = fields.object("chat_template_kwargs")?.unwrap_or_default();
    check_kwargs(&kwargs)?;
    let top = fields.count("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    let include = take_include(&mut fields)?;
    let wanted = include.logprobs || top.is_some_and(|top| top > 0);
    let format = fields.take("text");
    generation.take_extensions(&mut fields, Endpoint::Responses, &mut ignored)?;
    let text = take_text(format, &mut generation, &mut ignored)?;
    let settings = Settings {
        max_output_tokens: generation.max_tokens,
        temperature: generation.sampling.temperature,
        top_p: generation.sampling.top_p,
        top_logprobs: top.unwrap_or(0),
        text,
        ..asked
    };
    fields.finish(Endpoint::Responses, "", &mut ignored)?;
    Ok(Parsed {
        request: ResponseRequest {
            generation,
            input,
            settings,
            seals_reasoning: include.encrypted_reasoning,
            logprobs: wanted.then_some(top.unwrap_or(0)),
            template_kwargs: kwargs,
            tools,
            reasoning,
        },
        ignored,
    })
}

impl ResponseRequest {
    /// The chat request of a conversation: what came before, then this request's own items.
    ///
    /// # Errors
    /// 400: there are too many.
    pub fn chat<'a>(
        &self,
        earlier: impl Iterator<Item = &'a Item>,
        input: &'a [Item],
    ) -> Result<ChatRequest, ApiError> {
        let messages = messages(self.settings.instructions.as_deref(), earlier.chain(input));
        if messages.len() > MAX_MESSAGES {
            return Err(too_many("input", messages.len(), MAX_MESSAGES));
        }
        Ok(ChatRequest {
            generation: self.generation.clone(),
            messages,
            logprobs: self.logprobs,
            template: TemplateOptions {
                add_generation_prompt: true,
                continue_final_message: false,
                kwargs: self.template_kwargs.clone(),
                tools: self.tools.clone(),
                reasoning: self.reasoning.clone(),
            },
            include_reasoning: true,
        })
    }
}

/// An error about the chat request that a response became, in terms of this endpoint's fields.
pub fn in_own_words(mut error: ApiError) -> ApiError {
    let names = [
        ("messages", "input"),
        ("max_tokens", "max_output_tokens"),
        ("logprobs", "include"),
        ("reasoning_effort", "reasoning.effort"),
    ];
    let Some(param) = &mut error.param else {
        return error;
    };
    if let Some((chats, own)) = names.into_iter().find(|(chats, _)| param == chats) {
        own.clone_into(param);
        let (chats, own) = (format!("`{chats}`"), format!("`{own}`"));
        error.message = error.message.replace(&chats, &own);
    }
    error
}

/// What the answer repeats, as far as it is not part of the generation.
fn settings(fields: &mut Fields<'_>, ignored: &mut IgnoredFields) -> Result<Settings, ApiError> {
    Ok(Settings {
        background: fields.boolean("background")?.unwrap_or(false),
        instructions: fields.string("instructions")?,
        max_output_tokens: None,
        max_tool_calls: fields.count("max_tool_calls", 1..=MAX_MAX_TOOL_CALLS)?,
        metadata: metadata::take(fields)?,
        parallel_tool_calls: repeated(fields, "parallel_tool_calls").unwrap_or(true),
        previous_response_id: fields.string("previous_response_id")?,
        prompt_cache_key: repeated(fields, "prompt_cache_key"),
        reasoning: take_reasoning(fields, ignored)?,
        safety_identifier: repeated(fields, "safety_identifier"),
        service_tier: "default",
        store: fields.boolean("store")?.unwrap_or(true),
        temperature: None,
        text: TextSettings {
            format: json!({"type": "text"}),
            verbosity: "medium".to_owned(),
        },
        tool_choice: repeated(fields, "tool_choice").unwrap_or_else(|| json!("auto")),
        tools: repeated_tools(fields),
        top_logprobs: 0,
        top_p: None,
        truncation: "disabled",
        user: repeated(fields, "user"),
    })
}

/// What the answer repeats of a field that others decide on, if it is of the right type.
fn repeated<T: DeserializeOwned>(fields: &Fields<'_>, name: &str) -> Option<T> {
    let raw = fields.peek(name)?;
    serde_json::from_str(raw.get()).ok()
}

/// The tools, with what they leave out.
fn repeated_tools(fields: &Fields<'_>) -> Vec<Value> {
    let mut tools: Vec<Value> = repeated(fields, "tools").unwrap_or_default();
    let functions = tools.iter_mut().filter(|tool| tool["type"] == "function");
    for tool in functions.filter_map(Value::as_object_mut) {
        for (name, default) in [
            ("description", Value::Null),
            ("parameters", Value::Null),
            ("strict", Value::Bool(false)),
        ] {
            tool.entry(name).or_insert(default);
        }
    }
    tools
}

fn take_reasoning(
    fields: &mut Fields<'_>,
    ignored: &mut IgnoredFields,
) -> Result<ReasoningSettings, ApiError> {
    let Some(raw) = fields.take("reasoning") else {
        return Ok(ReasoningSettings::default());
    };
    let mut reasoning = Fields::of_value("reasoning", raw)?;
    let settings = ReasoningSettings {
        effort: take_effort(&mut reasoning, "effort")?,
        summary: repeated(&reasoning, "summary"),
    };
    reasoning.finish(Endpoint::Responses, "reasoning.", ignored)?;
    Ok(settings)
}

fn take_input(
    fields: &mut Fields<'_>,
    ignored: &mut IgnoredFields,
) -> Result<Vec<InputItem>, ApiError> {
    let raw = fields.require("input")?;
    let items = match raw.get().as_bytes().first() {
        Some(b'"') => {
            let text = serde_json::from_str(raw.get());
            let text = text.map_err(|_| wrong_type("input", "a string", raw))?;
            return Ok(vec![InputItem::Item(Item::user(text))]);
        }
        Some(b'[') => reader::list("input", raw, MAX_MESSAGES)?,
        _ => return Err(wrong_type("input", "a string or an array of items", raw)),
    };
    if items.is_empty() {
        return Err(ApiError::invalid_request(
            "input",
            "Invalid value for `input`: the array is empty. Send at least one item.",
        )
        .with_code(code::EMPTY_ARRAY));
    }
    let items = items.into_iter().enumerate();
    items
        .map(|(place, raw)| Item::read(&format!("input[{place}]"), place, raw, ignored))
        .collect()
}

/// What `include` asks for.
#[derive(Clone, Copy, Default)]
struct Include {
    logprobs: bool,
    encrypted_reasoning: bool,
}

fn take_include(fields: &mut Fields<'_>) -> Result<Include, ApiError> {
    let mut include = Include::default();
    let parts = fields.list("include", 64)?.unwrap_or_default();
    for (place, raw) in parts.into_iter().enumerate() {
        let path = format!("include[{place}]");
        let part: String =
            serde_json::from_str(raw.get()).map_err(|_| wrong_type(&path, "a string", raw))?;
        match part.as_str() {
            LOGPROBS => include.logprobs = true,
            "reasoning.encrypted_content" => include.encrypted_reasoning = true,
            known if ABSENT_PARTS.contains(&known) => {}
            other => {
                let message = format!(
                    "Invalid value for `{path}`: `{}`. Send `{LOGPROBS}`, or leave it out.",
                    reader::shortened(other)
                );
                return Err(ApiError::invalid_request(path, message).with_code(code::INVALID_VALUE));
            }
        }
    }
    Ok(include)
}

/// Reads `text`: the guide goes to `generation`, and what the answer repeats is returned.
fn take_text(
    raw: Option<&RawValue>,
    generation: &mut Generation,
    ignored: &mut IgnoredFields,
) -> Result<TextSettings, ApiError> {
    let mut settings = TextSettings {
        format: json!({"type": "text"}),
        verbosity: "medium".to_owned(),
    };
    let Some(raw) = raw else {
        return Ok(settings);
    };
    let mut text = Fields::of_value("text", raw)?;
    if let Some(raw) = text.take("format") {
        let extensions = generation.extensions.as_deref();
        let other: Option<&Guide> = extensions.and_then(|extensions| extensions.guide.as_ref());
        if let Some(guide) = guide::text_format(raw, other, ignored)? {
            generation.extensions.get_or_insert_default().guide = Some(guide);
        }
        settings.format = serde_json::from_str(raw.get())
            .map_err(|_| wrong_type("text.format", "an object", raw))?;
    }
    if let Some(raw) = text.peek("verbosity") {
        settings.verbosity = serde_json::from_str(raw.get())
            .map_err(|_| wrong_type("text.verbosity", "a string", raw))?;
    }
    text.finish(Endpoint::Responses, "text.", ignored)?;
    Ok(settings)
}
