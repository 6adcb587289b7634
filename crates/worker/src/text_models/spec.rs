//! How a tensor of a text model is described. Which tensors there are is in `table` and `llmapi`.

use inflight_kserve::tensor::DataType;

/// The output that ensemble and BLS are asked for.
pub(crate) const TEXT_OUTPUT: &str = "text_output";
/// What becomes of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Preprocessing reads it under this name.
    Preprocessing(&'static str),
    /// The core model takes it as it is, under this name.
    Core(&'static str),
    /// BLS takes it as it is, under this name.
    Bls(&'static str),
    /// Whether the answer repeats the prompt.
    ExcludeInput,
    /// Read by the model itself.
    Own,
    /// Returned as it came, as the output of this name.
    Returned(&'static str),
    /// Images and video: refused by name.
    Unsupported,
}

/// One input tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextInput {
    pub(crate) name: &'static str,
    pub(crate) datatype: DataType,
    /// Without the batch dimension; -1 is any length.
    pub(crate) dims: &'static [i64],
    pub(crate) optional: bool,
    pub(crate) ragged: bool,
    pub(crate) squeezed: bool,
    /// FP16, BF16 and FP32 are all taken; `datatype` is the default.
    pub(crate) any_float: bool,
    /// Whether the newest config.pbtxt of Triton's model has it; others are names of older releases.
    pub(crate) declared: bool,
    pub(crate) role: Role,
}

/// One output tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextOutput {
    pub(crate) name: &'static str,
    pub(crate) datatype: DataType,
    pub(crate) dims: &'static [i64],
    pub(crate) declared: bool,
}

pub(super) const ONE: &[i64] = &[1];
pub(super) const LIST: &[i64] = &[-1];
pub(super) const MATRIX: &[i64] = &[-1, -1];
pub(super) const IMAGES: &[i64] = &[-1, -1, -1, -1];

pub(super) const fn input(
    name: &'static str,
    datatype: DataType,
    dims: &'static [i64],
    role: Role,
) -> TextInput {
    TextInput {
        name,
        datatype,
        dims,
        optional: true,
        ragged: false,
        squeezed: false,
        any_float: false,
        declared: true,
        role,
    }
}

pub(super) const fn output(
    name: &'static str,
    datatype: DataType,
    dims: &'static [i64],
) -> TextOutput {
    TextOutput {
        name,
        datatype,
        dims,
        declared: true,
    }
}

impl TextInput {
    pub(super) const fn required(self) -> Self {
        Self {
            optional: false,
            ..self
        }
    }

    pub(super) const fn dims(self, dims: &'static [i64]) -> Self {
        Self { dims, ..self }
    }

    pub(super) const fn ragged(self) -> Self {
        Self {
            ragged: true,
            ..self
        }
    }

    pub(super) const fn squeezed(self) -> Self {
        Self {
            squeezed: true,
            ..self
        }
    }

    pub(super) const fn any_float(self) -> Self {
        Self {
            any_float: true,
            ..self
        }
    }

    pub(super) const fn older(self) -> Self {
        Self {
            declared: false,
            ..self
        }
    }
}
