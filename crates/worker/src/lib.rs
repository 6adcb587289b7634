//! The worker's gRPC server: Triton's models over an [`executor::Executor`].
//!
//! Knows KServe and executors. Deliberately knows nothing of OpenAI or of Python.

pub mod executor;
pub mod options;
mod serve;
pub mod simulated;

pub use options::{BoundAddresses, WorkerError, WorkerExit, WorkerOptions};
pub use serve::serve;
pub use simulated::{SimulatedExecutor, SimulatedOptions};
