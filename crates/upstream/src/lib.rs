//! Everything between the gateway and its servers, both Inflight workers and plain Triton servers: which servers
//! there are, connections, the table of models, and the delivery of a request to one server after another. Knows
//! KServe and our asset service; knows nothing of HTTP servers, or of OpenAI's or Anthropic's API. What a model is and can do is
//! [`inflight_models`]'.
//!
//! All kinds of server are driven through [`connection::Connection`]; what differs between them is in
//! [`inflight`], [`triton`] and [`watched`], whose servers get no requests from here.

#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod adapter_control;
pub mod chat_templates;
pub mod classify;
pub mod connect;
pub mod connection;
pub mod context;
pub mod delivery;
pub mod discovery;
pub mod dispatch;
pub mod ending;
pub mod expiry;
pub mod forward;
pub mod handles;
pub mod holding;
pub mod inbox;
pub mod inflight;
pub mod metrics;
pub mod peer;
pub mod phases;
pub mod placement;
pub mod pool;
pub mod process;
pub mod prompt_request;
pub mod pulse;
pub mod registry;
pub mod request_queue;
pub mod rpc;
pub mod shared_stream;
pub mod slot;
pub mod stops;
pub mod survival;
pub mod table;
pub mod trace;
pub mod transcript;
pub mod triton;
pub mod visit;
pub mod watched;
