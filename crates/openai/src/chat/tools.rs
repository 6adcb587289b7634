//! The tools of a chat request. Owns their shapes and bounds; knows neither how a model writes a call nor whether a
//! schema can be followed. Which of them may or must be called is in `choice`.

mod choice;
mod custom;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

pub use self::choice::ToolChoice;
pub use self::custom::{CUSTOM_INPUT, GrammarSyntax, InputFormat, InputGrammar};

use self::choice::Asked;
use crate::bounds::{MAX_SCHEMA_BYTES, MAX_TOOLS, MAX_TOOLS_BYTES};
use crate::error::{ApiError, code};
use crate::ignored::IgnoredFields;
use crate::reader::{self, Fields};

/// OpenAI allows 64; Anthropic, whose requests end up here too, 128.
const MAX_NAME_BYTES: usize = 128;
/// Levels of a schema: half of what a template is given.
const MAX_SCHEMA_DEPTH: usize = 64;

/// The tools that a request offers the model. At least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Tools {
    /// What the model may call, each name once.
    pub functions: Vec<FunctionTool>,
    pub choice: ToolChoice,
    /// Whether an answer may have several calls.
    pub parallel: bool,
}

/// What OpenAI calls the schema of a function.
pub(crate) const PARAMETERS: &str = "parameters";

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionTool {
    /// Where the request has it, for errors: `tools[0].function`.
    pub path: String,
    pub name: String,
    pub description: Option<String>,
    /// What the request calls its schema.
    pub schema_field: &'static str,
    /// A JSON schema of an object; `None`: the function takes nothing.
    pub parameters: Option<Value>,
    /// Whether the arguments must match the schema.
    pub strict: bool,
    /// What the text of a custom tool must be. The model is shown a function with one argument, [`CUSTOM_INPUT`].
    pub custom: Option<InputFormat>,
}

/// Where the fields of a tool are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// In a separate object, as in chat: `{"type": "function", "function": {"name": …}}`.
    Nested,
    /// Next to the type, as in `/v1/responses`: `{"type": "function", "name": …}`.
    Flat,
}

impl Form {
    /// The fields that belong to `name`.
    fn inner<'a>(self, mut outer: Fields<'a>, name: &str) -> Result<Fields<'a>, ApiError> {
        match self {
            Self::Nested => Fields::of_value(&outer.param(name), outer.require(name)?),
            Self::Flat => Ok(outer),
        }
    }
}

impl Tools {
    /// Takes `tools`, `tool_choice` and `parallel_tool_calls`. `None`: the model is shown no tool, because
    /// there is none or `tool_choice` is `none`.
    ///
    /// # Errors
    /// A field is malformed, out of bounds, or names a tool that is not there.
    pub(crate) fn take(
        fields: &mut Fields<'_>,
        form: Form,
        ignored: &mut IgnoredFields,
    ) -> Result<Option<Box<Self>>, ApiError> {
        let functions = take_functions(fields, form, ignored)?;
        let asked = Asked::take(fields, form)?;
        let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
        if functions.is_empty() {
            return match asked.needs_tools() {
                false => Ok(None),
                true => Err(ApiError::invalid_request(
                    "tool_choice",
                    "`tool_choice` is only allowed when `tools` are specified. Send `tools` or leave it out.",
                )),
            };
        }
        let chosen = asked.choose(functions)?;
        Ok(chosen.map(|(functions, choice)| {
            Box::new(Self {
                functions,
                choice,
                parallel,
            })
        }))
    }

    /// The function of this name.
    pub fn find(&self, name: &str) -> Option<&FunctionTool> {
        self.functions.iter().find(|function| function.name == name)
    }

    /// The functions that `tool_choice` leaves the model to call.
    pub fn callable(&self) -> impl Iterator<Item = &FunctionTool> {
        self.functions.iter().filter(|function| match &self.choice {
            ToolChoice::Function(name) => *name == function.name,
            ToolChoice::Auto | ToolChoice::Required => true,
        })
    }

    /// OpenAI's list, as chat templates read it.
    pub fn for_template(&self) -> Value {
        self.functions
            .iter()
            .map(FunctionTool::for_template)
            .collect()
    }
}

impl FunctionTool {
    /// A function whose name, description and schema are within bounds. `path` names it in errors, and `schema_field` its
    /// schema.
    ///
    /// # Errors
    /// 400 with the part at fault in `param`.
    pub fn checked(
        (path, schema_field): (&str, &'static str),
        name: String,
        description: Option<String>,
        parameters: Option<Value>,
        strict: bool,
    ) -> Result<Self, ApiError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(is_plain) {
            let param = format!("{path}.name");
            let message = format!(
                "Invalid value for `{param}`: `{}`. Send 1 to {MAX_NAME_BYTES} letters, digits, underscores, \
                 dashes or dots.",
                reader::shortened(&name)
            );
            return Err(ApiError::invalid_request(param, message));
        }
        if let Some(schema) = &parameters
            && depth(schema) > MAX_SCHEMA_DEPTH
        {
            let param = format!("{path}.{schema_field}");
            let message = format!(
                "Invalid value for `{param}`: the schema has more than {MAX_SCHEMA_DEPTH} levels. Send a \
                 flatter one."
            );
            return Err(ApiError::invalid_request(param, message));
        }
        Ok(Self {
            path: path.to_owned(),
            schema_field,
            name,
            description,
            parameters,
            strict,
            custom: None,
        })
    }

    /// The schema's place in the request.
    pub fn schema_param(&self) -> String {
        format!("{}.{}", self.path, self.schema_field)
    }

    /// The schema that the arguments must match.
    pub fn schema(&self) -> Value {
        self.parameters
            .clone()
            .unwrap_or_else(|| json!({"type": "object", "properties": {}}))
    }

    fn for_template(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".to_owned(), self.name.clone().into());
        if let Some(description) = &self.description {
            function.insert("description".to_owned(), description.clone().into());
        }
        // Templates go through the properties without asking whether there are any.
        function.insert("parameters".to_owned(), self.schema());
        json!({"type": "function", "function": function})
    }
}

fn take_functions(
    fields: &mut Fields<'_>,
    form: Form,
    ignored: &mut IgnoredFields,
) -> Result<Vec<FunctionTool>, ApiError> {
    let list = fields.list("tools", MAX_TOOLS)?.unwrap_or_default();
    let bytes: usize = list.iter().map(|raw| raw.get().len()).sum();
    if bytes > MAX_TOOLS_BYTES {
        return Err(ApiError::invalid_request(
            "tools",
            format!(
                "Invalid value for `tools`: they have `{bytes}` bytes. Send at most {MAX_TOOLS_BYTES}."
            ),
        )
        .with_code(code::STRING_ABOVE));
    }
    let mut functions: Vec<FunctionTool> = Vec::with_capacity(list.len());
    let mut search = None;
    for (index, raw) in list.into_iter().enumerate() {
        let path = format!("tools[{index}]");
        match read_tool(&path, raw, form)? {
            Tool::Function(function) => add(&mut functions, function)?,
            Tool::Namespace(members) => {
                for function in members {
                    add(&mut functions, function)?;
                }
            }
            Tool::Search(refusal) => search = Some(refusal),
        }
    }
    match search {
        // Agents offer it with their functions to every server: the answer is as if the model had not searched.
        Some(_) if !functions.is_empty() => ignored.push("tools.web_search"),
        Some(refusal) => return Err(refusal),
        None => {}
    }
    Ok(functions)
}

fn add(functions: &mut Vec<FunctionTool>, function: FunctionTool) -> Result<(), ApiError> {
    if functions.iter().any(|other| other.name == function.name) {
        let param = format!("{}.name", function.path);
        let message = format!(
            "Invalid value for `{param}`: two tools are named `{}`. Send each name once.",
            function.name
        );
        return Err(ApiError::invalid_request(param, message));
    }
    if functions.len() == MAX_TOOLS {
        return Err(reader::too_many("tools", MAX_TOOLS + 1, MAX_TOOLS));
    }
    functions.push(function);
    Ok(())
}

/// One entry of `tools`.
enum Tool {
    Function(FunctionTool),
    /// Functions under a common name, which theirs begin with.
    Namespace(Vec<FunctionTool>),
    /// A search that the server would do, which this one does not. The error says so.
    Search(ApiError),
}

fn read_tool(path: &str, raw: &RawValue, form: Form) -> Result<Tool, ApiError> {
    let mut tool = Fields::of_value(path, raw)?;
    let kind = tool.required_string("type")?;
    match (kind.as_str(), form) {
        ("function", _) => {
            let function = read_function(form.inner(tool, "function")?)?;
            Ok(Tool::Function(function))
        }
        ("custom", _) => custom::read(form.inner(tool, "custom")?, form).map(Tool::Function),
        ("namespace", Form::Flat) => read_namespace(tool).map(Tool::Namespace),
        ("web_search", Form::Flat) => Ok(Tool::Search(unknown_kind(path, &kind))),
        _ => Err(unknown_kind(path, &kind)),
    }
}

fn unknown_kind(path: &str, kind: &str) -> ApiError {
    let message = format!(
        "`{path}` is a tool of type `{}`. Send tools of type `function` or `custom`.",
        reader::shortened(kind)
    );
    ApiError::unsupported(format!("{path}.type"), message).with_code(code::UNSUPPORTED_VALUE)
}

/// The functions and custom tools of a namespace, each under the name that the model is shown.
fn read_namespace(mut fields: Fields<'_>) -> Result<Vec<FunctionTool>, ApiError> {
    let namespace = fields.required_string("name")?;
    let list = fields
        .list("tools", MAX_TOOLS)?
        .ok_or_else(|| fields.missing("tools"))?;
    let members = list.into_iter().enumerate().map(|(index, raw)| {
        let path = format!("{}[{index}]", fields.param("tools"));
        let mut member = Fields::of_value(&path, raw)?;
        let kind = member.required_string("type")?;
        let function = match kind.as_str() {
            "function" => read_function(member)?,
            "custom" => custom::read(member, Form::Flat)?,
            _ => return Err(unknown_kind(&path, &kind)),
        };
        let custom = function.custom;
        let function = FunctionTool::checked(
            (&path, PARAMETERS),
            in_namespace(&namespace, &function.name),
            function.description,
            function.parameters,
            function.strict,
        )?;
        Ok(FunctionTool { custom, ..function })
    });
    members.collect()
}

/// What is between a namespace and the name of a function in it, for the model: every format can write it.
pub(crate) const NAMESPACE_END: &str = "__";

/// The name under which the model calls a function of a namespace.
pub(crate) fn in_namespace(namespace: &str, name: &str) -> String {
    format!("{namespace}{NAMESPACE_END}{name}")
}

fn read_function(mut function: Fields<'_>) -> Result<FunctionTool, ApiError> {
    let path = function.path().to_owned();
    let name = function.required_string("name")?;
    let description = function.string("description")?;
    let strict = function.boolean("strict")?.unwrap_or(false);
    let parameters = match function.take(PARAMETERS) {
        None => None,
        Some(raw) => Some(read_schema(&function.param(PARAMETERS), raw)?),
    };
    FunctionTool::checked((&path, PARAMETERS), name, description, parameters, strict)
}

fn read_schema(param: &str, raw: &RawValue) -> Result<Value, ApiError> {
    let bytes = raw.get().len();
    if bytes > MAX_SCHEMA_BYTES {
        return Err(ApiError::invalid_request(
            param,
            format!(
                "Invalid value for `{param}`: the schema has `{bytes}` bytes. Send at most \
                 {MAX_SCHEMA_BYTES}."
            ),
        )
        .with_code(code::STRING_ABOVE));
    }
    match serde_json::from_str(raw.get()) {
        Ok(Value::Object(schema)) => Ok(Value::Object(schema)),
        _ => Err(reader::wrong_type(
            param,
            "an object with a JSON schema",
            raw,
        )),
    }
}

/// Levels of a value; parsing has bounded them.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(items) => 1 + items.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
