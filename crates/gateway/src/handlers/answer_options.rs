//! Decides how the answer to a chat request is read and constrained: which of the model's formats it needs, and
//! which grammar. Owns the refusal of requests that the model has no format for.

use std::sync::Arc;

use inflight_openai::chat::{ChatRequest, ToolChoice, Tools};
use inflight_openai::{ApiError, Guide, GuideKind, ReasoningField};
use inflight_parsers::{Format, ParserOptions, ToolFormat};
use inflight_text::TextModel;
use inflight_upstream::model::capability::{Capability, lacks};
use inflight_upstream::model::served::ServedModel;
use serde_json::Value;

use super::forced::{self, NEW_MISTRAL_TOKEN, Rest, forced};
use crate::stream::answer::{AnswerOptions, CallCheck, ForcedCall};

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
    model: Option<&TextModel>,
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
    let check = tools.map(|tools| CallCheck::new(tools, content.as_ref()));
    let check = check.transpose()?.flatten();
    let is_reasoning_open = format.opens_reasoning(prompt);
    let mut guided = Guided::default();
    let reasons = format.reasoning;
    if let Some((tools, format)) = tools.zip(format.tools) {
        // A request that continues a message, or a thought, has begun already.
        let begins = request.template.add_generation_prompt && !is_reasoning_open;
        // A grammar of an answer has no room for a thought before it.
        let content = content.as_ref().filter(|_| reasons.is_none());
        let content = content.map(|(schema, _)| schema);
        let newer = |model: &TextModel| model.tokenizer().token_id(NEW_MISTRAL_TOKEN).is_some();
        let is_new_mistral = model.is_some_and(newer);
        guided = guide(
            request,
            tools,
            format,
            served,
            begins,
            is_new_mistral,
            content,
        );
    }
    if let Some(call) = &guided.call {
        prompt.push_str(&call.prefix);
    }
    let markers = format.special_markers();
    let markers = markers.filter_map(|marker| model?.tokenizer().token_id(marker));
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
        reasoning_field: ReasoningField::default(),
        single_call: tools.is_some_and(|tools| !tools.parallel),
        names_function: tools.is_some_and(names_function),
        check: check.map(Arc::new),
        call: guided.call,
        may_drop_guide: guided.may_drop,
    }))
}

/// Whether `tool_choice` names a function, and not a custom tool.
fn names_function(tools: &Tools) -> bool {
    let ToolChoice::Function(name) = &tools.choice else {
        return false;
    };
    tools.find(name).is_some_and(|tool| tool.custom.is_none())
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
    let functions = tools.functions.iter();
    let functions = functions.filter(|function| match &tools.choice {
        ToolChoice::Function(name) => *name == function.name,
        ToolChoice::Auto | ToolChoice::Required => true,
    });
    inflight_parsers::Tools::new(
        functions.map(|function| (function.name.as_str(), function.parameters.as_ref())),
    )
}

/// What became of a request's wish for certain calls.
#[derive(Default)]
struct Guided {
    call: Option<ForcedCall>,
    may_drop: bool,
}

/// Makes the calls come as demanded, as far as the model's format and executor can: the beginning of a call, and a
/// grammar. What neither does is checked when the answer is there.
fn guide(
    request: &mut ChatRequest,
    tools: &Tools,
    format: ToolFormat,
    served: &ServedModel,
    begins: bool,
    is_new_mistral: bool,
    content: Option<&Value>,
) -> Guided {
    let all_strict = tools.functions.iter().all(|function| function.strict);
    let asked = request.generation.extensions.as_deref();
    // Neither goes with a grammar; calls are then what the model writes by itself.
    let excludes =
        asked.is_some_and(|asked| asked.beams.is_some() || asked.thinking_token_budget.is_some());
    let can_guide = lacks(served, Capability::Guide).is_none() && !excludes;
    let mut set = |kind, text: String| {
        if !can_guide || text.len() > MAX_GUIDE_BYTES {
            return false;
        }
        let extensions = request.generation.extensions.get_or_insert_default();
        extensions.guide = Some(Guide {
            kind,
            text: text.into(),
            param: "tools",
        });
        true
    };
    if begins && let Some(guided) = forced(format, tools, can_guide, is_new_mistral) {
        let is_guided = match &guided.rest {
            Rest::Schema(schema) => set(GuideKind::JsonSchema, schema.to_string()),
            Rest::Pattern(pattern) => set(GuideKind::Regex, pattern.clone()),
        };
        let is_pattern = matches!(guided.rest, Rest::Pattern(_));
        let free = || forced(format, tools, false, is_new_mistral);
        let call = if is_guided { Some(guided) } else { free() };
        return Guided {
            call: call.map(|call| ForcedCall {
                prefix: call.prefix,
                suffix: is_guided.then_some(call.suffix),
            }),
            // No client can fix an expression that it did not write.
            may_drop: !all_strict || is_pattern,
        };
    }
    if tools.choice != ToolChoice::Auto {
        return Guided::default();
    }
    let tags = match content {
        Some(content) if lacks(served, Capability::StructuralFormats).is_none() => {
            forced::answer_or_calls(format, tools, content)
        }
        Some(_) => None,
        None => forced::tags(format, tools).filter(|_| all_strict),
    };
    if let Some(tags) = tags {
        set(GuideKind::StructuralTag, tags.to_string());
    }
    Guided {
        call: None,
        may_drop: !all_strict,
    }
}
