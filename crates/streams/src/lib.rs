//! From a server's output to what a client reads, streamed or whole. A route is only a label here; how a server is
//! picked and reached is [`inflight_upstream`]'s.
//!
//! | module | owns |
//! |---|---|
//! | `active_request`, `prompts_mover`, `generated` | the request being answered, and its move to another worker |
//! | `choice`, `answer`, `logprobs` | one choice: from tokens to text, reasoning and tool calls |
//! | `details` | what an answer reports besides: usage, finish reasons, log probabilities of the prompt |
//! | `body` | the body of a streamed response, whatever it is written as |
//! | `chunks`, `whole`, `messages`, `responses` | how chunks, whole answers, Anthropic's messages and responses are written |
//! | `error` | what went wrong with a worker, as clients read it |
//! | `record`, `metrics`, `requests` | what is logged, measured and shown of a request |

pub mod active_request;
pub mod answer;
pub mod body;
pub mod choice;
pub mod chunks;
pub mod details;
pub mod error;
mod generated;
pub mod logprobs;
pub mod messages;
pub mod metrics;
pub mod prompts_mover;
pub mod record;
pub mod requests;
pub mod responses;
pub mod whole;
