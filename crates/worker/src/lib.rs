//! The worker: a gRPC server that speaks KServe v2 in front of an [`executor::Executor`].
//!
//! [`serve()`] runs one until it is asked to stop. Knows KServe, executors and text; deliberately knows
//! nothing of OpenAI or of Python.

mod adapters;
mod assets;
mod batch;
mod cache;
mod catalog;
pub mod embedded;
mod engine;
pub mod executor;
mod health;
mod host_header;
mod hosted;
mod http;
mod loading;
mod metrics;
mod model;
mod model_counters;
mod model_names;
mod options;
mod outbox;
mod registration;
mod request;
mod respond;
mod response;
mod serve;
mod service;
mod shared_memory;
mod simulated;
pub mod text_models;
mod text_stream;
mod trace;

pub use hosted::FurtherModel;
pub use loading::Loading;
pub use metrics::{GaugeFamily, executor_gauges};
pub use model::{
    CORE_MODEL, CORE_MODEL_VERSION, CoreInput, CoreParameter, OutputSpec, Passage, TensorSpec,
    core_inputs, core_outputs, core_parameters,
};
pub use options::{
    BoundAddresses, Collector, InvalidOption, LogLevel, OptionInfo, OptionKind, OptionValue,
    Options, WorkerError, WorkerExit, WorkerOptions,
};
pub use serve::{serve, serve_models, serve_on_network};
pub use simulated::{SimulatedExecutor, SimulatedOptions};
