//! Tensor codec: named, typed arrays in and out of KServe infer messages.
//!
//! Whatever a peer sends becomes either [`Tensors`], whose shapes, types and lengths agree, or a
//! [`TensorError`] that names the tensor. Raw data stays a slice of the received message. Knows nothing of
//! which tensors a model has.
//!
//! ```
//! use inflight_kserve::tensor::{ResponseBuilder, Tensors};
//!
//! let response = ResponseBuilder::new("tensorrt_llm", "request-1", 0)
//!     .push("output_ids", &[1, 1, 2], &[3, 5])
//!     .push_bytes("text", &[1], ["hello"])
//!     .build();
//!
//! let outputs = Tensors::outputs(&response)?;
//! assert_eq!(outputs.values::<i32>("output_ids")?, Some(vec![3, 5]));
//! assert_eq!(outputs.require("text")?.string()?, "hello");
//! let error = outputs.values::<f32>("output_ids").unwrap_err();
//! assert_eq!(error.to_string(), "tensor `output_ids` is INT32, expected FP32");
//! # Ok::<(), inflight_kserve::tensor::TensorError>(())
//! ```

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
pub(crate) use wire::{SHARED_MEMORY_REGION, WireTensor};
pub(crate) use write::pack_bytes;
pub use write::{RequestBuilder, ResponseBuilder};

#[cfg(test)]
mod tests;
