//! For tests only: a worker that does what the test says, and a reader of event streams.
//!
//! Panics are wanted here: each is a failed test.

pub mod model;
pub mod sse;
pub mod worker;
