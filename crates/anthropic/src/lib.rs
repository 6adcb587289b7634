//! Anthropic's Messages API as values: a request becomes a checked chat request of inflight-openai; answers,
//! events and errors are written in Anthropic's shapes. Knows nothing of HTTP frameworks, of models or of
//! async: bytes in, bytes out. The `anthropic` SDK's types are the reference for every shape.
//!
//! ```
//! use inflight_anthropic::request;
//!
//! let body = br#"{"model": "m", "max_tokens": 9, "system": "Be brief.",
//!     "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}"#;
//! let chat = request::parse(body)?.request;
//! assert_eq!(chat.messages[0].content, "Be brief.");
//! assert_eq!(chat.messages[1].content, "Hi");
//!
//! let error = request::parse(b"{}").unwrap_err();
//! assert_eq!(inflight_anthropic::error::status(&error), 400);
//! # Ok::<(), inflight_openai::ApiError>(())
//! ```

pub mod batches;
mod block;
mod conversation;
pub mod error;
mod events;
mod fields;
mod models;
pub mod request;
mod response;
mod tools;

pub use events::Events;
pub use fields::request_schema;
pub use models::{ModelInfo, ModelPage, PageQuery};
pub use response::{ContentBlock, Message, OutputTokensDetails, StopReason, TokenCount, Usage};
