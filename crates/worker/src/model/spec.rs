//! How a tensor of any model is described, by one builder. Which tensors there are is in the models' tables.

use inflight_kserve::tensor::DataType;

/// One input tensor, and what becomes of it.
#[derive(Clone, Copy, Debug)]
pub struct TensorSpec<Role> {
    pub name: &'static str,
    pub datatype: DataType,
    /// Without the batch dimension; -1 is any length.
    pub dims: &'static [i64],
    pub optional: bool,
    /// Rows of a batch may differ in length (Triton's `allow_ragged_batch`).
    pub ragged: bool,
    /// Triton reshapes it to nothing: its backends see the batch dimension alone.
    pub squeezed: bool,
    /// Any float type will do; Triton's config.pbtxt chooses one, and `datatype` is its default.
    pub any_float: bool,
    /// Whether the newest config.pbtxt of Triton's model declares it; others are ours, names of older releases, or
    /// what only Triton's backend reads.
    pub declared: bool,
    pub role: Role,
}

/// One output tensor.
#[derive(Clone, Copy, Debug)]
pub struct OutputSpec {
    pub name: &'static str,
    pub datatype: DataType,
    /// Without the batch dimension; -1 is any length.
    pub dims: &'static [i64],
    /// Whether the newest config.pbtxt of Triton's model declares it.
    pub declared: bool,
}

pub(crate) const ONE: &[i64] = &[1];
pub(crate) const LIST: &[i64] = &[-1];
pub(crate) const MATRIX: &[i64] = &[-1, -1];

impl<Role: Copy> TensorSpec<Role> {
    /// One that is optional and declared.
    pub(crate) const fn new(
        name: &'static str,
        datatype: DataType,
        dims: &'static [i64],
        role: Role,
    ) -> Self {
        Self {
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

    pub(crate) const fn required(mut self) -> Self {
        self.optional = false;
        self
    }

    pub(crate) const fn dims(mut self, dims: &'static [i64]) -> Self {
        self.dims = dims;
        self
    }

    pub(crate) const fn ragged(mut self) -> Self {
        self.ragged = true;
        self
    }

    pub(crate) const fn squeezed(mut self) -> Self {
        self.squeezed = true;
        self
    }

    pub(crate) const fn any_float(mut self) -> Self {
        self.any_float = true;
        self
    }

    pub(crate) const fn undeclared(mut self) -> Self {
        self.declared = false;
        self
    }

    /// The same tensor, of which something else becomes.
    pub(crate) fn with<Other>(&self, role: Other) -> TensorSpec<Other> {
        let Self {
            name,
            datatype,
            dims,
            optional,
            ragged,
            squeezed,
            any_float,
            declared,
            role: _,
        } = *self;
        TensorSpec {
            name,
            datatype,
            dims,
            optional,
            ragged,
            squeezed,
            any_float,
            declared,
            role,
        }
    }
}

impl OutputSpec {
    /// One that is declared.
    pub(crate) const fn new(name: &'static str, datatype: DataType, dims: &'static [i64]) -> Self {
        Self {
            name,
            datatype,
            dims,
            declared: true,
        }
    }

    pub(crate) const fn undeclared(mut self) -> Self {
        self.declared = false;
        self
    }
}
