//! The response object: what a request asked for, as its answer repeats it, and what came of it. Owns the
//! shape; ids and times come in.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::item::{Item, Status};
use crate::chat::NAMESPACE_END;
use crate::error::{ApiError, ErrorKind};
use crate::whole::Usage;

const PREFIX: &str = "resp_";
/// Hexadecimal digits of an id.
const DIGITS: usize = 32;

/// The id of a response, from which those of its items are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResponseId(pub u128);

impl ResponseId {
    /// Reads an id that a gateway gave.
    pub fn parse(text: &str) -> Option<Self> {
        Self::of_digits(text.strip_prefix(PREFIX)?)
    }

    /// The response that an item with one of our ids belongs to.
    pub fn of_item(id: &str) -> Option<Self> {
        let (_, digits) = id.split_once('_')?;
        Self::of_digits(digits.get(..DIGITS)?)
    }

    /// The id of the item at `place` of the response's input and output.
    pub fn item(self, prefix: &str, place: usize) -> String {
        format!("{prefix}_{:032x}{place:04x}", self.0)
    }

    fn of_digits(digits: &str) -> Option<Self> {
        let lower = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let valid = digits.len() == DIGITS && digits.bytes().all(lower);
        valid
            .then(|| u128::from_str_radix(digits, 16).ok())?
            .map(Self)
    }
}

impl fmt::Display for ResponseId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{PREFIX}{:032x}", self.0)
    }
}

/// What a request asked for, as the response repeats it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Settings {
    /// Whether nobody waits for the answer, which is fetched later.
    pub background: bool,
    pub instructions: Option<String>,
    pub max_output_tokens: Option<u32>,
    pub max_tool_calls: Option<u32>,
    pub metadata: Map<String, Value>,
    pub parallel_tool_calls: bool,
    pub previous_response_id: Option<String>,
    pub prompt_cache_key: Option<String>,
    pub reasoning: ReasoningSettings,
    pub safety_identifier: Option<String>,
    /// Always `default`.
    pub service_tier: &'static str,
    pub store: bool,
    /// As used, the model's own default included.
    pub temperature: Option<f32>,
    pub text: TextSettings,
    pub tool_choice: Value,
    pub tools: Vec<Value>,
    pub top_logprobs: u32,
    pub top_p: Option<f32>,
    /// Always `disabled`.
    pub truncation: &'static str,
    pub user: Option<String>,
}

impl Settings {
    /// The namespace of a tool that the model called, and the name within it.
    pub(super) fn in_namespace<'a>(&'a self, called: &'a str) -> (Option<&'a str>, &'a str) {
        let is = |tool: &Value, name: &str| {
            (tool["type"] == "function" || tool["type"] == "custom") && tool["name"] == name
        };
        // A tool outside a namespace may have two underscores in its name.
        if !self.tools.iter().any(|tool| is(tool, called)) {
            for tool in self.tools.iter().filter(|tool| tool["type"] == "namespace") {
                let namespace = tool["name"].as_str().unwrap_or_default();
                let members = tool["tools"].as_array().into_iter().flatten();
                let name = called.strip_prefix(namespace);
                let name = name.and_then(|rest| rest.strip_prefix(NAMESPACE_END));
                if let Some(name) = name
                    && members.into_iter().any(|member| is(member, name))
                {
                    return (Some(namespace), name);
                }
            }
        }
        (None, called)
    }
}

/// `reasoning` of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct ReasoningSettings {
    pub effort: Option<String>,
    pub summary: Option<String>,
}

/// `text` of a request.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TextSettings {
    pub format: Value,
    pub verbosity: String,
}

/// What is known of a response before there is any output.
#[derive(Clone, Debug)]
pub struct Head {
    pub id: ResponseId,
    /// Unix seconds.
    pub created_at: u64,
    pub model: String,
    pub settings: Arc<Settings>,
    /// Items of the input, whose ids come before those of the output.
    pub input_items: usize,
    /// Whether items of reasoning have `encrypted_content`.
    pub seals_reasoning: bool,
}

/// How far a response came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ResponseStatus {
    Queued,
    InProgress,
    Completed,
    Incomplete,
    Failed,
    Cancelled,
}

/// What became of a response that has no answer.
#[derive(Clone, Copy, Debug)]
pub enum Unanswered<'a> {
    /// It waits for a worker.
    Queued,
    InProgress,
    Failed(&'a ApiError),
    /// Its client stopped it.
    Cancelled,
}

impl Head {
    /// The response as an object without an answer, in JSON.
    pub fn unanswered(&self, why: Unanswered<'_>) -> Bytes {
        let status = match why {
            Unanswered::Queued => ResponseStatus::Queued,
            Unanswered::InProgress => ResponseStatus::InProgress,
            Unanswered::Failed(_) => ResponseStatus::Failed,
            Unanswered::Cancelled => ResponseStatus::Cancelled,
        };
        let mut response = ResponseObject::new(self, status, &[]);
        if let Unanswered::Failed(error) = why {
            response.error = Some(Failure::new(error));
        }
        serde_json::to_vec(&response).unwrap_or_default().into()
    }
}

#[derive(Serialize, JsonSchema)]
pub(super) struct IncompleteDetails {
    pub(super) reason: &'static str,
}

/// Why a response failed, in the words that SDKs know.
#[derive(Serialize, JsonSchema)]
pub(super) struct Failure<'a> {
    code: &'static str,
    message: &'a str,
}

impl<'a> Failure<'a> {
    pub(super) fn new(error: &'a ApiError) -> Self {
        let code = match error.kind {
            ErrorKind::RateLimited => "rate_limit_exceeded",
            ErrorKind::InvalidRequest | ErrorKind::ContextLengthExceeded => "invalid_prompt",
            _ => "server_error",
        };
        Self {
            code,
            message: &error.message,
        }
    }
}

/// Token counts in the names of this endpoint.
#[derive(Serialize, JsonSchema)]
pub(super) struct ResponseUsage {
    input_tokens: u64,
    input_tokens_details: InputTokensDetails,
    output_tokens: u64,
    output_tokens_details: OutputTokensDetails,
    total_tokens: u64,
}

#[derive(Serialize, JsonSchema)]
struct InputTokensDetails {
    cached_tokens: u64,
    /// Of a cache that is paid for; always 0.
    cache_write_tokens: u64,
}

#[derive(Serialize, JsonSchema)]
struct OutputTokensDetails {
    reasoning_tokens: u64,
}

impl From<&Usage> for ResponseUsage {
    fn from(usage: &Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputTokensDetails {
                cached_tokens: usage.prompt_tokens_details.cached_tokens,
                cache_write_tokens: 0,
            },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputTokensDetails {
                reasoning_tokens: usage.completion_tokens_details.reasoning_tokens,
            },
            total_tokens: usage.total_tokens,
        }
    }
}

/// The object.
#[derive(Serialize, JsonSchema)]
pub(super) struct ResponseObject<'a> {
    pub(super) id: String,
    pub(super) object: &'static str,
    pub(super) created_at: u64,
    pub(super) status: ResponseStatus,
    pub(super) completed_at: Option<u64>,
    pub(super) error: Option<Failure<'a>>,
    pub(super) incomplete_details: Option<IncompleteDetails>,
    pub(super) model: &'a str,
    pub(super) output: &'a [Item],
    pub(super) usage: Option<ResponseUsage>,
    #[serde(flatten)]
    pub(super) settings: &'a Settings,
}

impl<'a> ResponseObject<'a> {
    pub(super) fn new(head: &'a Head, status: ResponseStatus, output: &'a [Item]) -> Self {
        Self {
            id: head.id.to_string(),
            object: "response",
            created_at: head.created_at,
            status,
            completed_at: None,
            error: None,
            incomplete_details: None,
            model: &head.model,
            output,
            usage: None,
            settings: &head.settings,
        }
    }
}

impl From<ResponseStatus> for Status {
    fn from(status: ResponseStatus) -> Self {
        match status {
            ResponseStatus::Queued | ResponseStatus::InProgress => Self::InProgress,
            ResponseStatus::Completed => Self::Completed,
            ResponseStatus::Incomplete | ResponseStatus::Failed | ResponseStatus::Cancelled => {
                Self::Incomplete
            }
        }
    }
}
