//! `metadata`: what a client notes with what it asks for. Nothing reads it but its client.

use serde_json::{Map, Value};

use crate::error::{ApiError, code};
use crate::reader::{self, Fields, too_many};

const MAX_ENTRIES: usize = 16;
const MAX_KEY_CHARACTERS: usize = 64;
const MAX_VALUE_CHARACTERS: usize = 512;

/// Takes it; empty where it is not there.
///
/// # Errors
/// 400: too many entries, or one that is too long or of another type.
pub(crate) fn take(fields: &mut Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let metadata = fields.object("metadata")?.unwrap_or_default();
    if metadata.len() > MAX_ENTRIES {
        return Err(too_many("metadata", metadata.len(), MAX_ENTRIES));
    }
    for (key, value) in &metadata {
        let fits = value.as_str().is_some_and(|value| {
            value.chars().count() <= MAX_VALUE_CHARACTERS
                && key.chars().count() <= MAX_KEY_CHARACTERS
        });
        if !fits {
            return Err(ApiError::invalid_request(
                "metadata",
                format!(
                    "Invalid value for `metadata`: the entry `{}`. Send keys of at most \
                     {MAX_KEY_CHARACTERS} characters, and strings of at most \
                     {MAX_VALUE_CHARACTERS}.",
                    reader::shortened(key)
                ),
            )
            .with_code(code::INVALID_VALUE));
        }
    }
    Ok(metadata)
}
