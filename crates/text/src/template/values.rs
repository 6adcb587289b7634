//! From JSON to the template's values. Owns the variables that a template sees; knows nothing of the engine's
//! settings.

use minijinja::Value as TemplateValue;
use serde_json::{Map, Value};

use super::{TemplateError, TemplateInput};

/// Nesting that messages, tools and extra variables may have: serde_json's own limit for parsing.
pub(super) const DEPTH_LIMIT: usize = 128;

/// The variables of one rendering, later ones winning: special tokens, `documents`, the request's
/// extra ones, and the conversation.
pub(super) fn context(
    special_tokens: &Map<String, Value>,
    input: &TemplateInput,
    tools: Option<&Value>,
) -> Result<TemplateValue, TemplateError> {
    let mut variables: Vec<(TemplateValue, TemplateValue)> = Vec::new();
    // transformers always passes it, so templates test it for none rather than for being defined.
    variables.push(("documents".into(), TemplateValue::from(())));
    for (name, value) in special_tokens.iter().chain(&input.extra) {
        variables.push((name.as_str().into(), convert(value, 0)?));
    }
    variables.push(("messages".into(), messages(&input.messages)?));
    variables.push((
        "tools".into(),
        match tools {
            Some(tools) => convert(tools, 0)?,
            None => TemplateValue::from(()),
        },
    ));
    variables.push((
        "add_generation_prompt".into(),
        input.add_generation_prompt.into(),
    ));
    Ok(TemplateValue::from_pairs(variables))
}

/// The messages, with the arguments of their tool calls as objects.
fn messages(messages: &Value) -> Result<TemplateValue, TemplateError> {
    let Some(list) = messages.as_array() else {
        return convert(messages, 0);
    };
    list.iter()
        .map(|message| match message.get("tool_calls") {
            Some(Value::Array(calls)) if calls.iter().any(has_json_arguments) => {
                let mut message = message.clone();
                for call in message
                    .get_mut("tool_calls")
                    .and_then(Value::as_array_mut)
                    .into_iter()
                    .flatten()
                {
                    parse_arguments(call);
                }
                convert(&message, 1)
            }
            _ => convert(message, 1),
        })
        .collect::<Result<Vec<_>, _>>()
        .map(TemplateValue::from)
}

fn has_json_arguments(call: &Value) -> bool {
    call.pointer("/function/arguments")
        .is_some_and(Value::is_string)
}

/// OpenAI writes arguments as JSON text; templates write them with `tojson` or go through their
/// items. Text that is not a JSON object stays text.
fn parse_arguments(call: &mut Value) {
    if let Some(arguments) = call.pointer_mut("/function/arguments")
        && let Some(parsed) = arguments
            .as_str()
            .and_then(|text| serde_json::from_str::<Value>(text).ok())
            .filter(Value::is_object)
    {
        *arguments = parsed;
    }
}

fn convert(value: &Value, depth: usize) -> Result<TemplateValue, TemplateError> {
    if depth > DEPTH_LIMIT {
        return Err(TemplateError::TooDeep { limit: DEPTH_LIMIT });
    }
    Ok(match value {
        Value::Null => TemplateValue::from(()),
        Value::Bool(value) => TemplateValue::from(*value),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => TemplateValue::from(number),
            (None, Some(number)) => TemplateValue::from(number),
            (None, None) => TemplateValue::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => TemplateValue::from(text.as_str()),
        Value::Array(list) => TemplateValue::from(
            list.iter()
                .map(|item| convert(item, depth + 1))
                .collect::<Result<Vec<_>, _>>()?,
        ),
        Value::Object(map) => TemplateValue::from_pairs(
            map.iter()
                .map(|(key, value)| {
                    Ok((
                        TemplateValue::from(key.as_str()),
                        convert(value, depth + 1)?,
                    ))
                })
                .collect::<Result<Vec<_>, TemplateError>>()?,
        ),
    })
}
