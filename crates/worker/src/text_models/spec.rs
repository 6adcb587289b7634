//! What becomes of a text model's inputs. Which tensors there are is in `table` and `llmapi`.

use crate::model::TensorSpec;

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

pub(crate) type TextInput = TensorSpec<Role>;

pub(super) const IMAGES: &[i64] = &[-1, -1, -1, -1];
