//! The gateway: OpenAI's API in front, KServe v2 gRPC towards the workers, no state in between.
//!
//! A request is validated, rendered, tokenized and translated ([`translate`]), sent to the least loaded
//! worker ([`upstream`]), and its rows become text and events ([`stream`]). This crate is the only
//! place where OpenAI's vocabulary and KServe's meet.

pub mod admission;
pub mod app;
pub mod cli;
pub mod error;
pub mod handlers;
pub mod inbound;
pub mod metrics;
pub mod middleware;
pub mod options;
pub mod router;
pub mod server;
pub mod stream;
pub mod translate;
pub mod upstream;
