//! The envelope as a JSON schema, to generate a client or check an answer with.

use serde_json::{Value, json};

use super::ErrorKind;

/// What every failed response of the API, and every `error` event of a stream, holds.
pub fn error_schema() -> Value {
    let mut types: Vec<&str> = ErrorKind::ALL
        .iter()
        .map(|kind| kind.error_type())
        .collect();
    types.dedup();
    let text_or_null = json!({"type": ["string", "null"]});
    json!({
        "type": "object",
        "required": ["error"],
        "additionalProperties": false,
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "additionalProperties": false,
                "properties": {
                    "message": {"type": "string", "minLength": 1},
                    "type": {"enum": types},
                    "param": text_or_null,
                    "code": text_or_null
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::one_of_each;
    use super::*;

    #[test]
    fn every_error_has_the_fields_and_the_type_of_the_schema() {
        let schema = error_schema();
        let detail = &schema["properties"]["error"];
        let names = |value: &Value| -> Vec<String> {
            let fields = value.as_object().unwrap();
            fields.keys().cloned().collect()
        };
        let types = detail["properties"]["type"]["enum"].as_array().unwrap();
        for error in one_of_each() {
            let body: Value = serde_json::from_slice(&error.to_json()).unwrap();
            assert_eq!(names(&body), names(&schema["properties"]));
            assert_eq!(names(&body["error"]), names(&detail["properties"]));
            assert!(types.contains(&body["error"]["type"]), "{body}");
        }
        assert_eq!(detail["required"], json!(names(&detail["properties"])));
    }

    /// `docs/reference/errors.md` is made of this; `UPDATE_SNAPSHOTS=1` rewrites it.
    #[test]
    fn the_reference_page_shows_the_errors() {
        inflight_testkit::page::check("docs/reference/errors.md", reference_page());
    }

    fn reference_page() -> String {
        let schema = serde_json::to_string_pretty(&error_schema()).unwrap();
        let mut rows = String::new();
        for kind in ErrorKind::ALL {
            let code = match kind.code() {
                Some(code) => format!("`{code}`"),
                None => "by the fault".to_owned(),
            };
            let retried = match kind.status() {
                408 | 409 | 429 | 500.. => "yes",
                _ => "no",
            };
            let (status, type_) = (kind.status(), kind.error_type());
            rows.push_str(&format!("| {status} | `{type_}` | {code} | {retried} |\n"));
        }
        format!(
            "# Errors\n\n\
             The body of every failed response of the OpenAI API, and of an `error` event in a stream, from\n\
             `crates/openai/src/error.rs`. `param` is the field at fault, as a path such as `messages[0].content`.\n\
             `message` is for people and may change; programs read the status, `type` and `code`. Under `/v1/messages`,\n\
             errors have [Anthropic's form](messages.md), and under `/v2` [Triton's](kserve-http.md).\n\n\
             ```json\n{schema}\n```\n\n\
             A 429 or 503 has the headers `retry-after` (whole seconds) and `retry-after-ms`: OpenAI's clients wait that\n\
             long. What would fail again has a status that they do not retry. A 400 with a more exact `code` names the\n\
             fault: `missing_required_parameter`, `invalid_type`, `invalid_value`, `unsupported_parameter`,\n\
             `integer_above_max_value` and their like.\n\n\
             | status | `type` | `code` | retried by OpenAI's clients |\n|---|---|---|---|\n{rows}"
        )
    }
}
