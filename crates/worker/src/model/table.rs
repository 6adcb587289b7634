//! The core model's table for other crates: what it declares, without what the worker does with it.

use super::spec::{OutputSpec, TensorSpec};
use super::{INPUTS, OUTPUTS, PARAMETERS};

/// An input tensor of the core model or of a text model.
pub type CoreInput = TensorSpec<Passage>;

/// What becomes of an input.
#[derive(Clone, Copy, Debug)]
pub struct Passage {
    /// What the executor must be capable of, unless the value asks for nothing.
    pub capability: Option<&'static str>,
    /// For the core model, the field of [`Request`](crate::executor::Request) that it becomes; none: the worker applies
    /// it, or it travels in `Request::tensors` under its own name. For a text model, the core model's input that takes
    /// it as it is.
    pub path: Option<&'static str>,
}

/// A request parameter, which travels in `Request::tensors` under its own name.
#[derive(Clone, Copy, Debug)]
pub struct CoreParameter {
    pub name: &'static str,
    pub capability: &'static str,
}

/// The inputs, in the order of Triton's config.pbtxt, then what it does not declare.
pub fn core_inputs() -> impl Iterator<Item = CoreInput> {
    INPUTS.iter().map(|spec| {
        spec.with(Passage {
            capability: spec.role.capability,
            path: spec.path(),
        })
    })
}

/// The outputs, in the order of Triton's config.pbtxt, then ours.
pub fn core_outputs() -> impl Iterator<Item = OutputSpec> {
    OUTPUTS.iter().copied()
}

/// The request parameters.
pub fn core_parameters() -> impl Iterator<Item = CoreParameter> {
    PARAMETERS.iter().map(|spec| CoreParameter {
        name: spec.name,
        capability: spec.capability,
    })
}
