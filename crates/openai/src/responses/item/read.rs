//! How the items of `input` are parsed. Owns their bounds and the words of their errors.

use serde_json::value::RawValue;

use super::{
    CallOutput, CustomToolCall, FunctionCall, FunctionCallOutput, InputItem, Item, MessageItem,
    Part, Reasoning, Status, Thought,
};
use crate::bounds::MAX_PARTS;
use crate::chat::{Role, misplaced, take_image};
use crate::error::{ApiError, code};
use crate::fields::Endpoint;
use crate::ignored::IgnoredFields;
use crate::reader::{self, Fields, wrong_type};

/// Bytes of an item's id or of a call's.
const MAX_ID_BYTES: usize = 256;

impl Item {
    /// Reads `input[place]`.
    pub(in crate::responses) fn read(
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
            Some("function_call") => Self::FunctionCall(read_call(&mut fields, id, "arguments")?),
            Some("function_call_output") => {
                Self::FunctionCallOutput(read_output(&mut fields, id, ignored)?)
            }
            Some("custom_tool_call") => {
                Self::CustomToolCall(read_call(&mut fields, id, "input")?.into())
            }
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

/// A call whose text is in `field`.
fn read_call(fields: &mut Fields<'_>, id: String, field: &str) -> Result<FunctionCall, ApiError> {
    Ok(FunctionCall {
        id,
        status: Status::Completed,
        call_id: take_id(fields, "call_id")?.ok_or_else(|| fields.missing("call_id"))?,
        namespace: fields.string("namespace")?,
        name: fields.required_string("name")?,
        arguments: fields.required_string(field)?,
    })
}

impl From<FunctionCall> for CustomToolCall {
    fn from(call: FunctionCall) -> Self {
        Self {
            id: call.id,
            status: call.status,
            call_id: call.call_id,
            namespace: call.namespace,
            name: call.name,
            input: call.arguments,
        }
    }
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
    if let Some(text) = sealed.as_deref().and_then(Reasoning::unsealed)
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
