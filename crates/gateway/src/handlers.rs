//! Resources of the APIs, and the steps that those which generate share: `generate` receives a request, `chat` or
//! `completions` reads it with `answer_options` and `prompt`, `preparing` waits for what may wait, and `answering` has
//! it sent (`sending`, `dispatching`) and makes the response, whose body inflight-streams writes.

pub(crate) mod adapters;
mod answer_options;
pub(crate) mod answering;
mod arrival;
pub(crate) mod asking;
mod background;
pub(crate) mod batches;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod console;
mod content;
pub(crate) mod count;
mod deadline;
mod dispatching;
pub(crate) mod embeddings;
pub(crate) mod fallback;
pub(crate) mod files;
mod forced_calls;
mod generate;
pub(crate) mod health;
mod image_prompt;
mod kept;
pub(crate) mod kserve;
pub(crate) mod locate;
pub(crate) mod message_batches;
pub(crate) mod messages;
pub(crate) mod metrics;
pub(crate) mod models;
mod named;
pub(crate) mod picking;
mod pooling;
mod prepared;
mod preparing;
mod prompt;
pub(crate) mod rerank;
pub(crate) mod responses;
mod resuming;
mod sending;
mod thinking;
pub(crate) mod tokenize;
pub(crate) mod transcriptions;
