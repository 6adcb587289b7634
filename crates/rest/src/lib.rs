//! KServe over HTTP with Triton's extensions: `/v2` in terms of KServe's gRPC messages. Both ports that serve it,
//! a gateway's and a worker's, use this crate.
//!
//! What tensors a model has comes from the model's own metadata, so that every model can be served. Deliberately
//! knows nothing of sockets, of keys and limits, of OpenAI, and of who generates.

mod coding;
mod error;
mod events;
pub mod generate;
pub mod infer;
mod json;
mod memory;
mod reflect;
mod route;
mod serve;
mod settings;
mod tensor_json;

pub use coding::Coding;
pub use error::RestError;
pub use route::{MemoryCall, MemoryKind, MemoryRoute, Method, ModelRef, NoRoute, Route};
pub use serve::{Body, Call, Upstream, health, serve};
