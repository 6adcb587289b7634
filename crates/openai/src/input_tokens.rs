//! How many tokens a conversation is: the answers of `/v1/responses/input_tokens` and of llama.cpp's
//! `/v1/chat/completions/input_tokens`.

use schemars::JsonSchema;
use serde::Serialize;

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct InputTokens {
    /// `response.input_tokens`; only of a response's.
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<&'static str>,
    input_tokens: u64,
}

impl InputTokens {
    /// Of a chat.
    pub fn of_chat(input_tokens: u64) -> Self {
        Self {
            object: None,
            input_tokens,
        }
    }

    /// Of a response.
    pub fn of_response(input_tokens: u64) -> Self {
        Self {
            object: Some("response.input_tokens"),
            input_tokens,
        }
    }
}
