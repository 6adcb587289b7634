//! What becomes of BLS' answer to a request with TensorRT-LLM's `llmapi` tensors.

use inflight_kserve::inference::ModelInferResponse;
use inflight_kserve::step::FinishReason;
use inflight_kserve::tensor::{ResponseBuilder, TensorError, Tensors};

use super::tensors::{FINISH_REASON, METRICS, STOP_REASON, SUM};
use crate::model::CORE_MODEL_VERSION;
use crate::text_models::spec::TEXT_OUTPUT;
use crate::text_models::wanted::Wanted;

/// What Python writes where there is no reason.
const NONE: &str = "None";

/// What of an answer is sent, and how.
#[derive(Debug)]
pub(in crate::text_models) struct Form {
    pub(super) wanted: Wanted,
    pub(super) is_batched: bool,
    pub(super) has_finish_reason: bool,
    pub(super) has_stop_reason: bool,
}

impl Form {
    /// The answer that BLS' is. `reason`: why the sequence has ended. `stop`: the stop string that has ended it.
    ///
    /// # Errors
    /// It is malformed.
    pub(in crate::text_models) fn answer(
        &self,
        made: &ModelInferResponse,
        reason: FinishReason,
        stop: Option<&str>,
    ) -> Result<ModelInferResponse, TensorError> {
        let outputs = Tensors::outputs(made)?;
        let shape: &[i64] = if self.is_batched { &[1, 1] } else { &[1] };
        let mut out = ResponseBuilder::new(made.model_name.as_str(), made.id.as_str(), 64);
        out.version(CORE_MODEL_VERSION);
        let reasons = [
            (FINISH_REASON, self.has_finish_reason, word(reason, stop)),
            (STOP_REASON, self.has_stop_reason, stop.unwrap_or(NONE)),
        ];
        let passed = std::iter::once((TEXT_OUTPUT, TEXT_OUTPUT));
        for (name, bls) in passed.chain([SUM]).chain(METRICS) {
            if let Some(tensor) = outputs.get(bls)
                && self.wanted.has(name)
            {
                out.push_raw(name, tensor.datatype, shape, tensor.data.clone());
            }
            if name == TEXT_OUTPUT {
                for (name, is_asked, text) in reasons {
                    if is_asked && self.wanted.has(name) {
                        out.push_bytes(name, shape, [text]);
                    }
                }
            }
        }
        let mut answer = out.build();
        answer.parameters.clone_from(&made.parameters);
        Ok(answer)
    }
}

/// TensorRT-LLM's word for a reason.
fn word(reason: FinishReason, stop: Option<&str>) -> &'static str {
    match reason {
        _ if stop.is_some() => "stop",
        FinishReason::NotFinished => NONE,
        FinishReason::EndId | FinishReason::StopWords => "stop",
        FinishReason::Length => "length",
        FinishReason::TimedOut => "timeout",
        FinishReason::Cancelled => "cancelled",
    }
}
