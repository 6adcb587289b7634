//! `tool_choice`: which of a request's tools the model is shown, and whether it must call one.

use super::{Form, FunctionTool, unknown_kind};
use crate::bounds::MAX_TOOLS;
use crate::error::{ApiError, code};
use crate::reader::{self, Fields};

/// Whether the model must call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// It may.
    Auto,
    /// It must call one at least.
    Required,
    /// It must call this one.
    Function(String),
}

/// `tool_choice` as it was sent.
pub(super) enum Asked {
    None,
    Auto,
    Required,
    One(Named),
    Allowed {
        required: bool,
        tools: Vec<Named>,
        /// Where the request has them.
        param: String,
    },
}

/// A tool that `tool_choice` names.
pub(super) struct Named {
    is_custom: bool,
    name: String,
}

impl Named {
    fn is(&self, function: &FunctionTool) -> bool {
        function.name == self.name && function.custom.is_some() == self.is_custom
    }

    /// Reads the fields of an object whose type, `kind`, was taken; `None`: of another kind.
    fn read(fields: Fields<'_>, kind: &str, form: Form) -> Result<Option<Self>, ApiError> {
        let is_custom = match kind {
            "function" => false,
            "custom" => true,
            _ => return Ok(None),
        };
        let mut fields = form.inner(fields, kind)?;
        let name = fields.required_string("name")?;
        Ok(Some(Self { is_custom, name }))
    }
}

impl Asked {
    /// `none`, `auto`, `required`, or an object that names a function or those that are allowed.
    pub(super) fn take(fields: &mut Fields<'_>, form: Form) -> Result<Self, ApiError> {
        let Some(raw) = fields.take("tool_choice") else {
            return Ok(Self::Auto);
        };
        let expected = "`none`, `auto`, `required` or an object that names a function";
        if !raw.get().starts_with('{') {
            let word: Result<String, _> = serde_json::from_str(raw.get());
            return match word.as_deref() {
                Ok("none") => Ok(Self::None),
                Ok("auto") => Ok(Self::Auto),
                Ok("required") => Ok(Self::Required),
                Ok(word) => Err(ApiError::invalid_request(
                    "tool_choice",
                    format!(
                        "Invalid value for `tool_choice`: `{}`. Send {expected}.",
                        reader::shortened(word)
                    ),
                )),
                Err(_) => Err(reader::wrong_type("tool_choice", expected, raw)),
            };
        }
        let mut choice = Fields::of_value("tool_choice", raw)?;
        let kind = choice.required_string("type")?;
        if kind == "allowed_tools" {
            return read_allowed(form.inner(choice, "allowed_tools")?, form);
        }
        let named = Named::read(choice, &kind, form)?;
        named.map(Self::One).ok_or_else(|| {
            ApiError::unsupported(
                "tool_choice.type",
                format!(
                    "`tool_choice` is of type `{}`. Send the type `function`, `custom` or `allowed_tools`.",
                    reader::shortened(&kind)
                ),
            )
            .with_code(code::UNSUPPORTED_VALUE)
        })
    }

    /// Whether it asks for a call, so that there must be tools.
    pub(super) fn needs_tools(&self) -> bool {
        !matches!(self, Self::None | Self::Auto)
    }

    /// The functions that are left to call, and whether one must be. `None`: the model is shown none.
    ///
    /// # Errors
    /// It names a function that is not there.
    pub(super) fn choose(
        self,
        mut functions: Vec<FunctionTool>,
    ) -> Result<Option<(Vec<FunctionTool>, ToolChoice)>, ApiError> {
        let choice = match self {
            Self::None => return Ok(None),
            Self::Auto => ToolChoice::Auto,
            Self::Required => ToolChoice::Required,
            Self::One(named) => {
                find(&functions, &named, "tool_choice")?;
                ToolChoice::Function(named.name)
            }
            Self::Allowed {
                required,
                tools,
                param,
            } => {
                for named in &tools {
                    find(&functions, named, &param)?;
                }
                functions.retain(|function| tools.iter().any(|named| named.is(function)));
                match required {
                    true => ToolChoice::Required,
                    false => ToolChoice::Auto,
                }
            }
        };
        Ok(Some((functions, choice)))
    }
}

fn find(functions: &[FunctionTool], named: &Named, param: &str) -> Result<(), ApiError> {
    if functions.iter().any(|function| named.is(function)) {
        return Ok(());
    }
    let kind = match named.is_custom {
        true => "custom tool",
        false => "function",
    };
    Err(ApiError::invalid_request(
        param,
        format!(
            "Invalid value for `{param}`: `tools` has no {kind} `{}`. Name one of them.",
            reader::shortened(&named.name)
        ),
    ))
}

fn read_allowed(mut allowed: Fields<'_>, form: Form) -> Result<Asked, ApiError> {
    let mode = allowed.required_string("mode")?;
    let required = match mode.as_str() {
        "auto" => false,
        "required" => true,
        other => {
            let param = allowed.param("mode");
            let message = format!(
                "Invalid value for `{param}`: `{}`. Send `auto` or `required`.",
                reader::shortened(other)
            );
            return Err(ApiError::invalid_request(param, message));
        }
    };
    let param = allowed.param("tools");
    let list = allowed
        .list("tools", MAX_TOOLS)?
        .ok_or_else(|| allowed.missing("tools"))?;
    if list.is_empty() {
        let message =
            format!("Invalid value for `{param}`: the array is empty. Name at least one tool.");
        return Err(ApiError::invalid_request(param, message).with_code(code::EMPTY_ARRAY));
    }
    let mut tools = Vec::with_capacity(list.len());
    for (index, raw) in list.into_iter().enumerate() {
        let path = format!("{param}[{index}]");
        let mut tool = Fields::of_value(&path, raw)?;
        let kind = tool.string("type")?;
        let named = Named::read(tool, kind.as_deref().unwrap_or("function"), form)?;
        tools.push(named.ok_or_else(|| unknown_kind(&path, &kind.unwrap_or_default()))?);
    }
    Ok(Asked::Allowed {
        required,
        tools,
        param,
    })
}
