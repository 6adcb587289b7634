//! One file per resource. Chat and completions share four steps: `generate` receives a request, `prompt` prepares a
//! prompt, `sending` sends it to a worker, `response` writes the answer.

pub(crate) mod adapters;
mod answer;
mod arrival;
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
mod forced;
mod generate;
pub(crate) mod health;
mod image_prompt;
mod kept;
pub(crate) mod kserve;
mod locate;
pub(crate) mod message_batches;
pub(crate) mod messages;
pub(crate) mod metrics;
pub(crate) mod models;
mod named;
mod prepared;
mod preparing;
mod prompt;
mod response;
pub(crate) mod responses;
mod resuming;
mod sending;
mod thinking;
pub(crate) mod tokenize;
