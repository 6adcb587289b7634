//! What the gateway knows about a model, whichever server it runs on. Plain values: owns what a model is,
//! what it can do, and the parameters of one generation; knows nothing of OpenAI, HTTP or connections.

pub(crate) mod adapter;
pub(crate) mod capability;
pub(crate) mod dialect;
pub(crate) mod for_model;
pub(crate) mod formats;
pub(crate) mod sampling_params;
pub(crate) mod served;
