//! Why a message's tensors could not be read.

use super::DataType;

/// A malformed tensor, or one with another type or size than its reader needs. Names the tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    #[error("the message has {count} tensors; the limit is {limit}")]
    TooMany { count: usize, limit: usize },
    #[error("tensor number {position} has no name")]
    Unnamed { position: usize },
    #[error("tensor `{tensor}` is given twice")]
    Duplicate { tensor: String },
    #[error("tensor `{tensor}` has unknown datatype `{datatype}`")]
    UnknownDatatype { tensor: String, datatype: String },
    #[error("tensor `{tensor}` has shape {shape:?}, where no dimension may be negative")]
    NegativeDimension { tensor: String, shape: Vec<i64> },
    #[error("tensor `{tensor}` has shape {shape:?}, more elements than can be addressed")]
    ShapeOverflow { tensor: String, shape: Vec<i64> },
    #[error(
        "tensor `{tensor}` is in shared memory, which is not supported; send its data in the message"
    )]
    SharedMemory { tensor: String },
    #[error(
        "the message has {tensors} tensors but {raw} raw contents; every tensor needs exactly one"
    )]
    RawCount { tensors: usize, raw: usize },
    #[error(
        "tensor `{tensor}` has typed contents in a message that has raw contents; send one kind"
    )]
    RawAndTyped { tensor: String },
    #[error(
        "tensor `{tensor}` of type {datatype} has contents in `{found}`, expected `{expected}`"
    )]
    WrongContents {
        tensor: String,
        datatype: DataType,
        found: &'static str,
        expected: &'static str,
    },
    #[error("tensor `{tensor}` of type {datatype} can only be sent raw")]
    RawOnly { tensor: String, datatype: DataType },
    #[error("tensor `{tensor}` has the value {value}, which {datatype} cannot hold")]
    OutOfRange {
        tensor: String,
        datatype: DataType,
        value: i64,
    },
    #[error(
        "tensor `{tensor}` of type {datatype} and shape {shape:?} needs {expected} bytes, got {actual}"
    )]
    ByteLength {
        tensor: String,
        datatype: DataType,
        shape: Vec<i64>,
        expected: usize,
        actual: usize,
    },
    #[error("tensor `{tensor}` of shape {shape:?} needs {expected} elements, got {actual}")]
    ElementCount {
        tensor: String,
        shape: Vec<i64>,
        expected: usize,
        actual: usize,
    },
    #[error(
        "element {element} of tensor `{tensor}` says {length} bytes at offset {offset}, past its \
         {available} bytes"
    )]
    Truncated {
        tensor: String,
        element: usize,
        offset: usize,
        length: usize,
        available: usize,
    },
    #[error("tensor `{tensor}` is {actual}, expected {expected}")]
    Datatype {
        tensor: String,
        expected: DataType,
        actual: DataType,
    },
    #[error("tensor `{tensor}` has shape {shape:?}, expected a single value")]
    NotScalar { tensor: String, shape: Vec<i64> },
    #[error("element {element} of tensor `{tensor}` is not valid UTF-8")]
    InvalidUtf8 { tensor: String, element: usize },
    #[error("tensor `{tensor}` is missing")]
    Missing { tensor: String },
}
