//! The content blocks of a message. Owns their shapes, and which role may send which; how they become messages
//! of a chat is `conversation`'s.

use inflight_openai::bounds::MAX_PARTS;
use inflight_openai::chat::{Image, Role};
use inflight_openai::reader::{self, Fields};
use inflight_openai::{ApiError, IgnoredFields};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::fields;

/// A block that this API's models can read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Block {
    Text(String),
    Image(Image),
    ToolUse {
        id: String,
        name: String,
        input: Map<String, Value>,
    },
    ToolResult {
        /// The path of its `tool_use_id`, for errors.
        param: String,
        id: String,
        content: String,
        is_error: bool,
    },
    Thinking(String),
    /// Nobody here can read it.
    Unreadable,
}

/// Reads the content at `param`: a string, which is one block of text, or a list of blocks that `role` may send.
pub(crate) fn read_content(
    param: &str,
    raw: &RawValue,
    role: Role,
    ignored: &mut IgnoredFields,
) -> Result<Vec<Block>, ApiError> {
    match raw.get().as_bytes().first() {
        Some(b'"') => text(param, raw).map(|text| vec![Block::Text(text)]),
        Some(b'[') => {
            let blocks = reader::list(param, raw, MAX_PARTS)?;
            let blocks = blocks.into_iter().enumerate();
            let read = blocks
                .map(|(index, raw)| read_block(&format!("{param}[{index}]"), raw, role, ignored));
            read.collect()
        }
        _ => Err(reader::wrong_type(
            param,
            "a string or an array of content blocks",
            raw,
        )),
    }
}

/// Reads content that is text alone: a system prompt, or a tool's result. Blocks are joined by a line break, as
/// the parts of a chat message are.
pub(crate) fn read_text(
    param: &str,
    raw: &RawValue,
    ignored: &mut IgnoredFields,
) -> Result<String, ApiError> {
    let blocks = read_content(param, raw, Role::System, ignored)?;
    let texts: Vec<String> = blocks
        .into_iter()
        .filter_map(|block| match block {
            Block::Text(text) => Some(text),
            _ => None,
        })
        .collect();
    Ok(texts.join("\n"))
}

fn text(param: &str, raw: &RawValue) -> Result<String, ApiError> {
    serde_json::from_str(raw.get()).map_err(|_| reader::wrong_type(param, "a string", raw))
}

fn read_block(
    param: &str,
    raw: &RawValue,
    role: Role,
    ignored: &mut IgnoredFields,
) -> Result<Block, ApiError> {
    let mut block = Fields::of_value(param, raw)?;
    let kind = block.required_string("type")?;
    let read = match (kind.as_str(), role) {
        ("text", _) => Block::Text(block.required_string("text")?),
        ("image", Role::User) => Block::Image(read_image(param, &mut block)?),
        ("tool_use", Role::Assistant) => Block::ToolUse {
            id: block.required_string("id")?,
            name: block.required_string("name")?,
            input: block
                .object("input")?
                .ok_or_else(|| block.missing("input"))?,
        },
        ("tool_result", Role::User) => Block::ToolResult {
            param: block.param("tool_use_id"),
            id: block.required_string("tool_use_id")?,
            content: match block.take("content") {
                Some(raw) => read_text(&block.param("content"), raw, ignored)?,
                None => String::new(),
            },
            is_error: block.boolean("is_error")?.unwrap_or(false),
        },
        ("thinking", Role::Assistant) => {
            block.string("signature")?;
            Block::Thinking(block.required_string("thinking")?)
        }
        ("redacted_thinking", Role::Assistant) => Block::Unreadable,
        (kind, role) => return Err(refused(param, kind, role)),
    };
    fields::finish(block, "content.", ignored)?;
    Ok(read)
}

/// What the API's models read.
const MEDIA_TYPES: [&str; 4] = ["image/jpeg", "image/png", "image/gif", "image/webp"];

/// Reads an image's `source`: a file in base64, or a URL.
fn read_image(param: &str, block: &mut Fields<'_>) -> Result<Image, ApiError> {
    let raw = block.require("source")?;
    let mut source = Fields::of_value(&block.param("source"), raw)?;
    let kind = source.required_string("type")?;
    let url = match kind.as_str() {
        "url" => source.required_string("url")?,
        "base64" => {
            let media_type = source.required_string("media_type")?;
            if !MEDIA_TYPES.contains(&media_type.as_str()) {
                let param = source.param("media_type");
                let message = format!(
                    "Invalid value for `{param}`: `{}`. Send `image/jpeg`, `image/png`, `image/gif` or `image/webp`.",
                    reader::shortened(&media_type)
                );
                return Err(ApiError::invalid_request(param, message));
            }
            format!(
                "data:{media_type};base64,{}",
                source.required_string("data")?
            )
        }
        other => {
            let param = source.param("type");
            let message = format!(
                "`{param}` is `{}`, which is not supported. Send a source of type `base64` or `url`.",
                reader::shortened(other)
            );
            return Err(ApiError::unsupported(param, message));
        }
    };
    let path = param.to_owned();
    Ok(Image { path, url })
}

/// The error of a block that is not allowed there.
fn refused(param: &str, kind: &str, role: Role) -> ApiError {
    let known = [
        "image",
        "tool_use",
        "tool_result",
        "thinking",
        "redacted_thinking",
    ];
    let shown = reader::shortened(kind);
    let message = if known.contains(&kind) {
        match role {
            Role::System => {
                format!("`{param}` is a block of type `{shown}`. Send blocks of type `text`.")
            }
            _ => format!(
                "`{param}` is a block of type `{shown}` in a message of the role `{}`. Send it in a message of \
                 the role `{}`.",
                role.as_str(),
                if matches!(kind, "tool_result" | "image") {
                    "user"
                } else {
                    "assistant"
                },
            ),
        }
    } else {
        format!(
            "`{param}` is a block of type `{shown}`, which is not supported. Send blocks of type `text` or `image`."
        )
    };
    ApiError::unsupported(param, message)
}
