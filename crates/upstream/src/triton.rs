//! A plain Triton server: any number of models, one stream per request. `server` finds and watches the
//! models, `request` writes requests and `answer` reads responses (both pure), `exchange` is one
//! request's life.

mod answer;
mod exchange;
mod request;
mod server;
pub mod tokenizers;

pub use self::server::{NotReady, Server};
