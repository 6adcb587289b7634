//! One message of a conversation, and how a chat template sees it. Owns roles, content and tool calls
//! of earlier turns; knows only what all templates share.

use schemars::JsonSchema;
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::CUSTOM_INPUT;
use super::image::{self, Image, Part};
use crate::bounds::{MAX_PARTS, MAX_TOOL_CALLS};
use crate::error::{ApiError, code};
use crate::fields::Endpoint;
use crate::ignored::IgnoredFields;
use crate::reader::{self, Fields, wrong_type};

/// Of a role that only a model's chat template knows.
const MAX_ROLE_BYTES: usize = 64;

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    System,
    /// OpenAI's newer name of the system role; templates mostly do not know it.
    Developer,
    User,
    Assistant,
    Tool,
    Function,
    /// One that only the model's chat template knows, such as `document`; a message has its name.
    #[serde(skip)]
    Custom,
}

impl Role {
    const ALL: [Self; 6] = [
        Self::System,
        Self::Developer,
        Self::User,
        Self::Assistant,
        Self::Tool,
        Self::Function,
    ];

    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
            Self::Function => "function",
            Self::Custom => "custom",
        }
    }
}

/// A message. Serializes to what chat templates read: `role`, `content` (a string, or a list of parts where there are
/// images) and, where there are some, `name`, `tool_calls`, `tool_call_id`, `reasoning_content`.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub role: Role,
    /// The name of a [`Role::Custom`].
    pub custom_role: Option<Box<str>>,
    /// Text parts are joined by a line break, null is empty: a template that expects a string fails
    /// on anything else.
    pub content: String,
    /// Where the second text part starts in `content`, and each one after it.
    pub breaks: Vec<usize>,
    /// The parts in their order, where an image is among them; else empty.
    pub parts: Vec<Part>,
    pub name: Option<String>,
    /// Of an assistant's earlier turn; `function_call` of the old API is one call here.
    pub tool_calls: Vec<ToolCall>,
    pub tool_call_id: Option<String>,
    /// An assistant's earlier reasoning, which some templates render.
    pub reasoning_content: Option<String>,
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(untagged)]
        enum Content<'a> {
            Text(&'a str),
            Parts(&'a [Part]),
        }
        #[derive(Serialize)]
        struct Seen<'a> {
            role: &'a str,
            content: Content<'a>,
            #[serde(skip_serializing_if = "Option::is_none")]
            name: Option<&'a str>,
            #[serde(skip_serializing_if = "<[ToolCall]>::is_empty")]
            tool_calls: &'a [ToolCall],
            #[serde(skip_serializing_if = "Option::is_none")]
            tool_call_id: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            reasoning_content: Option<&'a str>,
        }
        let seen = Seen {
            role: self.role_name(),
            content: match self.parts.as_slice() {
                [] => Content::Text(&self.content),
                parts => Content::Parts(parts),
            },
            name: self.name.as_deref(),
            tool_calls: &self.tool_calls,
            tool_call_id: self.tool_call_id.as_deref(),
            reasoning_content: self.reasoning_content.as_deref(),
        };
        seen.serialize(serializer)
    }
}

impl Message {
    /// A message of text alone.
    pub fn new(role: Role, content: String) -> Self {
        Self {
            role,
            custom_role: None,
            content,
            breaks: Vec::new(),
            parts: Vec::new(),
            name: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            reasoning_content: None,
        }
    }

    /// A message of these parts: a text, unless an image is among them.
    pub fn of_parts(role: Role, mut parts: Vec<Part>) -> Self {
        if let [Part::Text(text)] = parts.as_mut_slice() {
            return Self::new(role, std::mem::take(text));
        }
        let texts = parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            Part::Image(_) => None,
        });
        let texts: Vec<&str> = texts.collect();
        let (content, has_images) = (texts.join("\n"), texts.len() < parts.len());
        let ends = texts.iter().scan(0, |end, text| {
            *end += text.len() + 1;
            Some(*end)
        });
        Self {
            breaks: ends.take(texts.len().saturating_sub(1)).collect(),
            parts: if has_images { parts } else { Vec::new() },
            ..Self::new(role, content)
        }
    }

    /// Adds an image after what the message has.
    pub fn add_image(&mut self, image: Image) {
        if self.parts.is_empty() && !self.content.is_empty() {
            self.parts.push(Part::Text(self.content.clone()));
        }
        self.parts.push(Part::Image(image));
    }

    /// Adds text after what the message has.
    pub fn add_text(&mut self, text: &str) {
        if !self.parts.is_empty() && !text.is_empty() {
            self.parts.push(Part::Text(text.to_owned()));
        }
        if !self.content.is_empty() && !text.is_empty() {
            self.content.push('\n');
            self.breaks.push(self.content.len());
        }
        self.content.push_str(text);
    }

    /// The text parts in their order; none where the text is empty.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let starts = [0].into_iter().chain(self.breaks.iter().copied());
        let ends = self.breaks.iter().map(|start| start - 1);
        let spans = starts.zip(ends.chain([self.content.len()]));
        let texts = spans.filter_map(|(start, end)| self.content.get(start..end));
        texts.filter(|_| !self.content.is_empty())
    }

    /// The role's name.
    pub fn role_name(&self) -> &str {
        self.custom_role.as_deref().unwrap_or(self.role.as_str())
    }

    /// The images, in their order.
    pub fn images(&self) -> impl Iterator<Item = &Image> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Image(image) => Some(image),
        })
    }
}

/// A call that the assistant made in an earlier turn.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToolCall {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Always `function`.
    #[serde(rename = "type")]
    pub call_type: &'static str,
    pub function: Function,
}

/// Which function, and with what.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Function {
    pub name: String,
    /// The object that the client's JSON text holds, as templates expect; the text itself if it holds
    /// none.
    pub arguments: Value,
}

impl Message {
    /// Reads `messages[index]`.
    pub(super) fn read(
        index: usize,
        raw: &RawValue,
        ignored: &mut IgnoredFields,
    ) -> Result<Self, ApiError> {
        let path = format!("messages[{index}]");
        let mut fields = Fields::of_value(&path, raw)?;
        let (role, custom_role) = read_role(&mut fields)?;
        let content = read_content(&mut fields, role, ignored)?;
        let name = fields.string("name")?;
        if role == Role::Function && name.is_none() {
            return Err(fields.missing("name"));
        }
        let tool_call_id = fields.string("tool_call_id")?;
        if role == Role::Tool && tool_call_id.is_none() {
            return Err(fields.missing("tool_call_id"));
        }
        let mut tool_calls = Vec::new();
        let calls = fields
            .list("tool_calls", MAX_TOOL_CALLS)?
            .unwrap_or_default();
        for (call, raw) in calls.into_iter().enumerate() {
            tool_calls.push(ToolCall::read(&format!("{path}.tool_calls[{call}]"), raw)?);
        }
        if let Some(raw) = fields.take("function_call") {
            let function = Function::read(&fields.param("function_call"), raw)?;
            tool_calls.push(ToolCall {
                id: None,
                call_type: "function",
                function,
            });
        }
        // A refusal is what the assistant said in place of content.
        let refusal = fields.string("refusal")?;
        // The second is the newer name in vLLM.
        let reasoning_content = fields.string("reasoning_content")?;
        let reasoning = fields.string("reasoning")?;
        let reasoning_content = reasoning_content.or(reasoning);
        let content = content.or(refusal.map(|text| vec![Part::Text(text)]));
        if content.is_none() && role != Role::Assistant {
            return Err(fields.missing("content"));
        }
        fields.finish(Endpoint::Chat, "messages.", ignored)?;
        Ok(Self {
            custom_role,
            name,
            tool_calls,
            tool_call_id,
            reasoning_content,
            ..Self::of_parts(role, content.unwrap_or_default())
        })
    }
}

/// A role, and its name where it is none of OpenAI's: some models were trained with others.
fn read_role(fields: &mut Fields<'_>) -> Result<(Role, Option<Box<str>>), ApiError> {
    let word = fields.required_string("role")?;
    if let Some(role) = Role::ALL.into_iter().find(|role| role.as_str() == word) {
        return Ok((role, None));
    }
    if let Some(meant) = reader::nearest(&word, Role::ALL.map(Role::as_str).into_iter()) {
        let param = fields.param("role");
        let message = format!(
            "Invalid value for `{param}`: `{}`. Did you mean `{meant}`?",
            reader::shortened(&word)
        );
        return Err(ApiError::invalid_request(param, message));
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if word.is_empty() || word.len() > MAX_ROLE_BYTES || !word.bytes().all(is_plain) {
        let param = fields.param("role");
        let message = format!(
            "Invalid value for `{param}`: `{}`. Send `system`, `developer`, `user`, `assistant`, `tool`, `function`, or \
             another role that the model knows, of 1 to {MAX_ROLE_BYTES} letters, digits, underscores or dashes.",
            reader::shortened(&word)
        );
        return Err(ApiError::invalid_request(param, message));
    }
    Ok((Role::Custom, Some(word.into())))
}

/// A string, null, or a list of parts; `None` if the field is absent, or null for an assistant.
fn read_content(
    fields: &mut Fields<'_>,
    role: Role,
    ignored: &mut IgnoredFields,
) -> Result<Option<Vec<Part>>, ApiError> {
    let param = fields.param("content");
    if !fields.has("content") {
        return Ok(None);
    }
    let Some(raw) = fields.take("content") else {
        return Ok((role != Role::Assistant).then(Vec::new));
    };
    match raw.get().as_bytes().first() {
        Some(b'"') => serde_json::from_str(raw.get())
            .map(|text| Some(vec![Part::Text(text)]))
            .map_err(|_| wrong_type(&param, "a string", raw)),
        Some(b'[') => {
            let mut parts = Vec::new();
            for (part, raw) in reader::list(&param, raw, MAX_PARTS)?
                .into_iter()
                .enumerate()
            {
                parts.push(read_part(&format!("{param}[{part}]"), raw, role, ignored)?);
            }
            Ok(Some(parts))
        }
        _ => Err(wrong_type(&param, "a string or an array of parts", raw)),
    }
}

fn read_part(
    path: &str,
    raw: &RawValue,
    role: Role,
    ignored: &mut IgnoredFields,
) -> Result<Part, ApiError> {
    // Some clients put bare strings in the list.
    if let Ok(text) = serde_json::from_str::<String>(raw.get()) {
        return Ok(Part::Text(text));
    }
    let mut part = Fields::of_value(path, raw)?;
    let kind = part.required_string("type")?;
    let field = match kind.as_str() {
        "text" | "input_text" | "output_text" => "text",
        "refusal" => "refusal",
        // The second is the name in `/v1/responses`.
        "image_url" | "input_image" if role == Role::User => {
            let (image, _) = image::take(
                path,
                &mut part,
                "messages.content.image_url.detail",
                ignored,
            )?;
            return Ok(Part::Image(image));
        }
        "image_url" | "input_image" => return Err(image::misplaced(path, &kind, role.as_str())),
        other => {
            return Err(ApiError::unsupported(
                path,
                format!(
                    "`{path}` is a part of type `{}`, which is not supported. Send parts of type `text` or \
                     `image_url`.",
                    reader::shortened(other)
                ),
            )
            .with_code(code::UNSUPPORTED_VALUE));
        }
    };
    let text = part.string(field)?.ok_or_else(|| part.missing(field))?;
    Ok(Part::Text(text))
}

impl ToolCall {
    fn read(path: &str, raw: &RawValue) -> Result<Self, ApiError> {
        let mut fields = Fields::of_value(path, raw)?;
        let id = fields.string("id")?;
        let kind = fields.string("type")?;
        let function = match kind.as_deref() {
            None | Some("function") => {
                let function = fields.require("function")?;
                Function::read(&format!("{path}.function"), function)?
            }
            Some("custom") => {
                let path = format!("{path}.custom");
                let mut custom = Fields::of_value(&path, fields.require("custom")?)?;
                let mut text = |name: &str| custom.required_string(name);
                Function::custom(text("name")?, text("input")?)
            }
            Some(kind) => {
                let message = format!(
                    "`{path}` is a call of type `{}`. Send calls of type `function` or `custom`.",
                    reader::shortened(kind)
                );
                return Err(ApiError::unsupported(path, message).with_code(code::UNSUPPORTED_VALUE));
            }
        };
        Ok(Self {
            id,
            call_type: "function",
            function,
        })
    }
}

impl Function {
    /// The call of a custom tool, as the model made it.
    pub(crate) fn custom(name: String, input: String) -> Self {
        Self {
            name,
            arguments: json!({ CUSTOM_INPUT: input }),
        }
    }

    fn read(path: &str, raw: &RawValue) -> Result<Self, ApiError> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Arguments {
            Text(String),
            Object(serde_json::Map<String, Value>),
        }
        let mut fields = Fields::of_value(path, raw)?;
        let name = fields.required_string("name")?;
        let arguments = match fields.take("arguments") {
            None => Value::Object(serde_json::Map::new()),
            Some(raw) => match serde_json::from_str(raw.get()) {
                Ok(Arguments::Object(object)) => Value::Object(object),
                Ok(Arguments::Text(text)) => match serde_json::from_str(&text) {
                    Ok(Value::Object(object)) => Value::Object(object),
                    _ => Value::String(text),
                },
                Err(_) => {
                    let param = fields.param("arguments");
                    return Err(wrong_type(&param, "a string of JSON", raw));
                }
            },
        };
        Ok(Self { name, arguments })
    }
}
