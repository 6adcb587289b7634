//! Why a step message, or a batch that should become one, is invalid.

use crate::tensor::TensorError;

/// A broken invariant of the columns. Columns are named as tensors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    #[error("a step message has a malformed tensor")]
    Tensor(#[from] TensorError),
    #[error("column `{column}` has {actual} values, expected {expected}")]
    Length {
        column: &'static str,
        expected: u64,
        actual: usize,
    },
    #[error("column `{column}` goes from {previous} to {next} at position {position}")]
    Offsets {
        column: &'static str,
        position: usize,
        previous: u32,
        next: u32,
    },
    #[error("column `{column}` starts with {start} instead of 0")]
    OffsetStart { column: &'static str, start: u32 },
    #[error("column `{column}` ends with {end}, but there are {total} values")]
    OffsetEnd {
        column: &'static str,
        end: u32,
        total: usize,
    },
    #[error("column `{column}` names row {row}, but there are {rows} rows")]
    RowNumber {
        column: &'static str,
        row: u32,
        rows: usize,
    },
    #[error("column `{column}` names row {row} after row {previous}; rows must ascend")]
    RowOrder {
        column: &'static str,
        previous: u32,
        row: u32,
    },
    #[error("row {row} has the value {value} in column `{column}`")]
    Value {
        column: &'static str,
        row: usize,
        value: i64,
    },
    #[error("row {row} carries an error and is not final")]
    ErrorNotFinal { row: u32 },
}
