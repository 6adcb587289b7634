//! Stopping a request by its id, as Triton's clients do: they send a request with the same id and the input `stop`
//! set to true. Models without this input take a parameter of that name. Step streams stop by handle instead; see
//! [`step::stop_request`](crate::step::stop_request).

use crate::inference::ModelInferRequest;
use crate::inference::infer_parameter::ParameterChoice;
use crate::names;
use crate::tensor::{RequestBuilder, Tensors};

/// The request that cancels the one with this id. It is answered with an empty response,
/// also where no request has the id.
///
/// ```
/// use inflight_kserve::stop::{asks_to_stop, stop_by_id};
///
/// let request = stop_by_id("ensemble", "request-1");
/// assert!(asks_to_stop(&request));
/// ```
pub fn stop_by_id(model_name: &str, id: &str) -> ModelInferRequest {
    RequestBuilder::new(model_name, id, 1)
        .scalar(names::STOP, true)
        .build()
}

/// Whether a request cancels another one instead of asking for output.
pub fn asks_to_stop(message: &ModelInferRequest) -> bool {
    let parameter = message.parameters.get(names::STOP);
    if let Some(ParameterChoice::BoolParam(true)) =
        parameter.and_then(|stop| stop.parameter_choice.as_ref())
    {
        return true;
    }
    let mut inputs = message.inputs.iter();
    inputs.any(|input| input.name == names::STOP)
        && Tensors::inputs(message)
            .is_ok_and(|inputs| matches!(inputs.scalar::<bool>(names::STOP), Ok(Some(true))))
}
