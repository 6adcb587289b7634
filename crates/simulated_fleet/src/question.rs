//! A request and its answer, which is known before it is asked: the simulated executor's text is a function of the
//! prompt. Knows both APIs' JSON, and nothing of connections.

use serde_json::{Value, json};

/// What clients call the model.
pub(crate) const MODEL: &str = "m";

/// One request of `/v1/chat/completions` or `/v1/completions`.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) is_chat: bool,
    pub(crate) is_streamed: bool,
    pub(crate) content: String,
    pub(crate) choices: u32,
    pub(crate) max_tokens: u32,
}

impl Question {
    pub(crate) fn path(&self) -> &'static str {
        match self.is_chat {
            true => "/v1/chat/completions",
            false => "/v1/completions",
        }
    }

    pub(crate) fn body(&self) -> Value {
        let mut body = json!({"model": MODEL, "n": self.choices, "max_tokens": self.max_tokens});
        match self.is_chat {
            true => body["messages"] = json!([{"role": "user", "content": self.content}]),
            false => body["prompt"] = json!(self.content),
        }
        if self.is_streamed {
            body["stream"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
        }
        body
    }

    /// What the model reads: a token for each byte.
    fn prompt(&self) -> String {
        match self.is_chat {
            true => format!("user:{}\nassistant:", self.content),
            false => self.content.clone(),
        }
    }

    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.prompt().len() as u64
    }

    pub(crate) fn completion_tokens(&self) -> u64 {
        u64::from(self.choices) * u64::from(self.max_tokens)
    }

    /// The whole text of a choice: printable characters in their order, beginning at one that the prompt decides.
    pub(crate) fn answer(&self, choice: u32) -> String {
        let hash = |hash: u32, byte: u8| hash.wrapping_mul(31).wrapping_add(byte.into());
        let first = self.prompt().bytes().fold(0, hash);
        let place = |index: u32| first.wrapping_add(choice).wrapping_add(index) % 95;
        let letter = |index| char::from(32 + place(index) as u8);
        (0..self.max_tokens).map(letter).collect()
    }
}
