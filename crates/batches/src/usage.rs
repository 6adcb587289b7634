//! The tokens that a line's answer says it took. Reads the usage of each API's answers; nothing else of them.

use serde::Deserialize;

/// Tokens of a batch, or of one of its lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub input: i64,
    pub cached: i64,
    pub output: i64,
    pub reasoning: i64,
}

#[derive(Deserialize)]
struct Answer {
    usage: Option<Reported>,
}

/// OpenAI's older names, or those of its Responses API and of Anthropic.
#[derive(Deserialize)]
struct Reported {
    #[serde(alias = "prompt_tokens")]
    input_tokens: Option<i64>,
    #[serde(alias = "completion_tokens")]
    output_tokens: Option<i64>,
    #[serde(alias = "prompt_tokens_details")]
    input_tokens_details: Option<Cached>,
    #[serde(alias = "completion_tokens_details")]
    output_tokens_details: Option<Reasoned>,
    cache_read_input_tokens: Option<i64>,
}

#[derive(Deserialize)]
struct Cached {
    cached_tokens: Option<i64>,
}

#[derive(Deserialize)]
struct Reasoned {
    reasoning_tokens: Option<i64>,
}

impl Usage {
    /// Of an answer in JSON; an answer without usage took nothing that is known.
    pub fn of_answer(body: &[u8]) -> Self {
        let answer = serde_json::from_slice::<Answer>(body).ok();
        let Some(reported) = answer.and_then(|answer| answer.usage) else {
            return Self::default();
        };
        let read = reported.cache_read_input_tokens.unwrap_or(0);
        let details = reported.input_tokens_details;
        let cached = details.and_then(|details| details.cached_tokens);
        let reasoned = reported.output_tokens_details;
        Self {
            // Anthropic counts what was cached apart.
            input: reported.input_tokens.unwrap_or(0).saturating_add(read),
            cached: cached.unwrap_or(read),
            output: reported.output_tokens.unwrap_or(0),
            reasoning: reasoned
                .and_then(|details| details.reasoning_tokens)
                .unwrap_or(0),
        }
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, more: Self) {
        self.input = self.input.saturating_add(more.input);
        self.cached = self.cached.saturating_add(more.cached);
        self.output = self.output.saturating_add(more.output);
        self.reasoning = self.reasoning.saturating_add(more.reasoning);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_of_each_api_is_read() {
        let all = Usage {
            input: 5,
            cached: 2,
            output: 3,
            reasoning: 1,
        };
        for (body, usage) in [
            (
                r#"{"usage": {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details":
                   {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 1}}}"#,
                all,
            ),
            (
                r#"{"usage": {"input_tokens": 5, "output_tokens": 3, "input_tokens_details":
                   {"cached_tokens": 2}, "output_tokens_details": {"reasoning_tokens": 1}}}"#,
                all,
            ),
            (
                r#"{"usage": {"input_tokens": 3, "output_tokens": 3, "cache_read_input_tokens": 2}}"#,
                Usage {
                    reasoning: 0,
                    ..all
                },
            ),
            (
                r#"{"usage": {"prompt_tokens": 5, "total_tokens": 5}}"#,
                Usage {
                    input: 5,
                    ..Usage::default()
                },
            ),
            (r#"{"usage": null}"#, Usage::default()),
            (r#"{"error": {}}"#, Usage::default()),
            ("", Usage::default()),
        ] {
            assert_eq!(Usage::of_answer(body.as_bytes()), usage, "{body}");
        }
    }
}
