//! What a worker's executor is given.

/// A request's number.
pub type ClientId = u64;

/// By number.
#[derive(Debug, PartialEq, Eq)]
pub struct Request(pub ClientId);
