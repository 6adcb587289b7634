//! What a worker's executor is given.

/// A request's number.
pub type ClientId = u64;

/// By number.
#[derive(Debug, PartialEq, Eq)]
pub struct Request(pub ClientId);

/// An output of a row that has no column.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor;

/// The rows of one iteration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponseBatch {
    pub rows: crate::step::StepBatch<ClientId>,
    pub tensors: Vec<(u32, NamedTensor)>,
}
