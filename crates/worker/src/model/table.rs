//! The core model's table for other crates: what it declares, without what the worker does with it.

use inflight_kserve::tensor::DataType;

use super::{INPUTS, OUTPUTS, PARAMETERS};

/// One input tensor.
#[derive(Clone, Copy, Debug)]
pub struct CoreInput {
    pub name: &'static str,
    pub datatype: DataType,
    /// Without the batch dimension; -1 is any length.
    pub dims: &'static [i64],
    pub optional: bool,
    /// Rows of a batch may differ in length.
    pub ragged: bool,
    /// Triton reshapes it to nothing: its backends see the batch dimension alone.
    pub squeezed: bool,
    /// Any float type will do; `datatype` is the default.
    pub any_float: bool,
    /// Whether the config.pbtxt of Triton's model declares it.
    pub declared: bool,
    /// What the executor must be capable of, unless the value asks for nothing.
    pub capability: Option<&'static str>,
    /// The field of [`Request`](crate::executor::Request) that it becomes. None: the worker applies it,
    /// or it travels in `Request::tensors` under its own name.
    pub path: Option<&'static str>,
}

/// One output tensor.
#[derive(Clone, Copy, Debug)]
pub struct CoreOutput {
    pub name: &'static str,
    pub datatype: DataType,
    /// Without the batch dimension; -1 is any length.
    pub dims: &'static [i64],
    /// Whether the config.pbtxt of Triton's model declares it.
    pub declared: bool,
}

/// A request parameter, which travels in `Request::tensors` under its own name.
#[derive(Clone, Copy, Debug)]
pub struct CoreParameter {
    pub name: &'static str,
    pub capability: &'static str,
}

/// The inputs, in the order of Triton's config.pbtxt, then what it does not declare.
pub fn core_inputs() -> impl Iterator<Item = CoreInput> {
    INPUTS.iter().map(|spec| CoreInput {
        name: spec.name,
        datatype: spec.datatype,
        dims: spec.dims,
        optional: spec.optional,
        ragged: spec.ragged,
        squeezed: spec.squeezed,
        any_float: spec.any_float,
        declared: spec.declared,
        capability: spec.capability,
        path: spec.path(),
    })
}

/// The outputs, in the order of Triton's config.pbtxt, then ours.
pub fn core_outputs() -> impl Iterator<Item = CoreOutput> {
    OUTPUTS.iter().map(|spec| CoreOutput {
        name: spec.name,
        datatype: spec.datatype,
        dims: spec.dims,
        declared: spec.by_default,
    })
}

/// The request parameters.
pub fn core_parameters() -> impl Iterator<Item = CoreParameter> {
    PARAMETERS.iter().map(|spec| CoreParameter {
        name: spec.name,
        capability: spec.capability,
    })
}
