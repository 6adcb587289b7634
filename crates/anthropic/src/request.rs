//! The request: parsed, checked, and translated into a chat request, so that everything behind it is the same
//! for both APIs. Owns the fields' ranges, which are Anthropic's.

use inflight_openai::bounds::{MAX_MAX_TOKENS, MAX_MODEL_BYTES, MAX_STOP_BYTES, MAX_STOPS, TOP_P};
use inflight_openai::chat::{ChatRequest, Reasoning, TemplateOptions};
use inflight_openai::reader::{self, Fields};
use inflight_openai::{ApiError, Extensions, Generation, Guide, IgnoredFields, Parsed, Sampling};
use serde_json::Map;

use crate::conversation;
use crate::error::no_threads;
use crate::fields;
use crate::tools;

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
    if fields.take("thread").is_some() {
        return Err(no_threads());
    }
    let model = take_model(&mut fields)?;
    let max_tokens = fields.count("max_tokens", 0..=MAX_MAX_TOKENS)?;
    if generates && max_tokens.is_none() {
        return Err(fields.missing("max_tokens"));
    }
    let turns = conversation::take(&mut fields, &mut ignored)?;
    let (guide, effort) = take_output(&mut fields, &mut ignored)?;
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
    let thinking = take_thinking(&mut fields, max_tokens, &mut ignored)?;
    let tools = tools::take(&mut fields, &mut ignored)?;
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
            include_reasoning: thinking.is_shown,
            template: TemplateOptions {
                add_generation_prompt: !turns.continues,
                continue_final_message: turns.continues,
                kwargs: Map::new(),
                tools,
                reasoning: Reasoning {
                    effort,
                    thinking: thinking.wanted,
                },
            },
        },
        ignored,
    })
}

/// Takes the model's name; empty: the only one that is served.
fn take_model(fields: &mut Fields<'_>) -> Result<String, ApiError> {
    let Some(model) = fields.string("model")? else {
        return Ok(String::new());
    };
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
    let top_p = fields.decimal("top_p", TOP_P)?;
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

/// How much effort an answer may take, in Anthropic's words.
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

/// Takes the schema that the answer must match, and how much effort it may take.
fn take_output(
    fields: &mut Fields<'_>,
    ignored: &mut IgnoredFields,
) -> Result<(Option<Guide>, Option<String>), ApiError> {
    let (mut guide, mut effort) = (None, None);
    if let Some(raw) = fields.take("output_config") {
        let mut config = Fields::of_value("output_config", raw)?;
        if let Some(raw) = config.take("format") {
            guide = Some(take_format("output_config.format", raw, ignored)?);
        }
        if let Some(given) = config.string("effort")? {
            effort = Some(fields::one_of(&config, "effort", &given, &EFFORTS)?.to_owned());
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
    Ok((guide, effort))
}

fn take_format(
    param: &'static str,
    raw: &serde_json::value::RawValue,
    ignored: &mut IgnoredFields,
) -> Result<Guide, ApiError> {
    let mut format = Fields::of_value(param, raw)?;
    fields::take_type(&mut format, &["json_schema"])?;
    let schema = format.require("schema")?;
    let guide = Guide::json_schema(param, &format.param("schema"), schema)?;
    fields::finish(format, "format.", ignored)?;
    Ok(guide)
}

/// Whether the model is to think, and whether the answer shows it.
struct Thinking {
    /// `None`: as the model does by itself.
    wanted: Option<bool>,
    is_shown: bool,
}

fn take_thinking(
    fields: &mut Fields<'_>,
    max_tokens: Option<u32>,
    ignored: &mut IgnoredFields,
) -> Result<Thinking, ApiError> {
    let Some(raw) = fields.take("thinking") else {
        return Ok(Thinking {
            wanted: None,
            is_shown: true,
        });
    };
    let mut thinking = Fields::of_value("thinking", raw)?;
    let kind = fields::take_type(
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
    let display = thinking.string("display")?.unwrap_or_default();
    let is_shown = match display.as_str() {
        "" => true,
        other => {
            fields::one_of(&thinking, "display", other, &["summarized", "omitted"])? != "omitted"
        }
    };
    fields::finish(thinking, "thinking.", ignored)?;
    let wanted = kind != "disabled";
    Ok(Thinking {
        wanted: Some(wanted),
        is_shown: is_shown && wanted,
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
