//! The bodies of answers that are not streamed. Owns the shapes; values come in, and no clock or id is
//! read here.

use schemars::JsonSchema;
use serde::Serialize;

use crate::logprobs::{ChatLogprobs, CompletionLogprobs, PromptLogprobs};
use crate::reasoning_field::ReasoningField;

/// Why a choice ended, in OpenAI's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended its turn, or a stop string came up.
    Stop,
    /// max_tokens or the context's end.
    Length,
    ToolCalls,
    ContentFilter,
    FunctionCall,
}

impl FinishReason {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::ContentFilter => "content_filter",
            Self::FunctionCall => "function_call",
        }
    }
}

/// What ended a choice, as in vLLM: a stop string, or a token other than the model's end token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum StopReason {
    Text(String),
    Token(i32),
}

/// Token counts. `completion_tokens` sums over all choices, the prompt counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub total_tokens: u64,
    pub prompt_tokens_details: PromptTokensDetails,
    pub completion_tokens_details: CompletionTokensDetails,
}

/// Parts of the prompt's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PromptTokensDetails {
    /// Found in the KV cache.
    pub cached_tokens: u64,
}

/// Parts of the generated tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CompletionTokensDetails {
    pub reasoning_tokens: u64,
}

impl Usage {
    /// Usage with the total worked out.
    pub fn new(prompt_tokens: u64, completion_tokens: u64, cached_tokens: u64) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
            completion_tokens_details: CompletionTokensDetails::default(),
        }
    }

    /// The same with the generated tokens that were reasoning.
    pub fn with_reasoning(mut self, tokens: u64) -> Self {
        self.completion_tokens_details.reasoning_tokens = tokens;
        self
    }
}

/// The answer to a chat request.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ChatCompletion {
    pub id: String,
    /// Always `chat.completion`.
    pub object: &'static str,
    /// Unix seconds.
    pub created: u64,
    pub model: String,
    pub choices: Vec<ChatChoice>,
    /// Absent where the server behind does not count tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    pub system_fingerprint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<i32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

impl ChatCompletion {
    pub fn new(
        id: String,
        created: u64,
        model: String,
        choices: Vec<ChatChoice>,
        usage: Option<Usage>,
    ) -> Self {
        Self {
            id,
            object: "chat.completion",
            created,
            model,
            choices,
            usage,
            system_fingerprint: None,
            prompt_token_ids: None,
            prompt_logprobs: None,
        }
    }
}

/// One of a chat answer's `n` choices.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ChatChoice {
    pub index: u32,
    pub message: AssistantMessage,
    pub logprobs: Option<ChatLogprobs>,
    pub finish_reason: FinishReason,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<i32>>,
}

impl ChatChoice {
    /// A choice whose message is plain text.
    pub fn text(
        index: u32,
        content: String,
        logprobs: Option<ChatLogprobs>,
        finish_reason: FinishReason,
    ) -> Self {
        let message = AssistantMessage {
            content: Some(content),
            ..AssistantMessage::default()
        };
        Self::new(index, message, logprobs, finish_reason)
    }

    /// A choice.
    pub fn new(
        index: u32,
        message: AssistantMessage,
        logprobs: Option<ChatLogprobs>,
        finish_reason: FinishReason,
    ) -> Self {
        Self {
            index,
            message,
            logprobs,
            finish_reason,
            stop_reason: None,
            token_ids: None,
        }
    }
}

/// What the model said.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct AssistantMessage {
    /// Always `assistant`.
    pub role: &'static str,
    /// `None`: the model only called tools.
    pub content: Option<String>,
    pub refusal: Option<String>,
    /// What the model thought before it answered; DeepSeek's name of it, which open servers share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// vLLM's name of the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<MessageToolCall>,
}

impl AssistantMessage {
    /// Names the reasoning, which is in `reasoning_content` so far.
    pub fn name_reasoning(&mut self, field: ReasoningField) {
        match field {
            ReasoningField::ReasoningContent => {}
            ReasoningField::Reasoning => self.reasoning = self.reasoning_content.take(),
            ReasoningField::Both => self.reasoning = self.reasoning_content.clone(),
        }
    }
}

impl Default for AssistantMessage {
    fn default() -> Self {
        Self {
            role: "assistant",
            content: None,
            refusal: None,
            reasoning_content: None,
            reasoning: None,
            tool_calls: Vec::new(),
        }
    }
}

/// A call that the model made.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MessageToolCall {
    pub id: String,
    #[serde(flatten)]
    pub called: Called,
}

/// What was called.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Called {
    Function { function: CalledFunction },
    Custom { custom: CalledCustom },
}

impl MessageToolCall {
    /// A call of a function; `arguments` is JSON text.
    pub fn new(id: String, name: String, arguments: String) -> Self {
        let function = CalledFunction { name, arguments };
        Self {
            id,
            called: Called::Function { function },
        }
    }

    /// A call of a custom tool, with its text.
    pub fn custom(id: String, name: String, input: String) -> Self {
        let custom = CalledCustom { input, name };
        Self {
            id,
            called: Called::Custom { custom },
        }
    }

    /// Adds to the arguments or the text.
    pub fn push(&mut self, text: &str) {
        match &mut self.called {
            Called::Function { function } => function.arguments.push_str(text),
            Called::Custom { custom } => custom.input.push_str(text),
        }
    }
}

/// Which custom tool the model called, and with what.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CalledCustom {
    /// Cut where the answer was.
    pub input: String,
    pub name: String,
}

/// Which function the model called, and with what.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CalledFunction {
    pub name: String,
    /// JSON text, as the model wrote it: cut where the answer was.
    pub arguments: String,
}

/// The answer to a completions request.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Completion {
    pub id: String,
    /// Always `text_completion`.
    pub object: &'static str,
    /// Unix seconds.
    pub created: u64,
    pub model: String,
    /// Prompt by prompt, each with its `n` choices.
    pub choices: Vec<CompletionChoice>,
    /// Absent where the server behind does not count tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    pub system_fingerprint: Option<String>,
}

impl Completion {
    pub fn new(
        id: String,
        created: u64,
        model: String,
        choices: Vec<CompletionChoice>,
        usage: Option<Usage>,
    ) -> Self {
        Self {
            id,
            object: "text_completion",
            created,
            model,
            choices,
            usage,
            system_fingerprint: None,
        }
    }
}

/// One choice of a completion.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CompletionChoice {
    pub text: String,
    /// Prompt index × n + which of its n.
    pub index: u32,
    pub logprobs: Option<CompletionLogprobs>,
    pub finish_reason: FinishReason,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<i32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<i32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chat_answer_has_openai_shape() {
        let answer = ChatCompletion::new(
            "chatcmpl-1".into(),
            5,
            "m".into(),
            vec![ChatChoice::text(0, "Hi".into(), None, FinishReason::Stop)],
            Some(Usage::new(3, 2, 1)),
        );
        assert_eq!(
            serde_json::to_string(&answer).unwrap(),
            concat!(
                r#"{"id":"chatcmpl-1","object":"chat.completion","created":5,"model":"m","choices":["#,
                r#"{"index":0,"message":{"role":"assistant","content":"Hi","refusal":null},"#,
                r#""logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"#,
                r#""completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1},"#,
                r#""completion_tokens_details":{"reasoning_tokens":0}},"system_fingerprint":null}"#
            )
        );
    }

    #[test]
    fn a_message_tells_calls_and_reasoning_where_there_are_some() {
        let message = AssistantMessage {
            reasoning_content: Some("Hm".into()),
            tool_calls: vec![MessageToolCall::new(
                "call_1".into(),
                "f".into(),
                "{}".into(),
            )],
            ..AssistantMessage::default()
        };
        assert_eq!(
            serde_json::to_string(&message).unwrap(),
            concat!(
                r#"{"role":"assistant","content":null,"refusal":null,"reasoning_content":"Hm","#,
                r#""tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{}"}}]}"#
            )
        );
        let mut call = MessageToolCall::custom("call_1".into(), "c".into(), String::new());
        call.push("a\"");
        assert_eq!(
            serde_json::to_string(&call).unwrap(),
            r#"{"id":"call_1","type":"custom","custom":{"input":"a\"","name":"c"}}"#
        );
        let usage = Usage::new(3, 5, 0).with_reasoning(4);
        assert_eq!(usage.completion_tokens_details.reasoning_tokens, 4);
    }

    #[test]
    fn completion_has_openai_shape() {
        let answer = Completion::new(
            "cmpl-1".into(),
            5,
            "m".into(),
            vec![CompletionChoice {
                text: "Hi".into(),
                index: 0,
                logprobs: None,
                finish_reason: FinishReason::Length,
                stop_reason: None,
                token_ids: None,
                prompt_token_ids: None,
                prompt_logprobs: None,
            }],
            Some(Usage::new(0, 1, 0)),
        );
        let text = serde_json::to_string(&answer).unwrap();
        assert!(text.starts_with(
            r#"{"id":"cmpl-1","object":"text_completion","created":5,"model":"m","choices":[{"text":"Hi","index":0,"logprobs":null,"finish_reason":"length"}],"usage":{"#
        ), "{text}");
    }

    #[test]
    fn finish_reasons_have_one_spelling() {
        use FinishReason::*;
        for reason in [Stop, Length, ToolCalls, ContentFilter, FunctionCall] {
            assert_eq!(
                serde_json::to_string(&reason).unwrap(),
                format!("\"{}\"", reason.as_str())
            );
        }
    }
}
