//! Tensor codec: named, typed arrays in and out of KServe infer messages.
//!
//! Reading is total: whatever a peer sends is either a [`Tensors`] whose every shape, type and length
//! agree, or a [`TensorError`] that names the tensor. Data stays a slice of the received message where
//! the wire has it raw. Knows nothing of which tensors a model has.

mod data_type;
mod element;
mod error;
mod read;
mod wire;
mod write;

pub use data_type::DataType;
pub use element::Element;
pub(crate) use element::{element, sealed};
pub use error::TensorError;
pub use read::{BytesElements, Tensor, Tensors};
pub use write::{RequestBuilder, ResponseBuilder};

#[cfg(test)]
mod tests;
