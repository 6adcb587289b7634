//! A server of another maker that answers OpenAI's clients itself, such as vLLM, SGLang or trtllm-serve: this gateway
//! watches it, so that it can be picked for requests that reach it another way. `server` watches its models, `asking`
//! asks for them and for its load, `models` and `figures` read what it says, `names` what its events say (all pure), `feed` makes reports of that.

mod asking;
mod feed;
mod figures;
mod getter;
mod models;
mod names;
mod server;

pub use self::server::{NotReady, Server};
