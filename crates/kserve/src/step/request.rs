//! The request side of a step stream: joining by handle and leaving by `stop`.

use crate::inference::ModelInferRequest;
use crate::names;
use crate::tensor::{RequestBuilder, TensorError, Tensors};

impl RequestBuilder {
    /// Joins the request to the step stream it is sent on. The handle is unique on that stream.
    pub fn handle(&mut self, handle: u64) -> &mut Self {
        self.scalar(names::HANDLE, handle)
    }
}

/// The request that cancels a handle of the same stream. Its answer is the handle's final row; an
/// unknown or finished handle has none.
pub fn stop_request(model_name: &str, handle: u64) -> ModelInferRequest {
    RequestBuilder::new(model_name, String::new(), 16)
        .handle(handle)
        .scalar(names::STOP, true)
        .build()
}

/// The handle of a request that asks for step batching.
///
/// # Errors
/// When the tensor is there and is not one UINT64.
pub fn handle_of(inputs: &Tensors<'_>) -> Result<Option<u64>, TensorError> {
    inputs.scalar(names::HANDLE)
}

/// Whether a request cancels instead of asking.
///
/// # Errors
/// When the tensor is there and is not one BOOL.
pub fn is_stop(inputs: &Tensors<'_>) -> Result<bool, TensorError> {
    Ok(inputs.scalar(names::STOP)?.unwrap_or(false))
}
