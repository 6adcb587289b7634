//! From a request of the OpenAI API to sampling parameters. Pure: values in, values out; no I/O, no async,
//! no randomness. Knows nothing of tensors: these are written in `upstream`, one way per protocol.
//!
//! [`requested`] is what either endpoint asks for, [`resolve`] settles it for a model: defaults, limits,
//! capabilities. `extras` are settings beyond OpenAI's, and
//! [`error`] says what a model cannot serve.

pub mod error;
mod extras;
pub mod requested;
pub mod resolve;

#[cfg(test)]
mod tests;
