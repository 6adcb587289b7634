//! Decides how the answer to a chat request is read and constrained: which of the model's formats it needs, and
//! which grammar. Owns the refusal of requests that the model has no format for.

use std::sync::Arc;

use inflight_models::capability::{Capability, lacks};
use inflight_models::served::ServedModel;
use inflight_openai::chat::{ChatRequest, ToolChoice, Tools};
use inflight_openai::{ApiError, Guide, GuideKind};
use inflight_parsers::{Format, ParserOptions, ToolFormat};
use inflight_streams::answer::{AnswerOptions, CallDemand};
use serde_json::Value;

use super::forced_calls::{self, NEW_MISTRAL_TOKEN, forced_call};

/// Bytes of a grammar that executors take.
const MAX_GUIDE_BYTES: usize = 64 * 1024;

/// How to read the answers to `request`; `None`: as plain text. Completes `prompt` and the request's guide where a
/// call is demanded.
///
/// # Errors
/// 400: the request has tools, and it is not known how the model calls them.
pub(super) fn options(
    request: &mut ChatRequest,
    format: Format,
    served: &ServedModel,
    prompt: &mut String,
) -> Result<Option<AnswerOptions>, ApiError> {
    let tools = request.template.tools.clone();
    let tools = tools.as_deref();
    if tools.is_some() && format.tools.is_none() {
        return Err(ApiError::unsupported(
            "tools",
            "The gateway does not know how this model writes tool calls. Name its format when you start the \
             gateway, with `--tool-parser`, or leave `tools` out.",
        ));
    }
    let format = Format {
        tools: format.tools.filter(|_| tools.is_some()),
        reasoning: format.reasoning,
    };
    if format.tools.is_none() && format.reasoning.is_none() {
        return Ok(None);
    }
    let content = tools.and_then(|_| own_guide(request)).transpose()?;
    let demand = tools.map(|tools| CallDemand::new(tools, content.as_ref()));
    let mut demand = demand.transpose()?.flatten();
    let is_reasoning_open = format.opens_reasoning(prompt);
    if let (Some(demand), Some(tools), Some(writes)) = (&mut demand, tools, format.tools) {
        // A request that continues a message, or a thought, has begun already.
        let begins = request.template.add_generation_prompt && !is_reasoning_open;
        // A grammar of an answer has no room for a thought before it.
        let content = content.as_ref().filter(|_| format.reasoning.is_none());
        let content = content.map(|(schema, _)| schema);
        constrain(request, demand, tools, writes, served, begins, content);
        if let Some(call) = &demand.begun {
            prompt.push_str(&call.prefix);
        }
    }
    let markers = format.special_markers();
    let markers = markers.filter_map(|marker| token(served, marker));
    Ok(Some(AnswerOptions {
        format,
        parser: ParserOptions {
            tools: tools.map(|tools| Arc::new(known(tools))),
            is_reasoning_open,
            // What is whole when it is sent can show a malformed call as the text that it is.
            holds_calls: !request.generation.stream,
            ..ParserOptions::default()
        },
        markers: markers.collect(),
        hides_reasoning: !request.include_reasoning,
        single_call: tools.is_some_and(|tools| !tools.parallel),
        demand,
    }))
}

/// The model's token of this text, if it is one.
fn token(served: &ServedModel, text: &str) -> Option<u32> {
    served.text.as_deref()?.tokenizer().token_id(text)
}

/// Takes out the schema that the request's own guide holds an answer without calls to. A grammar of it would leave no
/// room for a call, so such an answer is checked instead.
fn own_guide(request: &mut ChatRequest) -> Option<Result<(Value, &'static str), ApiError>> {
    let guide = request.generation.extensions.as_mut()?.guide.take()?;
    let schema = match guide.kind {
        GuideKind::JsonSchema => serde_json::from_str(&guide.text).ok(),
        GuideKind::Regex | GuideKind::Grammar | GuideKind::StructuralTag => None,
    };
    Some(match schema {
        Some(schema) => Ok((schema, guide.param)),
        None => Err(ApiError::invalid_request(
            guide.param,
            format!(
                "`{}` is not supported together with `tools`. Send a JSON schema, or leave one of them out.",
                guide.param
            ),
        )),
    })
}

/// The tools that may be called, as parsers need them.
fn known(tools: &Tools) -> inflight_parsers::Tools {
    let functions = tools.callable();
    inflight_parsers::Tools::new(
        functions.map(|function| (function.name.as_str(), function.parameters.as_ref())),
    )
}

/// Makes the calls come as demanded, as far as the model's format and executor can: the beginning of a call, and a
/// grammar. What neither does is checked when the answer is there.
fn constrain(
    request: &mut ChatRequest,
    demand: &mut CallDemand,
    tools: &Tools,
    format: ToolFormat,
    served: &ServedModel,
    begins: bool,
    content: Option<&Value>,
) {
    let all_strict = tools.functions.iter().all(|function| function.strict);
    let asked = request.generation.extensions.as_deref();
    // Neither goes with a grammar; calls are then what the model writes by itself.
    let excludes =
        asked.is_some_and(|asked| asked.beams.is_some() || asked.thinking_token_budget.is_some());
    let can_guide = lacks(served, Capability::Guide).is_none() && !excludes;
    let mut set = |guide: Guide| {
        let is_set = can_guide && guide.text.len() <= MAX_GUIDE_BYTES;
        if is_set {
            let extensions = request.generation.extensions.get_or_insert_default();
            extensions.guide = Some(guide);
        }
        is_set
    };
    let is_new_mistral = token(served, NEW_MISTRAL_TOKEN).is_some();
    let demanded = |is_guided| forced_call(format, tools, is_guided, is_new_mistral);
    if begins && let Some((call, guide)) = demanded(can_guide) {
        // No client can fix an expression that it did not write.
        demand.may_drop_guide = !all_strict || guide.kind == GuideKind::Regex;
        demand.begun = match set(guide) {
            true => Some(call),
            false => demanded(false).map(|(call, _)| call),
        };
        return;
    }
    if tools.choice != ToolChoice::Auto {
        return;
    }
    demand.may_drop_guide = !all_strict;
    let tags = match content {
        Some(content) if lacks(served, Capability::StructuralFormats).is_none() => {
            forced_calls::answer_or_calls(format, tools, content)
        }
        Some(_) => None,
        None => forced_calls::tags(format, tools).filter(|_| all_strict),
    };
    if let Some(tags) = tags {
        set(forced_calls::guide(
            GuideKind::StructuralTag,
            tags.to_string(),
        ));
    }
}
