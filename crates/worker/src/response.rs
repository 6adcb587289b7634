//! What responses of all models have in common, whatever their outputs: id, final flag and error.

use inflight_kserve::inference::{
    InferParameter, ModelInferResponse, ModelStreamInferResponse, infer_parameter::ParameterChoice,
};
use inflight_kserve::names;
use inflight_kserve::step::RowError;
use tonic::Code;

use crate::model::CORE_MODEL_VERSION;

/// A row's error, and the response that carries its id and final flag.
#[derive(Debug)]
pub(crate) struct FailedRow {
    pub(crate) error: RowError,
    pub(crate) response: ModelInferResponse,
}

/// The error of a context phase that ended by itself and left nothing to generate from.
pub(crate) fn no_context() -> RowError {
    RowError {
        row: 0,
        code: Code::Internal,
        text: format!(
            "the executor ended a `{}` request without `{}`",
            names::CONTEXT_ONLY,
            names::CONTEXT_PHASE_PARAMS
        ),
        retry_after_ms: 0,
    }
}

/// A response without outputs, of the model with this name.
pub(crate) fn empty(model: &str, id: &str, is_final: bool) -> ModelInferResponse {
    let flag = InferParameter {
        parameter_choice: Some(ParameterChoice::BoolParam(is_final)),
    };
    ModelInferResponse {
        model_name: model.to_owned(),
        model_version: CORE_MODEL_VERSION.to_owned(),
        id: id.to_owned(),
        parameters: [(names::FINAL_RESPONSE.to_owned(), flag)].into(),
        ..ModelInferResponse::default()
    }
}

/// A stream's message for a failed request: Triton's `error_message`, with the request's id.
pub(crate) fn failed(
    code: impl Into<Code>,
    text: String,
    mut response: ModelInferResponse,
) -> ModelStreamInferResponse {
    let code = ParameterChoice::Int64Param(i64::from(i32::from(code.into())));
    let code = InferParameter {
        parameter_choice: Some(code),
    };
    let name = names::ERROR_CODE.to_owned();
    response.parameters.insert(name, code);
    ModelStreamInferResponse {
        error_message: text,
        infer_response: Some(response),
    }
}

/// A stream's message for a response.
pub(crate) fn message(response: ModelInferResponse) -> ModelStreamInferResponse {
    ModelStreamInferResponse {
        error_message: String::new(),
        infer_response: Some(response),
    }
}

/// Whether the response is the last one of its request.
pub(crate) fn is_final(response: &ModelInferResponse) -> bool {
    response
        .parameters
        .get(names::FINAL_RESPONSE)
        .is_some_and(|parameter| {
            parameter.parameter_choice == Some(ParameterChoice::BoolParam(true))
        })
}
