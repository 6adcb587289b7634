//! Which request a row of a step stream belongs to, and how a request joins and leaves the stream.

use std::fmt;

use crate::inference::ModelInferRequest;
use crate::names;
use crate::tensor::{RequestBuilder, TensorError, Tensors, element};

/// The number that a client gives a request on its step stream. Two streams may use the same one.
///
/// A worker's executor knows the request by another number, so the two have different types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

element! { Handle => Uint64 }

impl Handle {
    /// The handle of a request that asks for step batching; `None` for any other request.
    ///
    /// # Errors
    /// When `inflight_handle` is there but is not a single UINT64.
    pub fn of(inputs: &Tensors<'_>) -> Result<Option<Self>, TensorError> {
        inputs.scalar(names::HANDLE)
    }

    fn from_le_bytes(bytes: [u8; 8]) -> Self {
        Self(u64::from_le_bytes(bytes))
    }

    fn to_le_bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl RequestBuilder {
    /// Joins the request to the step stream it is sent on.
    pub fn handle(&mut self, handle: Handle) -> &mut Self {
        self.scalar(names::HANDLE, handle)
    }
}

/// The request that cancels `handle` on the same stream. The answer is the handle's final row; there is
/// none for a handle that is unknown or has finished.
///
/// ```
/// use inflight_kserve::step::{Handle, is_stop, stop_request};
/// use inflight_kserve::tensor::Tensors;
///
/// let request = stop_request("tensorrt_llm", Handle(7));
/// let inputs = Tensors::inputs(&request)?;
/// assert_eq!(Handle::of(&inputs)?, Some(Handle(7)));
/// assert!(is_stop(&inputs)?);
/// # Ok::<(), inflight_kserve::tensor::TensorError>(())
/// ```
pub fn stop_request(model_name: &str, handle: Handle) -> ModelInferRequest {
    RequestBuilder::new(model_name, String::new(), 16)
        .handle(handle)
        .scalar(names::STOP, true)
        .build()
}

/// Whether a request cancels another one instead of asking for tokens.
///
/// # Errors
/// When `stop` is there but is not a single BOOL.
pub fn is_stop(inputs: &Tensors<'_>) -> Result<bool, TensorError> {
    Ok(inputs.scalar(names::STOP)?.unwrap_or(false))
}
