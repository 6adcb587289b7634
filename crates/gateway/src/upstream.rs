//! Everything towards the servers, whether Inflight workers or plain Tritons: connections, handles, the
//! table of models, dispatch. Knows KServe and our asset service; knows nothing of HTTP or OpenAI.
//!
//! Both kinds of server are driven through [`connection::Connection`]; what differs between them is in
//! [`inflight`] and [`triton`].

pub(crate) mod adapter_control;
pub(crate) mod chat_templates;
pub(crate) mod classify;
pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod context;
pub(crate) mod delivery;
pub(crate) mod discovery;
pub(crate) mod dispatch;
pub(crate) mod forward;
pub(crate) mod handles;
pub(crate) mod inbox;
pub(crate) mod inflight;
pub(crate) mod peer;
pub(crate) mod pool;
pub(crate) mod prompt_request;
pub(crate) mod pulse;
pub(crate) mod registry;
pub(crate) mod request_queue;
pub(crate) mod rpc;
pub(crate) mod shared_stream;
pub(crate) mod slot;
pub(crate) mod table;
pub(crate) mod triton;
pub(crate) mod turn;
