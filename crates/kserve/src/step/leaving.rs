//! How a worker says on a stream of step messages that it is about to end, so that its requests may continue elsewhere.

use crate::inference::infer_parameter::ParameterChoice;
use crate::names;
use crate::streamed::{EncodedResponse, ResponseView};

use super::{Handle, StepBatch};

/// A step message without rows, by which the worker says that it is about to end. To a client that does not know it,
/// it says nothing.
pub fn leaving_message(model_name: &str) -> EncodedResponse {
    let mut message = StepBatch::<Handle>::default().write(model_name);
    message.parameter(names::LEAVING, ParameterChoice::BoolParam(true));
    message.build()
}

/// Whether the worker that sent this is about to end.
pub fn is_leaving(message: &ResponseView<'_>) -> bool {
    message
        .parameters
        .iter()
        .any(|(name, _)| *name == names::LEAVING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streamed::StreamedResponse;

    #[test]
    fn a_worker_that_leaves_sends_no_rows() {
        let message = leaving_message("m");
        let view = message.view().unwrap();
        assert!(is_leaving(&view));
        assert_eq!(StepBatch::decode(view).unwrap(), StepBatch::default());
        let step = StepBatch::<Handle>::default().encode("m");
        assert!(!is_leaving(&step.view().unwrap()));
    }
}
