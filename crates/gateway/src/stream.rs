//! From a server's output to what a client reads: the request being answered, its choices, and the body
//! of the response, streamed or whole.

pub(crate) mod active_request;
pub(crate) mod answer;
pub(crate) mod body;
pub(crate) mod choice;
pub(crate) mod chunks;
pub(crate) mod details;
mod generated;
pub(crate) mod logprobs;
pub(crate) mod messages;
pub(crate) mod prompts_mover;
pub(crate) mod record;
pub(crate) mod responses;
pub(crate) mod whole;
