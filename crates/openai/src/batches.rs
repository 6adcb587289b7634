//! The request for a batch. Its lines are requests themselves, which are read when they are run.

use serde_json::{Map, Value};

use crate::error::{ApiError, code};
use crate::metadata;
use crate::reader::{Fields, shortened};

/// The paths that lines may be for.
pub const ENDPOINTS: [&str; 4] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
];

/// Seconds that a file may be asked to be kept: from an hour to 30 days, as OpenAI has it.
pub const AGES: std::ops::RangeInclusive<i64> = 3600..=2_592_000;

/// The body of `POST /v1/batches`.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchRequest {
    pub input_file_id: String,
    pub endpoint: &'static str,
    pub completion_window: String,
    pub metadata: Map<String, Value>,
    /// Seconds that the results are kept; `None`: the server's own.
    pub results_age: Option<i64>,
}

impl BatchRequest {
    /// Reads the body.
    ///
    /// # Errors
    /// 400: something is missing, or not what it must be, or unknown.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        let input_file_id = fields.required_string("input_file_id")?;
        let given = fields.required_string("endpoint")?;
        let endpoint = ENDPOINTS.into_iter().find(|known| *known == given);
        let endpoint = endpoint.ok_or_else(|| {
            let known = ENDPOINTS.map(|known| format!("`{known}`")).join(", ");
            ApiError::invalid_request(
                "endpoint",
                format!(
                    "Invalid value for `endpoint`: `{}`. Send one of {known}.",
                    shortened(&given)
                ),
            )
            .with_code(code::INVALID_VALUE)
        })?;
        let completion_window = fields.required_string("completion_window")?;
        let metadata = metadata::take(&mut fields)?;
        let results_age = take_age(&mut fields)?;
        fields.refuse_rest()?;
        Ok(Self {
            input_file_id,
            endpoint,
            completion_window,
            metadata,
            results_age,
        })
    }
}

/// Reads `output_expires_after`.
fn take_age(fields: &mut Fields<'_>) -> Result<Option<i64>, ApiError> {
    let Some(raw) = fields.take("output_expires_after") else {
        return Ok(None);
    };
    let mut fields = Fields::of_value("output_expires_after", raw)?;
    let anchor = fields.required_string("anchor")?;
    if anchor != "created_at" {
        let message = format!(
            "Invalid value for the anchor: `{}`. Send `created_at`.",
            shortened(&anchor)
        );
        return Err(ApiError::invalid_request(fields.param("anchor"), message));
    }
    let seconds = fields.integer("seconds", AGES)?;
    seconds.map(Some).ok_or_else(|| fields.missing("seconds"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_for_a_batch_is_whole_or_says_what_is_wrong() {
        let body = json!({
            "input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h",
            "metadata": {"a": "b"}, "output_expires_after": {"anchor": "created_at", "seconds": 3600},
        });
        let request = BatchRequest::parse(body.to_string().as_bytes()).unwrap();
        assert_eq!(
            (request.endpoint, request.results_age),
            ("/v1/embeddings", Some(3600))
        );
        assert_eq!(request.metadata["a"], "b");
        for (field, value, param) in [
            ("input_file_id", json!(null), "input_file_id"),
            ("endpoint", json!("/v1/images/generations"), "endpoint"),
            ("endpoint", json!(null), "endpoint"),
            ("completion_window", json!(24), "completion_window"),
            ("metadata", json!({"a": 1}), "metadata"),
            (
                "output_expires_after",
                json!({}),
                "output_expires_after.anchor",
            ),
            (
                "output_expires_after",
                json!({"anchor": "now"}),
                "output_expires_after.anchor",
            ),
            (
                "output_expires_after",
                json!({"anchor": "created_at"}),
                "output_expires_after.seconds",
            ),
            (
                "output_expires_after",
                json!({"anchor": "created_at", "seconds": 60}),
                "output_expires_after.seconds",
            ),
            ("priority", json!(1), "priority"),
        ] {
            let mut body = body.clone();
            body[field] = value;
            let error = BatchRequest::parse(body.to_string().as_bytes()).unwrap_err();
            assert_eq!(
                (error.status(), error.param.as_deref()),
                (400, Some(param)),
                "{body}"
            );
        }
    }
}
