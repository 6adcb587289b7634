//! The request: parsed, checked, and translated into a chat request, so that everything behind it is the same
//! for both APIs. Owns the fields' ranges, which are Anthropic's.

use inflight_openai::chat::{ChatRequest, Reasoning, TemplateOptions};
use inflight_openai::reader::{self, Fields};
use inflight_openai::{ApiError, Extensions, Generation, Guide, IgnoredFields, Parsed, Sampling};
use serde_json::{Map, Value};

use crate::conversation;
use crate::fields;

/// As for `/v1/chat/completions`: each costs the matcher a little.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;
const MAX_MODEL_BYTES: usize = 256;
/// Above every real context; larger is a mistake, not a wish.
const MAX_MAX_TOKENS: u32 = i32::MAX as u32;
/// Anthropic's least budget for thinking.
const MIN_BUDGET: u32 = 1024;

/// Parses and validates the body of a request for a message. Total: any bytes give a request or a 400.
pub fn parse(body: &[u8]) -> Result<Parsed<ChatRequest>, ApiError> {
    read(body, true)
}

/// Parses and validates the body of a request to count its tokens, which generates nothing.
pub fn parse_count(body: &[u8]) -> Result<Parsed<ChatRequest>, ApiError> {
    read(body, false)
}

fn read(body: &[u8], generates: bool) -> Result<Parsed<ChatRequest>, ApiError> {
    let mut fields = Fields::of_body(body)?;
    let mut ignored = IgnoredFields::default();
    let model = take_model(&mut fields)?;
    let max_tokens = fields.count("max_tokens", 0..=MAX_MAX_TOKENS)?;
    if generates && max_tokens.is_none() {
        return Err(fields.missing("max_tokens"));
    }
    let turns = conversation::take(&mut fields, &mut ignored)?;
    let guide = take_guide(&mut fields, &mut ignored)?;
    if let Some(guide) = guide.as_ref().filter(|_| turns.continues) {
        return Err(ApiError::invalid_request(
            "messages",
            format!(
                "`{}` constrains the whole answer, and the last message begins it. Leave out the last message \
                 or `{}`.",
                guide.param, guide.param
            ),
        ));
    }
    let extensions = guide.map(|guide| {
        Box::new(Extensions {
            guide: Some(guide),
            ..Extensions::default()
        })
    });
    let kwargs = take_thinking(&mut fields, max_tokens, &mut ignored)?;
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let generation = Generation {
        model,
        max_tokens,
        // Clients ask for as much as Anthropic's models can write, whatever the model is.
        fits_context: true,
        n: 1,
        stop: take_stops(&mut fields)?,
        stream,
        include_usage: stream,
        sampling: take_sampling(&mut fields)?,
        extensions,
        ..Generation::default()
    };
    check_metadata(&mut fields, &mut ignored)?;
    fields::finish(fields, "", &mut ignored)?;
    Ok(Parsed {
        request: ChatRequest {
            generation,
            messages: turns.messages,
            logprobs: None,
            include_reasoning: false,
            template: TemplateOptions {
                add_generation_prompt: !turns.continues,
                continue_final_message: turns.continues,
                kwargs,
                tools: None,
                reasoning: Reasoning::default(),
            },
        },
        ignored,
    })
}

fn take_model(fields: &mut Fields<'_>) -> Result<String, ApiError> {
    let model = fields.string("model")?;
    let model = model.ok_or_else(|| fields.missing("model"))?;
    if model.is_empty() || model.len() > MAX_MODEL_BYTES {
        return Err(ApiError::invalid_request(
            "model",
            format!(
                "Invalid value for `model`: it has `{}` bytes. Send a name from `/v1/models`.",
                model.len()
            ),
        ));
    }
    Ok(model)
}

fn take_sampling(fields: &mut Fields<'_>) -> Result<Sampling, ApiError> {
    let top_p = fields.decimal("top_p", 0.0..=1.0)?;
    if top_p == Some(0.0) {
        return Err(ApiError::invalid_request(
            "top_p",
            "Invalid value for `top_p`: `0`. Send a value above 0 and at most 1; to always take the \
             likeliest token, set `temperature` to 0.",
        ));
    }
    Ok(Sampling {
        temperature: fields.decimal("temperature", 0.0..=1.0)?,
        top_p,
        top_k: fields.count("top_k", 0..=MAX_MAX_TOKENS)?,
        ..Sampling::default()
    })
}

fn take_stops(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let name = "stop_sequences";
    let given = fields.list(name, MAX_STOPS)?.unwrap_or_default();
    let mut stops = Vec::with_capacity(given.len());
    for (index, raw) in given.into_iter().enumerate() {
        let param = format!("{name}[{index}]");
        let stop: String = serde_json::from_str(raw.get())
            .map_err(|_| reader::wrong_type(&param, "a string", raw))?;
        if stop.is_empty() || stop.len() > MAX_STOP_BYTES {
            return Err(ApiError::invalid_request(
                param.clone(),
                format!(
                    "Invalid value for `{param}`: it has `{}` bytes. Send 1 to {MAX_STOP_BYTES}.",
                    stop.len()
                ),
            ));
        }
        stops.push(stop);
    }
    Ok(stops)
}

/// Takes the schema that the answer must match.
fn take_guide(
    fields: &mut Fields<'_>,
    ignored: &mut IgnoredFields,
) -> Result<Option<Guide>, ApiError> {
    let mut guide = None;
    if let Some(raw) = fields.take("output_config") {
        let mut config = Fields::of_value("output_config", raw)?;
        if let Some(raw) = config.take("format") {
            guide = Some(take_format("output_config.format", raw, ignored)?);
        }
        fields::finish(config, "output_config.", ignored)?;
    }
    if let Some(raw) = fields.take("output_format") {
        if guide.is_some() {
            return Err(ApiError::invalid_request(
                "output_format",
                "`output_format` and `output_config.format` both constrain the answer. Send only one.",
            ));
        }
        guide = Some(take_format("output_format", raw, ignored)?);
    }
    Ok(guide)
}

fn take_format(
    param: &'static str,
    raw: &serde_json::value::RawValue,
    ignored: &mut IgnoredFields,
) -> Result<Guide, ApiError> {
    let mut format = Fields::of_value(param, raw)?;
    expect_type(&mut format, &["json_schema"])?;
    let schema = format.require("schema")?;
    let guide = Guide::json_schema(param, &format.param("schema"), schema)?;
    fields::finish(format, "format.", ignored)?;
    Ok(guide)
}

/// Takes whether the model is to think: the variables that chat templates read for it.
fn take_thinking(
    fields: &mut Fields<'_>,
    max_tokens: Option<u32>,
    ignored: &mut IgnoredFields,
) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs = Map::new();
    let Some(raw) = fields.take("thinking") else {
        return Ok(kwargs);
    };
    let mut thinking = Fields::of_value("thinking", raw)?;
    let kind = expect_type(
        &mut thinking,
        &["enabled", "adaptive", "disabled", "between_tools"],
    )?;
    if kind == "enabled" {
        // Checked as Anthropic does, though a model thinks as long as it does.
        let budget = thinking.count("budget_tokens", MIN_BUDGET..=MAX_MAX_TOKENS)?;
        let budget = budget.ok_or_else(|| thinking.missing("budget_tokens"))?;
        if let Some(most) = max_tokens.filter(|most| budget >= *most) {
            return Err(ApiError::invalid_request(
                "thinking.budget_tokens",
                format!(
                    "Invalid value for `thinking.budget_tokens`: `{budget}` is not below `max_tokens` \
                     (`{most}`). Send less, or raise `max_tokens`."
                ),
            ));
        }
        ignored.push_as("thinking.budget_tokens", "thinking.budget_tokens");
    }
    fields::finish(thinking, "thinking.", ignored)?;
    let thinks = Value::Bool(kind != "disabled");
    // Qwen, GLM and most others read the first, DeepSeek and Granite the second.
    kwargs.insert("enable_thinking".to_owned(), thinks.clone());
    kwargs.insert("thinking".to_owned(), thinks);
    Ok(kwargs)
}

/// Takes a `type` that must be one of `known`.
fn expect_type(fields: &mut Fields<'_>, known: &[&'static str]) -> Result<&'static str, ApiError> {
    let given = fields.string("type")?;
    let given = given.ok_or_else(|| fields.missing("type"))?;
    let found = known.iter().find(|word| **word == given);
    found.copied().ok_or_else(|| {
        let param = fields.param("type");
        let words: Vec<String> = known.iter().map(|word| format!("`{word}`")).collect();
        let message = format!(
            "Invalid value for `{param}`: `{}`. Send {}.",
            reader::shortened(&given),
            words.join(" or ")
        );
        ApiError::invalid_request(param, message)
    })
}

/// Names the end user for the operator's records; it has no effect on the answer by definition.
fn check_metadata(fields: &mut Fields<'_>, ignored: &mut IgnoredFields) -> Result<(), ApiError> {
    if let Some(raw) = fields.take("metadata") {
        let mut metadata = Fields::of_value("metadata", raw)?;
        metadata.string("user_id")?;
        fields::finish(metadata, "metadata.", ignored)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
