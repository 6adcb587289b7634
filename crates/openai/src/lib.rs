//! The OpenAI API as values: request parsing and validation, response bodies, streaming frames and the
//! error envelope. Knows nothing of KServe, of HTTP frameworks, or of async: bytes in, bytes out.
//!
//! Every field of a request is honoured, refused with its name, or reported as ignored; the table in
//! [`fields`] is the one place that decides which.

pub mod chat;
pub mod chunk;
pub mod completions;
pub mod error;
pub mod escape;
pub mod fields;
mod generation;
mod ignored;
mod logprobs;
mod model;
mod reader;
mod response;

pub use error::{ApiError, ErrorKind};
pub use generation::{Generation, Sampling};
pub use ignored::IgnoredFields;
pub use logprobs::{ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob, TopLogprobs};
pub use model::{ModelCard, ModelList};
pub use response::{
    AssistantMessage, ChatChoice, ChatCompletion, Completion, CompletionChoice,
    CompletionTokensDetails, FinishReason, PromptTokensDetails, Usage,
};

/// A request that passed validation, with the fields of the body that had no effect on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed<T> {
    pub request: T,
    pub ignored: IgnoredFields,
}
