//! Everything towards the workers: connections, handles, the table of models. Knows KServe and our
//! asset service; knows nothing of HTTP or OpenAI.

pub mod assets;
pub mod connection;
pub mod outbound;
pub mod registry;
pub mod table;
