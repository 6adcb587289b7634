//! A tensor against its row of a table: datatype, shape and batch size, for the core model and the text models.
//!
//! Knows nothing of tables; each model's own check says which tensors it has.

use inflight_kserve::tensor::DataType;

/// How a tensor differs from what its model declares. The text is for the client.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum TensorMismatch {
    #[error("tensor `{tensor}` is {actual}, expected {expected}")]
    Datatype {
        tensor: &'static str,
        expected: DataType,
        actual: DataType,
    },
    #[error("tensor `{tensor}` has shape {shape:?}, expected [batch, {dims}]")]
    Shape {
        tensor: &'static str,
        shape: Vec<i64>,
        dims: String,
    },
    #[error("tensor `{tensor}` has batch size `{actual}` where `{expected_of}` has `{expected}`")]
    BatchSize {
        tensor: &'static str,
        actual: usize,
        expected_of: &'static str,
        expected: usize,
    },
    #[error("the batch has `{rows}` rows, at most `{limit}` are supported: split it")]
    BatchLimit { rows: usize, limit: usize },
}

impl TensorMismatch {
    /// `shape` as it was sent; `dims` as the table has them, without the batch dimension.
    pub(crate) fn shape(tensor: &'static str, shape: &[i64], dims: &[i64]) -> Self {
        let dims = dims.iter().map(|size| match size {
            -1 => "n".to_owned(),
            size => size.to_string(),
        });
        Self::Shape {
            tensor,
            shape: shape.to_vec(),
            dims: dims.collect::<Vec<_>>().join(", "),
        }
    }
}

/// Whether `shape` is one of `dims`, where -1 is any length; both without the batch dimension.
pub(crate) fn fits(shape: &[i64], dims: &[i64]) -> bool {
    let mut sizes = shape.iter().zip(dims);
    shape.len() == dims.len() && sizes.all(|(has, wants)| *wants == -1 || has == wants)
}

/// That a tensor declared as `expected` may come as `actual`; `any_float`: it may come in each float type.
///
/// # Errors
/// [`TensorMismatch::Datatype`].
pub(crate) fn check_datatype(
    tensor: &'static str,
    expected: DataType,
    any_float: bool,
    actual: DataType,
) -> Result<(), TensorMismatch> {
    use DataType::{Bf16, Fp16, Fp32};
    if actual == expected || any_float && matches!(actual, Fp16 | Bf16 | Fp32) {
        return Ok(());
    }
    Err(TensorMismatch::Datatype {
        tensor,
        expected,
        actual,
    })
}

/// As many rows as came, unless there is none or more than `limit`.
///
/// # Errors
/// [`TensorMismatch::BatchLimit`].
pub(crate) fn checked_rows(rows: usize, limit: usize) -> Result<usize, TensorMismatch> {
    let limit = limit.max(1);
    if rows == 0 || rows > limit {
        return Err(TensorMismatch::BatchLimit { rows, limit });
    }
    Ok(rows)
}
