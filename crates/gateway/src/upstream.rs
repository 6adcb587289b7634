//! Everything towards the servers, be they Inflight workers or plain Tritons: connections, handles, the
//! table of models. Knows KServe and our asset service; knows nothing of HTTP or OpenAI.

pub mod assets;
pub mod connect;
pub mod connection;
pub mod outbound;
pub mod registry;
pub mod served;
pub mod steps;
pub mod table;
pub mod tokenizers;
pub mod triton;
