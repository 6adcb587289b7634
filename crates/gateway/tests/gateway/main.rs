//! The gateway over real sockets, with a scripted worker behind it and a plain HTTP client in front.

mod chat;
mod completions;
mod errors;
mod lifecycle;
mod support;
mod workers;
