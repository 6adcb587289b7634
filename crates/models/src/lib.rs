//! What the gateway knows about a model, whichever server it runs on. Plain values: owns what a model is,
//! what it can do, and the parameters of one generation; knows nothing of OpenAI, HTTP or connections.

pub mod adapter;
pub mod capability;
pub mod dialect;
pub mod for_model;
pub mod format_options;
pub mod sampling_params;
pub mod served;
