//! What the gateway knows about a model. Plain values; knows nothing of OpenAI, HTTP or connections.
//!
//! | module | owns |
//! |---|---|
//! | `served`, `capability`, `adapter` | a model as one of its servers has it, what it can do, its adapters |
//! | `dialect` | how a plain Triton names its tensors |
//! | `format_options`, `for_model` | how it writes calls and reasoning, and options that are given by model |
//! | `sampling_params` | the parameters of one generation |

pub mod adapter;
pub mod capability;
pub mod dialect;
pub mod for_model;
pub mod format_options;
pub mod sampling_params;
pub mod served;
