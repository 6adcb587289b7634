//! From a request of the OpenAI API to the tensors of the core model: the only place where the two
//! vocabularies meet. Pure: values in, values out; no I/O, no async, no randomness.
//!
//! [`ask`] says what either endpoint asks, [`plan`] settles it against the model (defaults, limits,
//! capabilities) and [`tensors`] writes it down for one handle.

pub mod ask;
pub mod plan;
pub mod tensors;

#[cfg(test)]
mod tests;
