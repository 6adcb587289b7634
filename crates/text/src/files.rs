//! A model's files as they are given, and those of JSON. Knows nothing of what is in which.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::error::TextError;

/// A model's files by base name: `tokenizer.json` or one of [`CONVERTED_FILES`](crate::CONVERTED_FILES),
/// `tokenizer_config.json`, `special_tokens_map.json`, `chat_template.jinja`, `chat_template.json`,
/// `generation_config.json`, `config.json`. Others are ignored.
pub type ModelFiles = BTreeMap<String, Vec<u8>>;

/// Parses a JSON file that must hold an object; absent gives `None`.
pub(crate) fn parse_object(
    name: &'static str,
    bytes: Option<&Vec<u8>>,
) -> Result<Option<Map<String, Value>>, TextError> {
    bytes
        .map(|bytes| {
            serde_json::from_slice(bytes).map_err(|source| TextError::InvalidFile { name, source })
        })
        .transpose()
}
