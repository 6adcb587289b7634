//! Checks the API key of a request. Owns where a client sends it.

use http::{HeaderMap, HeaderValue, header};
use inflight_openai::ApiError;

use crate::api_key::ApiKey;

/// Checks the `Authorization` header against `key`.
///
/// # Errors
/// 401 when there is a key and the client did not send it.
pub(super) fn authorize(key: Option<&ApiKey>, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(key) = key else {
        return Ok(());
    };
    let given = headers
        .get(header::AUTHORIZATION)
        .map(HeaderValue::as_bytes);
    let bearer = given.and_then(|value| {
        let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
    });
    match bearer {
        Some(token) if key.matches(token) => Ok(()),
        _ => Err(ApiError::invalid_api_key(given.is_some())),
    }
}
