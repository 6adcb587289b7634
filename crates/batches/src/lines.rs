//! How the result of a line is written, in OpenAI's form and in Anthropic's. Each is one line of JSON.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::batch::Dialect;

/// What was answered to a line.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    pub status: u16,
    pub request_id: &'a str,
    /// In JSON.
    pub body: &'a RawValue,
}

/// Why a line was not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrun {
    Expired,
    Cancelled,
}

impl Outcome<'_> {
    /// Whether the line has its answer.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

#[derive(Serialize)]
struct OpenAi<'a> {
    id: String,
    custom_id: &'a str,
    response: Option<Response<'a>>,
    error: Option<Error<'a>>,
}

#[derive(Serialize)]
struct Response<'a> {
    status_code: u16,
    request_id: &'a str,
    body: &'a RawValue,
}

#[derive(Serialize)]
struct Error<'a> {
    code: &'a str,
    message: &'a str,
}

#[derive(Serialize)]
struct Anthropic<'a> {
    custom_id: &'a str,
    result: Result<'a>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Result<'a> {
    Succeeded { message: &'a RawValue },
    Errored { error: &'a RawValue },
    Canceled,
    Expired,
}

/// The result of the line `custom_id`, with its newline.
pub fn output_line(dialect: Dialect, custom_id: &str, outcome: &Outcome<'_>) -> Vec<u8> {
    match dialect {
        Dialect::OpenAi => written(&OpenAi {
            id: request_name(),
            custom_id,
            response: Some(Response {
                status_code: outcome.status,
                request_id: outcome.request_id,
                body: outcome.body,
            }),
            error: None,
        }),
        Dialect::Anthropic => written(&Anthropic {
            custom_id,
            result: match outcome.is_success() {
                true => Result::Succeeded {
                    message: outcome.body,
                },
                false => Result::Errored {
                    error: outcome.body,
                },
            },
        }),
    }
}

/// What is written for a line that was not run; `None`: nothing is.
pub fn unrun_line(dialect: Dialect, custom_id: &str, why: Unrun) -> Option<Vec<u8>> {
    let line = match (dialect, why) {
        (Dialect::Anthropic, why) => written(&Anthropic {
            custom_id,
            result: match why {
                Unrun::Expired => Result::Expired,
                Unrun::Cancelled => Result::Canceled,
            },
        }),
        (Dialect::OpenAi, Unrun::Expired) => written(&OpenAi {
            id: request_name(),
            custom_id,
            response: None,
            error: Some(Error {
                code: "batch_expired",
                message: "This request could not be executed before the completion window expired.",
            }),
        }),
        (Dialect::OpenAi, Unrun::Cancelled) => return None,
    };
    Some(line)
}

fn request_name() -> String {
    format!("batch_req_{:032x}", rand::random::<u128>())
}

fn written(line: &impl Serialize) -> Vec<u8> {
    // Text and what is JSON already: nothing that cannot be written.
    let mut line = serde_json::to_vec(line).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(line: &[u8]) -> Value {
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let mut value: Value = serde_json::from_slice(line).unwrap();
        if let Some(id) = value.get_mut("id") {
            assert!(id.as_str().unwrap().starts_with("batch_req_"));
            *id = json!("x");
        }
        value
    }

    #[test]
    fn results_have_the_form_of_their_api() {
        let body: Box<RawValue> = serde_json::from_str(r#"{"k": 1}"#).unwrap();
        let outcome = |status| Outcome {
            status,
            request_id: "req_1",
            body: &body,
        };
        let openai = |status| read(&output_line(Dialect::OpenAi, "a\"b", &outcome(status)));
        for status in [200, 400] {
            let response = json!({"status_code": status, "request_id": "req_1", "body": {"k": 1}});
            assert_eq!(
                openai(status),
                json!({"id": "x", "custom_id": "a\"b", "response": response, "error": null})
            );
        }
        let anthropic = |status| read(&output_line(Dialect::Anthropic, "a", &outcome(status)));
        assert_eq!(
            anthropic(200),
            json!({"custom_id": "a", "result": {"type": "succeeded", "message": {"k": 1}}})
        );
        assert_eq!(
            anthropic(529),
            json!({"custom_id": "a", "result": {"type": "errored", "error": {"k": 1}}})
        );
    }

    #[test]
    fn lines_that_were_not_run_say_why() {
        let line = |dialect, why| unrun_line(dialect, "a", why).map(|line| read(&line));
        let expired = line(Dialect::OpenAi, Unrun::Expired).unwrap();
        assert_eq!(expired["response"], Value::Null);
        assert_eq!(expired["error"]["code"], "batch_expired");
        assert_eq!(line(Dialect::OpenAi, Unrun::Cancelled), None);
        for (why, kind) in [(Unrun::Expired, "expired"), (Unrun::Cancelled, "canceled")] {
            let result = json!({"custom_id": "a", "result": {"type": kind}});
            assert_eq!(line(Dialect::Anthropic, why), Some(result));
        }
    }
}
