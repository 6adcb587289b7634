//! From a request of the OpenAI API to the tensors of the core model: the only place where the two
//! vocabularies meet. Pure: values in, values out; no I/O, no async, no randomness.
//!
//! [`ask`] says what either endpoint asks, [`plan`] settles it against the model (defaults, limits,
//! abilities); [`tensors`] writes it down for a handle at an Inflight worker, and [`triton`] for a
//! request of a plain Triton server's.

pub mod ask;
pub mod plan;
pub mod tensors;
pub mod triton;

#[cfg(test)]
mod tests;
