//! The tools of a request and how they may be called. Owns their shapes, which are Anthropic's; what a tool's
//! name and schema may be is the chat request's.

use inflight_openai::bounds::{MAX_SCHEMA_BYTES, MAX_TOOLS, MAX_TOOLS_BYTES};
use inflight_openai::chat::{FunctionTool, ToolChoice, Tools};
use inflight_openai::reader::{self, Fields};
use inflight_openai::{ApiError, IgnoredFields};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::fields;

/// What Anthropic calls the schema of a tool.
const SCHEMA: &str = "input_schema";

/// How the tools may be called.
enum Asked {
    None,
    Some { choice: ToolChoice, parallel: bool },
}

/// Takes `tools` and `tool_choice`. `None`: the model is shown no tool.
///
/// # Errors
/// 400: a field is malformed, out of bounds, or names a tool that is not there.
pub(crate) fn take(
    fields: &mut Fields<'_>,
    ignored: &mut IgnoredFields,
) -> Result<Option<Box<Tools>>, ApiError> {
    let functions = take_functions(fields, ignored)?;
    let (choice, parallel) = match take_choice(fields, ignored)? {
        Asked::None => return Ok(None),
        Asked::Some { choice, parallel } => (choice, parallel),
    };
    if functions.is_empty() {
        return match choice {
            ToolChoice::Auto => Ok(None),
            ToolChoice::Required | ToolChoice::Function(_) => Err(ApiError::invalid_request(
                "tool_choice",
                "`tool_choice` asks for a call, and there are no `tools`. Send some, or leave it out.",
            )),
        };
    }
    if let ToolChoice::Function(name) = &choice
        && !functions.iter().any(|function| function.name == *name)
    {
        let message = format!(
            "Invalid value for `tool_choice.name`: no tool is named `{}`. Name one of `tools`.",
            reader::shortened(name)
        );
        return Err(ApiError::invalid_request("tool_choice.name", message));
    }
    Ok(Some(Box::new(Tools {
        functions,
        choice,
        parallel,
    })))
}

fn take_functions(
    fields: &mut Fields<'_>,
    ignored: &mut IgnoredFields,
) -> Result<Vec<FunctionTool>, ApiError> {
    let list = fields.list("tools", MAX_TOOLS)?.unwrap_or_default();
    let bytes: usize = list.iter().map(|raw| raw.get().len()).sum();
    if bytes > MAX_TOOLS_BYTES {
        let message = format!(
            "Invalid value for `tools`: they have `{bytes}` bytes. Send at most {MAX_TOOLS_BYTES}."
        );
        return Err(ApiError::invalid_request("tools", message));
    }
    let mut functions: Vec<FunctionTool> = Vec::with_capacity(list.len());
    for (index, raw) in list.into_iter().enumerate() {
        let path = format!("tools[{index}]");
        let function = read_tool(&path, raw, ignored)?;
        if functions.iter().any(|other| other.name == function.name) {
            let param = format!("{path}.name");
            let message = format!(
                "Invalid value for `{param}`: two tools are named `{}`. Send each name once.",
                function.name
            );
            return Err(ApiError::invalid_request(param, message));
        }
        functions.push(function);
    }
    Ok(functions)
}

fn read_tool(
    path: &str,
    raw: &RawValue,
    ignored: &mut IgnoredFields,
) -> Result<FunctionTool, ApiError> {
    let mut tool = Fields::of_value(path, raw)?;
    if let Some(kind) = tool.string("type")?.filter(|kind| kind != "custom") {
        let param = tool.param("type");
        let message = format!(
            "`{path}` is a tool of type `{}`, and this server has none. Send tools with an `input_schema`.",
            reader::shortened(&kind)
        );
        return Err(ApiError::unsupported(param, message));
    }
    let name = tool.required_string("name")?;
    let description = tool.string("description")?;
    let strict = tool.boolean("strict")?.unwrap_or(false);
    let schema = read_schema(&tool.param(SCHEMA), tool.require(SCHEMA)?)?;
    fields::finish(tool, "tools.", ignored)?;
    FunctionTool::checked((path, SCHEMA), name, description, Some(schema), strict)
}

fn read_schema(param: &str, raw: &RawValue) -> Result<Value, ApiError> {
    let bytes = raw.get().len();
    if bytes > MAX_SCHEMA_BYTES {
        let message = format!(
            "Invalid value for `{param}`: the schema has `{bytes}` bytes. Send at most {MAX_SCHEMA_BYTES}."
        );
        return Err(ApiError::invalid_request(param, message));
    }
    match serde_json::from_str(raw.get()) {
        Ok(schema @ Value::Object(_)) => Ok(schema),
        _ => Err(reader::wrong_type(
            param,
            "an object with a JSON schema",
            raw,
        )),
    }
}

fn take_choice(fields: &mut Fields<'_>, ignored: &mut IgnoredFields) -> Result<Asked, ApiError> {
    let Some(raw) = fields.take("tool_choice") else {
        let (choice, parallel) = (ToolChoice::Auto, true);
        return Ok(Asked::Some { choice, parallel });
    };
    let mut fields = Fields::of_value("tool_choice", raw)?;
    let kind = fields::take_type(&mut fields, &["auto", "any", "tool", "none"])?;
    let single = fields.boolean("disable_parallel_tool_use")?;
    let choice = match kind {
        "none" => None,
        "any" => Some(ToolChoice::Required),
        "tool" => {
            let name = fields.string("name")?;
            Some(ToolChoice::Function(
                name.ok_or_else(|| fields.missing("name"))?,
            ))
        }
        _ => Some(ToolChoice::Auto),
    };
    fields::finish(fields, "tool_choice.", ignored)?;
    let parallel = !single.unwrap_or(false);
    Ok(choice.map_or(Asked::None, |choice| Asked::Some { choice, parallel }))
}
