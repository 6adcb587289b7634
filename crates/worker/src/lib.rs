//! The worker's gRPC server: Triton's models over an [`executor::Executor`].
//!
//! Knows KServe and executors. Deliberately knows nothing of OpenAI or of Python.

pub mod executor;
