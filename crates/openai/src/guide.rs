//! Structured output as requests ask for it: OpenAI's `response_format` and the forms of vLLM, SGLang and
//! `trtllm-serve`. Owns their shapes, and that a request uses only one; knows not whether a schema, a
//! regular expression or a grammar can be followed.

use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::{ApiError, code};
use crate::fields::Endpoint;
use crate::ignored::IgnoredFields;
use crate::reader::{self, Fields, wrong_type};

/// Bytes of a guide: what an executor compiles within a fraction of a second.
const MAX_GUIDE_BYTES: usize = 64 * 1024;
/// Texts of `guided_choice`.
const MAX_CHOICES: usize = 4_096;
/// Any object. The second word is for executors that allow no property by default.
const ANY_OBJECT: &str = r#"{"type":"object","additionalProperties":true}"#;

/// What an answer must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guide {
    pub kind: GuideKind,
    pub text: Arc<str>,
    /// The field that asked for it, for errors: `response_format`.
    pub param: &'static str,
}

impl Guide {
    /// A guide to a JSON schema that the field `param` asks for and that is at `path`.
    ///
    /// # Errors
    /// 400: it is not an object, or too large.
    pub fn json_schema(param: &'static str, path: &str, raw: &RawValue) -> Result<Self, ApiError> {
        schema(param, path, raw)
    }
}

/// TensorRT-LLM's guide types, but for `json`, which a schema can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GuideKind {
    JsonSchema,
    Regex,
    Grammar,
    StructuralTag,
}

impl GuideKind {
    /// TensorRT-LLM's name of the type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::JsonSchema => "json_schema",
            Self::Regex => "regex",
            Self::Grammar => "ebnf_grammar",
            Self::StructuralTag => "structural_tag",
        }
    }
}

/// Where a form is read: the endpoint, and what was ignored so far.
struct Place<'a> {
    endpoint: Endpoint,
    ignored: &'a mut IgnoredFields,
}

type Read = fn(&'static str, &RawValue, &mut Place<'_>) -> Result<Option<Guide>, ApiError>;

/// The fields, each with its reader.
const FORMS: [(&str, Read); 10] = [
    ("response_format", response_format),
    ("structured_outputs", structured_outputs),
    ("guided_json", |param, raw, _| {
        schema(param, param, raw).map(Some)
    }),
    ("guided_regex", |param, raw, _| {
        text(param, param, GuideKind::Regex, raw).map(Some)
    }),
    ("guided_choice", |param, raw, _| {
        choice(param, param, raw).map(Some)
    }),
    ("guided_grammar", |param, raw, _| {
        text(param, param, GuideKind::Grammar, raw).map(Some)
    }),
    ("structural_tag", |param, raw, _| {
        structural_tag(param, param, raw).map(Some)
    }),
    ("json_schema", |param, raw, _| {
        schema(param, param, raw).map(Some)
    }),
    ("regex", |param, raw, _| {
        text(param, param, GuideKind::Regex, raw).map(Some)
    }),
    ("ebnf", |param, raw, _| {
        text(param, param, GuideKind::Grammar, raw).map(Some)
    }),
];

/// Takes the guide, whichever field has it.
///
/// # Errors
/// The field's value is malformed, or two fields ask for a guide.
pub(crate) fn take(
    fields: &mut Fields<'_>,
    endpoint: Endpoint,
    ignored: &mut IgnoredFields,
) -> Result<Option<Guide>, ApiError> {
    let mut place = Place { endpoint, ignored };
    let mut found: Option<Guide> = None;
    for (name, read) in FORMS {
        let Some(raw) = fields.take(name) else {
            continue;
        };
        let Some(guide) = read(name, raw, &mut place)? else {
            continue;
        };
        if let Some(other) = &found {
            // Some clients send each of vLLM's forms, for whichever version they meet.
            if other.kind == guide.kind && other.text == guide.text {
                continue;
            }
            return Err(conflict(name, other.param, name));
        }
        found = Some(guide);
    }
    Ok(found)
}

/// Reads `text.format` of `/v1/responses`: `response_format` with the schema's fields one level up.
///
/// # Errors
/// The field's value is malformed, or another field asks for a guide: `other`.
pub(crate) fn text_format(
    raw: &RawValue,
    other: Option<&Guide>,
    ignored: &mut IgnoredFields,
) -> Result<Option<Guide>, ApiError> {
    let param = "text.format";
    let mut format = Fields::of_value(param, raw)?;
    let kind = format.required_string("type")?;
    let found = match kind.as_str() {
        "text" => None,
        "json_object" => Some(guide(param, param, GuideKind::JsonSchema, ANY_OBJECT)?),
        "json_schema" => {
            named(&mut format)?;
            let raw = format.require("schema")?;
            Some(schema(param, "text.format.schema", raw)?)
        }
        other => {
            return Err(ApiError::invalid_request(
                "text.format.type",
                format!(
                    "Invalid value for `text.format.type`: `{}`. Send `text`, `json_object` or `json_schema`.",
                    reader::shortened(other)
                ),
            )
            .with_code(code::INVALID_VALUE));
        }
    };
    format.finish(Endpoint::Responses, "text.format.", ignored)?;
    match (&found, other) {
        (Some(_), Some(other)) => Err(conflict(param, other.param, param)),
        _ => Ok(found),
    }
}

fn conflict(param: &str, one: &str, other: &str) -> ApiError {
    ApiError::invalid_request(
        param,
        format!("`{one}` and `{other}` both constrain the output. Send only one."),
    )
}

fn response_format(
    param: &'static str,
    raw: &RawValue,
    place: &mut Place<'_>,
) -> Result<Option<Guide>, ApiError> {
    let mut format = Fields::of_value(param, raw)?;
    let kind = format.required_string("type")?;
    let guide = match kind.as_str() {
        "text" => None,
        "json_object" => Some(match format.take("schema") {
            Some(raw) => schema(param, "response_format.schema", raw)?,
            None => guide(param, param, GuideKind::JsonSchema, ANY_OBJECT)?,
        }),
        "json" => {
            let raw = format.require("schema")?;
            Some(schema(param, "response_format.schema", raw)?)
        }
        "json_schema" => Some(named_schema(param, format.require("json_schema")?, place)?),
        "regex" => {
            let raw = format.require("regex")?;
            Some(text(param, "response_format.regex", GuideKind::Regex, raw)?)
        }
        "ebnf" => {
            let raw = format.require("ebnf")?;
            Some(text(
                param,
                "response_format.ebnf",
                GuideKind::Grammar,
                raw,
            )?)
        }
        "structural_tag" => return structural_tag(param, param, raw).map(Some),
        other => {
            return Err(ApiError::invalid_request(
                "response_format.type",
                format!(
                    "Invalid value for `response_format.type`: `{}`. Send `text`, `json_object`, \
                     `json_schema`, `json`, `regex`, `ebnf` or `structural_tag`.",
                    reader::shortened(other)
                ),
            )
            .with_code(code::INVALID_VALUE));
        }
    };
    format.finish(place.endpoint, "response_format.", place.ignored)?;
    Ok(guide)
}

/// Keys that show a bare schema in the place where OpenAI has an object with a name and a schema, as `trtllm-serve`
/// accepts it.
const SCHEMA_KEYWORDS: [&str; 10] = [
    "type",
    "properties",
    "items",
    "enum",
    "const",
    "$ref",
    "$defs",
    "anyOf",
    "allOf",
    "oneOf",
];

/// OpenAI's `json_schema`: the name is for the model's maker, and every schema is followed, strict or not.
fn named_schema(
    param: &'static str,
    raw: &RawValue,
    place: &mut Place<'_>,
) -> Result<Guide, ApiError> {
    let mut format = Fields::of_value("response_format.json_schema", raw)?;
    let is_bare = !format.has("name") && !format.has("schema");
    if is_bare && SCHEMA_KEYWORDS.iter().any(|keyword| format.has(keyword)) {
        return schema(param, "response_format.json_schema", raw);
    }
    named(&mut format)?;
    let guide = match format.take("schema") {
        Some(raw) => schema(param, "response_format.json_schema.schema", raw)?,
        None => guide(param, param, GuideKind::JsonSchema, ANY_OBJECT)?,
    };
    format.finish(
        place.endpoint,
        "response_format.json_schema.",
        place.ignored,
    )?;
    Ok(guide)
}

/// Takes what a named schema has besides the schema.
fn named(format: &mut Fields<'_>) -> Result<(), ApiError> {
    let name = format.required_string("name")?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.is_empty() || name.len() > 64 || !name.bytes().all(is_plain) {
        let param = format.param("name");
        let message = format!(
            "Invalid value for `{param}`: `{}`. Send 1 to 64 letters, digits, underscores or dashes.",
            reader::shortened(&name)
        );
        return Err(ApiError::invalid_request(param, message).with_code(code::INVALID_VALUE));
    }
    format.string("description")?;
    format.boolean("strict")?;
    Ok(())
}

/// vLLM's form: an object with exactly one kind of guide.
fn structured_outputs(
    param: &'static str,
    raw: &RawValue,
    place: &mut Place<'_>,
) -> Result<Option<Guide>, ApiError> {
    let mut outputs = Fields::of_value(param, raw)?;
    let is_bare = outputs.is_empty();
    let mut found: Option<(&str, Guide)> = None;
    for name in ["json", "regex", "choice", "grammar", "structural_tag"] {
        let Some(raw) = outputs.take(name) else {
            continue;
        };
        let path = outputs.param(name);
        let read = match name {
            "json" => schema(param, &path, raw),
            "regex" => text(param, &path, GuideKind::Regex, raw),
            "choice" => choice(param, &path, raw),
            "grammar" => text(param, &path, GuideKind::Grammar, raw),
            _ => structural_tag(param, &path, raw),
        };
        add(&mut found, name, read?)?;
    }
    if outputs.boolean("json_object")? == Some(true) {
        let any = guide(param, param, GuideKind::JsonSchema, ANY_OBJECT)?;
        add(&mut found, "json_object", any)?;
    }
    outputs.finish(place.endpoint, "structured_outputs.", place.ignored)?;
    if found.is_none() && !is_bare {
        return Err(ApiError::invalid_request(
            param,
            "Invalid value for `structured_outputs`: it constrains nothing. Send one of `json`, `regex`, \
             `choice`, `grammar`, `structural_tag` and `json_object`.",
        ));
    }
    Ok(found.map(|(_, guide)| guide))
}

fn add<'a>(
    found: &mut Option<(&'a str, Guide)>,
    name: &'a str,
    guide: Guide,
) -> Result<(), ApiError> {
    if let Some((other, _)) = found {
        return Err(conflict(
            "structured_outputs",
            &format!("structured_outputs.{other}"),
            &format!("structured_outputs.{name}"),
        ));
    }
    *found = Some((name, guide));
    Ok(())
}

/// A JSON schema: an object, or one written into a string.
fn schema(param: &'static str, path: &str, raw: &RawValue) -> Result<Guide, ApiError> {
    let expected = "an object with a JSON schema";
    let written = if raw.get().starts_with('"') {
        string(path, raw)?
    } else {
        raw.get().to_owned()
    };
    // Depth is bounded here, so that nothing later follows a schema without end.
    match serde_json::from_str::<Value>(&written) {
        Ok(Value::Object(_)) => guide(param, path, GuideKind::JsonSchema, &written),
        _ => Err(wrong_type(path, expected, raw)),
    }
}

/// Structural tags: an object, or one written into a string.
fn structural_tag(param: &'static str, path: &str, raw: &RawValue) -> Result<Guide, ApiError> {
    let read = schema(param, path, raw)?;
    Ok(Guide {
        kind: GuideKind::StructuralTag,
        ..read
    })
}

fn text(
    param: &'static str,
    path: &str,
    kind: GuideKind,
    raw: &RawValue,
) -> Result<Guide, ApiError> {
    guide(param, path, kind, &string(path, raw)?)
}

/// One of several texts, as a regular expression.
fn choice(param: &'static str, path: &str, raw: &RawValue) -> Result<Guide, ApiError> {
    let texts = reader::list(path, raw, MAX_CHOICES)?;
    if texts.is_empty() {
        return Err(ApiError::invalid_request(
            path,
            format!("Invalid value for `{path}`: the array is empty. Send at least one text."),
        )
        .with_code(code::EMPTY_ARRAY));
    }
    let mut alternatives = String::from("(");
    for (index, raw) in texts.into_iter().enumerate() {
        if index > 0 {
            alternatives.push('|');
        }
        escape(
            &string(&format!("{path}[{index}]"), raw)?,
            &mut alternatives,
        );
    }
    alternatives.push(')');
    guide(param, path, GuideKind::Regex, &alternatives)
}

/// Appends `text` as a regular expression that matches nothing else.
fn escape(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ => {
                if "\\.+*?()|[]{}^$#&-~/".contains(character) {
                    out.push('\\');
                }
                out.push(character);
            }
        }
    }
}

/// A string that is not empty.
fn string(path: &str, raw: &RawValue) -> Result<String, ApiError> {
    let text: String =
        serde_json::from_str(raw.get()).map_err(|_| wrong_type(path, "a string", raw))?;
    if text.is_empty() {
        return Err(ApiError::invalid_request(
            path,
            format!("Invalid value for `{path}`: the text is empty. Leave it out."),
        ));
    }
    Ok(text)
}

fn guide(param: &'static str, path: &str, kind: GuideKind, text: &str) -> Result<Guide, ApiError> {
    if text.len() > MAX_GUIDE_BYTES {
        return Err(ApiError::invalid_request(
            path,
            format!(
                "Invalid value for `{path}`: it has `{}` bytes. Send at most {MAX_GUIDE_BYTES}.",
                text.len()
            ),
        )
        .with_code(code::STRING_ABOVE));
    }
    Ok(Guide {
        kind,
        text: text.into(),
        param,
    })
}
