//! The bodies of answers that are not streamed. Owns the shapes; values come in, and no clock or id is read
//! here.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

/// The value in place of a signature. Clients drop blocks of thinking without one when they send a conversation back;
/// nobody checks it here, for a model reads whatever thoughts it is given.
pub(crate) const SIGNATURE: &str = "inflight";

/// Why an answer ended, in Anthropic's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "MessagesStopReason")]
pub enum StopReason {
    /// The model ended its turn.
    EndTurn,
    MaxTokens,
    /// One of the request's `stop_sequences` came up.
    StopSequence,
    ToolUse,
    /// The context ended before `max_tokens` were generated.
    ModelContextWindowExceeded,
}

/// Token counts. All tokens of the prompt are `input_tokens` and `cache_read_input_tokens` together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "MessagesUsage")]
pub struct Usage {
    pub input_tokens: u64,
    /// Always 0: the cache fills by itself, and nobody counts what goes in.
    pub cache_creation_input_tokens: u64,
    pub cache_read_input_tokens: u64,
    pub output_tokens: u64,
    /// Where the model thought.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens_details: Option<OutputTokensDetails>,
}

/// Parts of the generated tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OutputTokensDetails {
    pub thinking_tokens: u64,
}

impl Usage {
    /// The usage of an answer whose prompt has `prompt` tokens, `cached` of which were in the cache. 0 is
    /// for a prompt that nobody counts: clients read a number.
    pub fn new(prompt: Option<u64>, cached: u64, generated: u64) -> Self {
        let prompt = prompt.unwrap_or(0);
        let cached = cached.min(prompt);
        Self {
            input_tokens: prompt - cached,
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: generated,
            output_tokens_details: None,
        }
    }

    /// The same with the generated tokens that were thinking, if there were some.
    pub fn with_thinking(mut self, thinking_tokens: u64) -> Self {
        self.output_tokens_details =
            (thinking_tokens > 0).then_some(OutputTokensDetails { thinking_tokens });
        self
    }
}

/// One block of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock {
    Text {
        text: String,
    },
    /// What the model thought.
    Thinking {
        thinking: String,
        /// Empty until the block is whole.
        signature: &'static str,
    },
    ToolUse {
        id: String,
        name: String,
        input: Map<String, Value>,
    },
}

impl ContentBlock {
    pub fn text(text: String) -> Self {
        Self::Text { text }
    }

    /// A whole block of thinking.
    pub fn thinking(thinking: String) -> Self {
        Self::Thinking {
            thinking,
            signature: SIGNATURE,
        }
    }

    /// A call. `input` is JSON text; of a call that was cut, and holds no object, the input is empty.
    pub fn tool_use(id: String, name: String, input: &str) -> Self {
        let input = serde_json::from_str(input).unwrap_or_default();
        Self::ToolUse { id, name, input }
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "MessagesAnswer")]
pub struct Message {
    /// `msg_…`
    pub id: String,
    /// Always `message`.
    #[serde(rename = "type")]
    object: &'static str,
    /// Always `assistant`.
    role: &'static str,
    pub model: String,
    /// Empty where the model generated no text.
    pub content: Vec<ContentBlock>,
    pub stop_reason: StopReason,
    /// Which of the request's `stop_sequences` came up.
    pub stop_sequence: Option<String>,
    pub usage: Usage,
}

impl Message {
    pub fn new(
        id: String,
        model: String,
        content: Vec<ContentBlock>,
        stop_reason: StopReason,
        stop_sequence: Option<String>,
        usage: Usage,
    ) -> Self {
        Self {
            id,
            object: "message",
            role: "assistant",
            model,
            content,
            stop_reason,
            stop_sequence,
            usage,
        }
    }
}

/// The answer to `count_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TokenCount {
    pub input_tokens: u64,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_has_anthropics_shape() {
        let content = vec![ContentBlock::text("Hi".into())];
        let usage = Usage::new(Some(7), 3, 2);
        let (reason, stop) = (StopReason::StopSequence, Some("END".to_owned()));
        let answer = Message::new("msg_1".into(), "m".into(), content, reason, stop, usage);
        assert_eq!(
            serde_json::to_string(&answer).unwrap(),
            concat!(
                r#"{"id":"msg_1","type":"message","role":"assistant","model":"m","#,
                r#""content":[{"type":"text","text":"Hi"}],"stop_reason":"stop_sequence","stop_sequence":"END","#,
                r#""usage":{"input_tokens":4,"cache_creation_input_tokens":0,"cache_read_input_tokens":3,"#,
                r#""output_tokens":2}}"#
            )
        );
    }

    #[test]
    fn blocks_have_anthropics_shapes() {
        let tool = |input: &str| ContentBlock::tool_use("c".into(), "f".into(), input);
        for (block, expected) in [
            (
                ContentBlock::thinking("Hm".into()),
                json!({"type": "thinking", "thinking": "Hm", "signature": "inflight"}),
            ),
            (
                tool(r#"{"a": 1}"#),
                json!({"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}),
            ),
            // Cut.
            (
                tool(r#"{"a": "#),
                json!({"type": "tool_use", "id": "c", "name": "f", "input": {}}),
            ),
        ] {
            assert_eq!(serde_json::to_value(block).unwrap(), expected);
        }
    }

    #[test]
    fn stop_reasons_are_the_sdks_words() {
        use StopReason::*;
        for (reason, word) in [
            (EndTurn, "end_turn"),
            (MaxTokens, "max_tokens"),
            (StopSequence, "stop_sequence"),
            (ToolUse, "tool_use"),
            (ModelContextWindowExceeded, "model_context_window_exceeded"),
        ] {
            assert_eq!(serde_json::to_value(reason).unwrap(), word);
        }
    }

    #[test]
    fn thinking_is_told_where_there_was_some() {
        let usage = Usage::new(Some(1), 0, 5);
        assert_eq!(usage.with_thinking(0), usage);
        let told = serde_json::to_value(usage.with_thinking(3)).unwrap();
        assert_eq!(told["output_tokens_details"], json!({"thinking_tokens": 3}));
    }

    #[test]
    fn usage_never_counts_more_than_the_prompt() {
        for (prompt, cached, expected) in [
            (Some(5), 0, (5, 0)),
            (Some(5), 5, (0, 5)),
            (Some(5), 9, (0, 5)),
            (None, 3, (0, 0)),
        ] {
            let usage = Usage::new(prompt, cached, 1);
            assert_eq!(
                (usage.input_tokens, usage.cache_read_input_tokens),
                expected
            );
        }
    }
}
