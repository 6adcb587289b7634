//! The OpenAI API as values: request parsing and validation, response bodies, streaming frames and the
//! error envelope. Knows nothing of KServe, of HTTP frameworks, or of async: bytes in, bytes out.
//!
//! Every field of a request is applied, refused with its name, or reported as ignored; the table in
//! `fields` is the one place that decides which.
//!
//! ```
//! use inflight_openai::chat;
//!
//! let body = br#"{"model": "m", "messages": [{"role": "user", "content": "Hi"}], "store": true}"#;
//! let parsed = chat::parse(body)?;
//! assert_eq!(parsed.request.messages[0].content, "Hi");
//! assert_eq!(parsed.ignored.header_value().as_deref(), Some("store"));
//!
//! let error = chat::parse(b"{}").unwrap_err();
//! assert_eq!((error.status(), error.param.as_deref()), (400, Some("messages")));
//! # Ok::<(), inflight_openai::ApiError>(())
//! ```

pub mod batches;
pub mod bounds;
pub mod chat;
pub mod chunk;
pub mod completions;
pub mod embeddings;
mod error;
pub mod escape;
mod extensions;
mod fields;
mod generation;
mod guide;
mod ignored;
mod input_tokens;
mod list_query;
mod logprobs;
pub mod lora;
mod metadata;
mod model;
pub mod reader;
mod reasoning_field;
pub mod rerank;
pub mod responses;
pub mod tokenize;
pub mod transcription;
mod whole;
mod words;

pub use error::{ApiError, ErrorKind, RateUnit, error_schema};
pub use extensions::{BeamSearch, Extensions, Truncation};
pub use fields::RequestBody;
pub use generation::{Generation, Sampling};
pub use guide::{Guide, GuideKind};
pub use ignored::IgnoredFields;
pub use input_tokens::InputTokens;
pub use list_query::{ListQuery, PageLimit};
pub use logprobs::{
    ChatLogprobs, CompletionLogprobs, PromptLogprob, PromptLogprobs, TokenLogprob, TopLogprob,
    TopLogprobs,
};
pub use model::{ModelCard, ModelList};
pub use reasoning_field::ReasoningField;
pub use whole::{
    AssistantMessage, Called, CalledCustom, CalledFunction, ChatChoice, ChatCompletion, Completion,
    CompletionChoice, CompletionTokensDetails, FinishReason, MessageToolCall, PromptTokensDetails,
    StopReason, Usage,
};

/// A request that passed validation, with the fields of the body that had no effect on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed<T> {
    pub request: T,
    pub ignored: IgnoredFields,
}
