//! The request for a batch of messages, whose requests are in its body. They become lines as files of batches have them.

use inflight_openai::ApiError;
use inflight_openai::reader::Fields;
use serde_json::value::RawValue;

/// Where each request of a batch is sent.
pub const ENDPOINT: &str = "/v1/messages";

/// What a request of a batch calls its body.
pub const BODY: &str = "params";

/// Requests of one batch.
const MAX_REQUESTS: usize = 100_000;

/// The requests of the body of `POST /v1/messages/batches`, as lines: each is JSON, and ends with a newline. What they
/// say is checked when they are run, their names before.
///
/// # Errors
/// 400: there are none, or one is not an object with a name and parameters.
pub fn lines(body: &[u8]) -> Result<Vec<u8>, ApiError> {
    let mut fields = Fields::of_body(body)?;
    let requests = fields.list("requests", MAX_REQUESTS)?;
    let requests = requests.ok_or_else(|| fields.missing("requests"))?;
    fields.refuse_rest()?;
    if requests.is_empty() {
        return Err(ApiError::invalid_request(
            "requests",
            "`requests` is empty. Send at least one.",
        ));
    }
    let mut lines = Vec::with_capacity(body.len() + 64 * requests.len());
    for (place, request) in requests.into_iter().enumerate() {
        let mut fields = Fields::of_value(&format!("requests[{place}]"), request)?;
        let custom_id = fields
            .take("custom_id")
            .ok_or_else(|| fields.missing("custom_id"))?;
        let params = fields.take(BODY).ok_or_else(|| fields.missing(BODY))?;
        lines.extend_from_slice(b"{\"method\":\"POST\",\"url\":\"/v1/messages\",\"custom_id\":");
        push(&mut lines, custom_id);
        lines.extend_from_slice(b",\"body\":");
        push(&mut lines, params);
        lines.extend_from_slice(b"}\n");
    }
    Ok(lines)
}

/// Adds JSON as one line: newlines are between values alone, where a space means the same.
fn push(lines: &mut Vec<u8>, json: &RawValue) {
    let bytes = json.get().bytes();
    lines.extend(bytes.map(|byte| {
        if matches!(byte, b'\n' | b'\r') {
            b' '
        } else {
            byte
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_become_lines() {
        let body = br#"{"requests": [
            {"custom_id": "a", "params": {"model": "m",
                "messages": "x\ny"}},
            {"params": {}, "custom_id": "b"}]}"#;
        let text = String::from_utf8(lines(body).unwrap()).unwrap();
        let expected = concat!(
            r#"{"method":"POST","url":"/v1/messages","custom_id":"a","body":{"model": "m","#,
            "                 \"messages\": \"x\\ny\"}}\n",
            r#"{"method":"POST","url":"/v1/messages","custom_id":"b","body":{}}"#,
            "\n",
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, param) in [
            ("{}", "requests"),
            (r#"{"requests": []}"#, "requests"),
            (r#"{"requests": [1]}"#, "requests[0]"),
            (r#"{"requests": [{"params": {}}]}"#, "requests[0].custom_id"),
            (
                r#"{"requests": [{"custom_id": "a"}]}"#,
                "requests[0].params",
            ),
            (r#"{"requests": [], "model": "m"}"#, "model"),
        ] {
            let error = lines(body.as_bytes()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
        }
    }
}
