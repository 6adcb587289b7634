//! The items of a conversation: what clients send in `input`, and what a response's `output` lists. Owns their
//! shapes and their parsing; what a model reads of them is `messages`'.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::bounds::MAX_PARTS;
use crate::chat::{Detail, Role, misplaced, take_image};
use crate::error::{ApiError, code};
use crate::fields::Endpoint;
use crate::ignored::IgnoredFields;
use crate::logprobs::TokenLogprob;
use crate::reader::{self, Fields, wrong_type};

/// Bytes of an item's id or of a call's.
const MAX_ID_BYTES: usize = 256;

/// One item of `input`.
#[derive(Clone, Debug, PartialEq)]
pub enum InputItem {
    Item(Item),
    /// An item of an earlier response, by its id; the number is its place in `input`.
    Reference {
        place: usize,
        id: String,
    },
}

/// One item of a conversation. Serializes as the API lists it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Item {
    Message(MessageItem),
    FunctionCall(FunctionCall),
    FunctionCallOutput(FunctionCallOutput),
    CustomToolCall(CustomToolCall),
    /// As of a function.
    CustomToolCallOutput(FunctionCallOutput),
    Reasoning(Reasoning),
}

/// How far an item came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    InProgress,
    Completed,
    Incomplete,
}

/// What somebody said.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MessageItem {
    pub id: String,
    pub status: Status,
    pub role: Role,
    pub content: Vec<Part>,
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    InputText {
        text: String,
    },
    InputImage {
        detail: Detail,
        image_url: String,
        /// Where it was in its request, for errors.
        #[serde(skip)]
        path: String,
    },
    OutputText {
        /// Always empty: nothing is cited.
        annotations: [(); 0],
        logprobs: Vec<TokenLogprob>,
        text: String,
    },
    Refusal {
        refusal: String,
    },
}

impl Part {
    /// What a model wrote.
    pub(crate) fn output(text: String, logprobs: Vec<TokenLogprob>) -> Self {
        Self::OutputText {
            annotations: [],
            logprobs,
            text,
        }
    }

    /// Its text; an image has none.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::InputText { text } | Self::OutputText { text, .. } => text,
            Self::Refusal { refusal } => refusal,
            Self::InputImage { .. } => "",
        }
    }
}

/// A call that the model made.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct FunctionCall {
    pub id: String,
    pub status: Status,
    pub call_id: String,
    /// What the function's tool is part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    /// JSON, as the model wrote it.
    pub arguments: String,
}

/// A call of a custom tool, which takes a text.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CustomToolCall {
    pub id: String,
    pub status: Status,
    pub call_id: String,
    /// What the tool is part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    pub input: String,
}

/// What a call returned.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct FunctionCallOutput {
    pub id: String,
    pub status: Status,
    pub call_id: String,
    pub output: CallOutput,
}

/// A text, or parts of it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum CallOutput {
    Text(String),
    Parts(Vec<Part>),
}

/// What the model thought before it answered.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Reasoning {
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    pub summary: Vec<Thought>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<Thought>,
    /// Only where the request asks for it; see [`Reasoning::sealed`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted_content: Option<String>,
}

/// What `encrypted_content` begins with if it is ours.
const SEAL: &str = "inflight:";

impl Reasoning {
    /// `encrypted_content` of this text. Clients that keep the conversation themselves send it back and leave the
    /// text out; it is the text itself, which the client has seen, and nothing is encrypted.
    pub(super) fn sealed(text: &str) -> String {
        format!("{SEAL}{text}")
    }
}

/// A part of the reasoning.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Thought {
    SummaryText { text: String },
    ReasoningText { text: String },
}

impl Thought {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::SummaryText { text } | Self::ReasoningText { text } => text,
        }
    }
}

impl Item {
    /// The item's id; empty until it has one.
    pub fn id(&self) -> &str {
        match self {
            Self::Message(item) => &item.id,
            Self::FunctionCall(item) => &item.id,
            Self::FunctionCallOutput(item) | Self::CustomToolCallOutput(item) => &item.id,
            Self::CustomToolCall(item) => &item.id,
            Self::Reasoning(item) => &item.id,
        }
    }

    /// Gives the item an id, unless its client did. `new` takes the prefix that ids of its kind have.
    pub fn name_with(&mut self, new: impl FnOnce(&'static str) -> String) {
        let (id, prefix) = match self {
            Self::Message(item) => (&mut item.id, "msg"),
            Self::FunctionCall(item) => (&mut item.id, "fc"),
            Self::FunctionCallOutput(item) => (&mut item.id, "fco"),
            Self::CustomToolCall(item) => (&mut item.id, "ctc"),
            Self::CustomToolCallOutput(item) => (&mut item.id, "ctco"),
            Self::Reasoning(item) => (&mut item.id, "rs"),
        };
        if id.is_empty() {
            *id = new(prefix);
        }
    }

    /// Forgets log probabilities, which are of no use to a later answer.
    pub fn forget_logprobs(&mut self) {
        if let Self::Message(message) = self {
            for part in &mut message.content {
                if let Part::OutputText { logprobs, .. } = part {
                    *logprobs = Vec::new();
                }
            }
        }
    }

    /// About how many bytes of memory the item takes.
    pub fn weight(&self) -> usize {
        let content = match self {
            Self::Message(item) => item.content.iter().map(part_weight).sum(),
            Self::FunctionCall(item) => {
                let namespace = item.namespace.as_deref().unwrap_or_default();
                item.call_id.len() + namespace.len() + item.name.len() + item.arguments.len()
            }
            Self::CustomToolCall(item) => {
                let namespace = item.namespace.as_deref().unwrap_or_default();
                item.call_id.len() + namespace.len() + item.name.len() + item.input.len()
            }
            Self::FunctionCallOutput(item) | Self::CustomToolCallOutput(item) => {
                item.call_id.len()
                    + match &item.output {
                        CallOutput::Text(text) => text.len(),
                        CallOutput::Parts(parts) => parts.iter().map(part_weight).sum(),
                    }
            }
            Self::Reasoning(item) => {
                let thoughts = item.summary.iter().chain(&item.content);
                thoughts
                    .map(|thought| thought.text().len() + size_of::<Thought>())
                    .sum()
            }
        };
        size_of::<Self>() + self.id().len() + content
    }

    /// Reads `input[place]`.
    pub(super) fn read(
        path: &str,
        place: usize,
        raw: &RawValue,
        ignored: &mut IgnoredFields,
    ) -> Result<InputItem, ApiError> {
        let mut fields = Fields::of_value(path, raw)?;
        let kind = fields.string("type")?;
        let id = take_id(&mut fields, "id")?.unwrap_or_default();
        // Of an item that an earlier answer listed; what it says is in its other fields.
        fields.take("status");
        let item = match kind.as_deref() {
            None | Some("message") => Self::Message(read_message(&mut fields, id, ignored)?),
            Some("function_call") => Self::FunctionCall(read_call(&mut fields, id)?),
            Some("function_call_output") => {
                Self::FunctionCallOutput(read_output(&mut fields, id, ignored)?)
            }
            Some("custom_tool_call") => Self::CustomToolCall(read_custom_call(&mut fields, id)?),
            Some("custom_tool_call_output") => {
                Self::CustomToolCallOutput(read_output(&mut fields, id, ignored)?)
            }
            Some("reasoning") => Self::Reasoning(read_reasoning(&mut fields, id)?),
            Some("item_reference") if id.is_empty() => return Err(fields.missing("id")),
            Some("item_reference") => {
                fields.finish(Endpoint::Responses, "input.", ignored)?;
                return Ok(InputItem::Reference { place, id });
            }
            Some(other) => {
                return Err(ApiError::unsupported(
                    path,
                    format!(
                        "`{path}` is an item of type `{}`, which is not supported. Send items of type \
                         `message`, `function_call`, `function_call_output`, `custom_tool_call`, \
                         `custom_tool_call_output`, `reasoning` or `item_reference`.",
                        reader::shortened(other)
                    ),
                )
                .with_code(code::UNSUPPORTED_VALUE));
            }
        };
        fields.finish(Endpoint::Responses, "input.", ignored)?;
        Ok(InputItem::Item(item))
    }

    /// A text that the user says.
    pub(super) fn user(text: String) -> Self {
        Self::Message(MessageItem {
            id: String::new(),
            status: Status::Completed,
            role: Role::User,
            content: vec![Part::InputText { text }],
        })
    }
}

fn part_weight(part: &Part) -> usize {
    let more = match part {
        Part::OutputText { logprobs, .. } => logprobs.len() * 64,
        Part::InputImage {
            image_url, path, ..
        } => image_url.len() + path.len(),
        _ => 0,
    };
    size_of::<Part>() + part.text().len() + more
}

fn take_id(fields: &mut Fields<'_>, name: &str) -> Result<Option<String>, ApiError> {
    let id = fields.string(name)?;
    match &id {
        Some(id) if id.len() > MAX_ID_BYTES => {
            let param = fields.param(name);
            let message = format!(
                "Invalid value for `{param}`: it has `{}` bytes. Send at most {MAX_ID_BYTES}.",
                id.len()
            );
            Err(ApiError::invalid_request(param, message).with_code(code::STRING_ABOVE))
        }
        _ => Ok(id),
    }
}

fn read_message(
    fields: &mut Fields<'_>,
    id: String,
    ignored: &mut IgnoredFields,
) -> Result<MessageItem, ApiError> {
    // A label that some models give their own messages.
    fields.take("phase");
    let word = fields.required_string("role")?;
    let roles = [Role::User, Role::Assistant, Role::System, Role::Developer];
    let role = roles.into_iter().find(|role| role.as_str() == word);
    let role = role.ok_or_else(|| {
        let param = fields.param("role");
        let message = format!(
            "Invalid value for `{param}`: `{}`. Send `user`, `assistant`, `system` or `developer`.",
            reader::shortened(&word)
        );
        ApiError::invalid_request(param, message)
    })?;
    let content = fields.require("content")?;
    let param = fields.param("content");
    Ok(MessageItem {
        id,
        status: Status::Completed,
        role,
        content: match read_content(&param, content, role, ignored)? {
            CallOutput::Parts(parts) => parts,
            CallOutput::Text(text) if role == Role::Assistant => {
                vec![Part::output(text, Vec::new())]
            }
            CallOutput::Text(text) => vec![Part::InputText { text }],
        },
    })
}

/// A string or a list of parts.
fn read_content(
    param: &str,
    raw: &RawValue,
    role: Role,
    ignored: &mut IgnoredFields,
) -> Result<CallOutput, ApiError> {
    match raw.get().as_bytes().first() {
        Some(b'"') => serde_json::from_str(raw.get())
            .map(CallOutput::Text)
            .map_err(|_| wrong_type(param, "a string", raw)),
        Some(b'[') => {
            let parts = reader::list(param, raw, MAX_PARTS)?.into_iter().enumerate();
            let parts =
                parts.map(|(part, raw)| read_part(&format!("{param}[{part}]"), raw, role, ignored));
            parts.collect::<Result<_, _>>().map(CallOutput::Parts)
        }
        _ => Err(wrong_type(param, "a string or an array of parts", raw)),
    }
}

fn read_part(
    path: &str,
    raw: &RawValue,
    role: Role,
    ignored: &mut IgnoredFields,
) -> Result<Part, ApiError> {
    let mut part = Fields::of_value(path, raw)?;
    let kind = part.required_string("type")?;
    if kind == "input_image" {
        if role != Role::User {
            return Err(misplaced(path, &kind, role.as_str()));
        }
        let (image, detail) = take_image(path, &mut part, "input.content.detail", ignored)?;
        return Ok(Part::InputImage {
            detail,
            image_url: image.url,
            path: image.path,
        });
    }
    let mut text = |name: &str| part.required_string(name);
    match kind.as_str() {
        "input_text" | "text" => text("text").map(|text| Part::InputText { text }),
        "output_text" => text("text").map(|text| Part::output(text, Vec::new())),
        "refusal" => text("refusal").map(|refusal| Part::Refusal { refusal }),
        other => Err(ApiError::unsupported(
            path,
            format!(
                "`{path}` is a part of type `{}`, which is not supported. Send parts of type `input_text`, \
                 `output_text` or `input_image`.",
                reader::shortened(other)
            ),
        )
        .with_code(code::UNSUPPORTED_VALUE)),
    }
}

fn read_call(fields: &mut Fields<'_>, id: String) -> Result<FunctionCall, ApiError> {
    Ok(FunctionCall {
        id,
        status: Status::Completed,
        call_id: take_id(fields, "call_id")?.ok_or_else(|| fields.missing("call_id"))?,
        namespace: fields.string("namespace")?,
        name: fields.required_string("name")?,
        arguments: fields.required_string("arguments")?,
    })
}

fn read_custom_call(fields: &mut Fields<'_>, id: String) -> Result<CustomToolCall, ApiError> {
    Ok(CustomToolCall {
        id,
        status: Status::Completed,
        call_id: take_id(fields, "call_id")?.ok_or_else(|| fields.missing("call_id"))?,
        namespace: fields.string("namespace")?,
        name: fields.required_string("name")?,
        input: fields.required_string("input")?,
    })
}

fn read_output(
    fields: &mut Fields<'_>,
    id: String,
    ignored: &mut IgnoredFields,
) -> Result<FunctionCallOutput, ApiError> {
    let call_id = take_id(fields, "call_id")?.ok_or_else(|| fields.missing("call_id"))?;
    let raw = fields.require("output")?;
    Ok(FunctionCallOutput {
        id,
        status: Status::Completed,
        call_id,
        output: read_content(&fields.param("output"), raw, Role::Tool, ignored)?,
    })
}

fn read_reasoning(fields: &mut Fields<'_>, id: String) -> Result<Reasoning, ApiError> {
    let sealed = fields.string("encrypted_content")?;
    let mut thoughts = |name: &str, kind: &str| -> Result<Vec<String>, ApiError> {
        let list = fields.list(name, MAX_PARTS)?.unwrap_or_default();
        let path = fields.param(name);
        let texts = list.into_iter().enumerate().map(|(place, raw)| {
            let path = format!("{path}[{place}]");
            let mut part = Fields::of_value(&path, raw)?;
            match part.string("type")? {
                Some(found) if found == kind => part.required_string("text"),
                found => Err(ApiError::invalid_request(
                    part.param("type"),
                    format!(
                        "Invalid value for `{path}.type`: `{}`. Send `{kind}`.",
                        reader::shortened(&found.unwrap_or_default())
                    ),
                )),
            }
        });
        texts.collect()
    };
    let summary = thoughts("summary", "summary_text")?.into_iter();
    let mut content = thoughts("content", "reasoning_text")?;
    // Nobody else can read another server's.
    if let Some(text) = sealed.as_deref().and_then(|text| text.strip_prefix(SEAL))
        && content.is_empty()
    {
        content.push(text.to_owned());
    }
    Ok(Reasoning {
        id,
        status: None,
        summary: summary.map(|text| Thought::SummaryText { text }).collect(),
        content: content
            .into_iter()
            .map(|text| Thought::ReasoningText { text })
            .collect(),
        encrypted_content: None,
    })
}
