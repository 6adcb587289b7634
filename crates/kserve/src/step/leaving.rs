//! How a worker says on a stream of step messages that it is about to end, so that its requests may continue elsewhere.

use crate::inference::infer_parameter::ParameterChoice;
use crate::inference::{InferParameter, ModelInferResponse};
use crate::names;

use super::{Handle, StepBatch};

/// A step message without rows, by which the worker says that it is about to end. To a client that does not know it,
/// it says nothing.
pub fn leaving_message(model_name: &str) -> ModelInferResponse {
    let mut message = StepBatch::<Handle>::default().encode(model_name);
    let yes = InferParameter {
        parameter_choice: Some(ParameterChoice::BoolParam(true)),
    };
    message.parameters.insert(names::LEAVING.to_owned(), yes);
    message
}

/// Whether the worker that sent this is about to end.
pub fn is_leaving(message: &ModelInferResponse) -> bool {
    !message.parameters.is_empty() && message.parameters.contains_key(names::LEAVING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_leaves_sends_no_rows() {
        let message = leaving_message("m");
        assert!(is_leaving(&message));
        assert_eq!(StepBatch::decode(&message).unwrap(), StepBatch::default());
        assert!(!is_leaving(&StepBatch::<Handle>::default().encode("m")));
    }
}
