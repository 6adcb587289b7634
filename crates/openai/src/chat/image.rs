//! Images among the parts of a message. Owns how clients write them, and how a chat template sees them; looks
//! into no file and fetches none.

use std::fmt;

use schemars::JsonSchema;
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::{ApiError, code};
use crate::ignored::IgnoredFields;
use crate::reader::{self, Fields, wrong_type};

/// A part of a message that has images. Serializes as chat templates read it: `{"type": "text", "text": …}`, or
/// `{"type": "image"}`.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    Text(String),
    Image(Image),
}

/// An image, as its client named it.
#[derive(Clone, PartialEq)]
pub struct Image {
    /// Where it is in the request, for errors: `messages[0].content[1]`.
    pub path: String,
    /// `https://…`, or the file itself as `data:…`.
    pub url: String,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may be a file of megabytes, which nobody wants in a log.
        write!(f, "Image({}, {} bytes)", self.path, self.url.len())
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self {
            Self::Text(text) => {
                map.serialize_entry("type", "text")?;
                map.serialize_entry("text", text)?;
            }
            Self::Image(_) => map.serialize_entry("type", "image")?,
        }
        map.end()
    }
}

/// What a part says of its image besides where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Detail {
    #[default]
    Auto,
    Low,
    High,
    Original,
}

/// Takes the image of the part at `path`: `image_url` is a URL, or an object with `url` and `detail`. Reports a
/// `detail` under the name `label`: models decide for themselves how closely they look.
pub(crate) fn take(
    path: &str,
    part: &mut Fields<'_>,
    label: &'static str,
    ignored: &mut IgnoredFields,
) -> Result<(Image, Detail), ApiError> {
    if part.take("file_id").is_some() {
        let param = part.param("file_id");
        let message = format!(
            "`{param}` is not supported, because files are not stored. Send the image in `image_url`."
        );
        return Err(ApiError::unsupported(param, message));
    }
    let raw = part.require("image_url")?;
    let param = part.param("image_url");
    let (url, detail) = match raw.get().as_bytes().first() {
        Some(b'"') => (url(&param, raw)?, take_detail(part)?),
        Some(b'{') => {
            let mut fields = Fields::of_value(&param, raw)?;
            let raw = fields.require("url")?;
            (url(&fields.param("url"), raw)?, take_detail(&mut fields)?)
        }
        _ => return Err(wrong_type(&param, "a URL, or an object with `url`", raw)),
    };
    if detail != Detail::Auto {
        ignored.add(label);
    }
    let path = path.to_owned();
    Ok((Image { path, url }, detail))
}

fn url(param: &str, raw: &RawValue) -> Result<String, ApiError> {
    serde_json::from_str(raw.get()).map_err(|_| wrong_type(param, "a string", raw))
}

fn take_detail(fields: &mut Fields<'_>) -> Result<Detail, ApiError> {
    let Some(raw) = fields.take("detail") else {
        return Ok(Detail::Auto);
    };
    serde_json::from_str(raw.get()).map_err(|_| {
        let param = fields.param("detail");
        let message = format!(
            "Invalid value for `{param}`: `{}`. Send `auto`, `low`, `high` or `original`.",
            reader::shortened(raw.get().trim_matches('"'))
        );
        ApiError::invalid_request(param, message).with_code(code::INVALID_VALUE)
    })
}

/// The error of a part that is not allowed where it is.
pub(crate) fn misplaced(path: &str, kind: &str, role: &str) -> ApiError {
    let message = format!(
        "`{path}` is a part of type `{}` in a message of the role `{role}`. Send images in messages of the role \
         `user`.",
        reader::shortened(kind)
    );
    ApiError::unsupported(path, message).with_code(code::UNSUPPORTED_VALUE)
}
