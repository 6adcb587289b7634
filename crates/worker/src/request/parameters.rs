//! Request parameters: what a request has besides tensors. Those that change the answer are honoured or
//! refused by name; those that no model reads (trace context, a client's own) pass.

use std::time::Duration;

use bytes::Bytes;
use inflight_kserve::inference::{
    InferParameter, ModelInferRequest, infer_parameter::ParameterChoice,
};
use inflight_kserve::names::{
    self, CONTEXT_ONLY, GENERATION_ONLY, MAY_WAIT, REQUEST_TYPE, TIMEOUT,
};

use crate::executor::{NamedTensor, capability};
use crate::model::{PRIORITY, PRIORITY_LEVELS};

use super::{Limits, RequestError};

/// Triton's words; the first is what a request without the parameter asks for.
const REQUEST_TYPES: [&str; 3] = [CONTEXT_AND_GENERATION, CONTEXT_ONLY, GENERATION_ONLY];
const CONTEXT_AND_GENERATION: &str = "context_and_generation";
/// Characters of a refused value that its refusal repeats.
const MAX_SHOWN: usize = 64;

/// What the parameters ask of the executor; the same for every row of the batch.
#[derive(Debug, Default)]
pub(super) struct Parameters {
    /// For [`Request::tensors`](crate::executor::Request::tensors), under the parameters' names:
    /// `request_type` BYTES `[1]`; `priority` FP32 `[1]`, from 0 to 1, where 1 goes first.
    pub(super) tensors: Vec<NamedTensor>,
    pub(super) context_only: bool,
    /// How long the whole request may take, from its arrival.
    pub(super) timeout: Option<Duration>,
    /// Whether rows of several iterations may be sent together.
    pub(super) may_wait: bool,
}

/// Reads the parameters.
///
/// # Errors
/// One that would change the answer and is not honoured, has no such value, or is beyond the executor.
pub(super) fn read(
    message: &ModelInferRequest,
    limits: &Limits,
) -> Result<Parameters, RequestError> {
    let mut read = Parameters::default();
    for (name, parameter) in &message.parameters {
        match name.as_str() {
            REQUEST_TYPE => request_type(parameter, limits, &mut read)?,
            TIMEOUT => read.timeout = timeout(parameter)?,
            MAY_WAIT => read.may_wait = may_wait(parameter)?,
            PRIORITY => read.tensors.extend(priority(parameter, limits)?),
            _ if asks_for_nothing(name, parameter) => {}
            _ => {
                return Err(RequestError::Parameter {
                    parameter: name.clone(),
                });
            }
        }
    }
    Ok(read)
}

fn request_type(
    parameter: &InferParameter,
    limits: &Limits,
    read: &mut Parameters,
) -> Result<(), RequestError> {
    let known = match &parameter.parameter_choice {
        Some(ParameterChoice::StringParam(text)) => {
            REQUEST_TYPES.into_iter().find(|kind| kind == text)
        }
        _ => None,
    };
    let kind = known.ok_or_else(|| {
        let expected = format!("one of `{}`", REQUEST_TYPES.join("`, `"));
        value(REQUEST_TYPE, parameter, expected)
    })?;
    if !limits.can(capability::CONTEXT_PHASE) {
        if kind == CONTEXT_AND_GENERATION {
            return Ok(());
        }
        return Err(beyond(REQUEST_TYPE, capability::CONTEXT_PHASE, limits));
    }
    read.context_only = kind == CONTEXT_ONLY;
    // A BYTES element is its length and itself.
    let length = (kind.len() as u32).to_le_bytes();
    read.tensors.push(NamedTensor {
        name: REQUEST_TYPE.to_owned(),
        datatype: "BYTES".to_owned(),
        shape: vec![1],
        data: Bytes::from([&length, kind.as_bytes()].concat()),
    });
    Ok(())
}

/// Triton's levels, 1 first, to an executor's scale, 1.0 first; 0 is Triton's "not set".
fn priority(
    parameter: &InferParameter,
    limits: &Limits,
) -> Result<Option<NamedTensor>, RequestError> {
    let level = match &parameter.parameter_choice {
        Some(ParameterChoice::Int64Param(level)) => u32::try_from(*level).ok(),
        Some(ParameterChoice::Uint64Param(level)) => u32::try_from(*level).ok(),
        _ => None,
    };
    let level = level
        .filter(|level| *level <= PRIORITY_LEVELS)
        .ok_or_else(|| {
            let expected = format!("a whole number from 1 (first) to {PRIORITY_LEVELS}, or 0");
            value(PRIORITY, parameter, expected)
        })?;
    if level == 0 {
        return Ok(None);
    }
    if !limits.can(capability::PRIORITY) {
        return Err(beyond(PRIORITY, capability::PRIORITY, limits));
    }
    let scaled = (PRIORITY_LEVELS - level) as f32 / PRIORITY_LEVELS as f32;
    Ok(Some(NamedTensor {
        name: PRIORITY.to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![1],
        data: Bytes::copy_from_slice(&scaled.to_le_bytes()),
    }))
}

/// Microseconds, as Triton's clients send them; 0 is Triton's "not set".
fn timeout(parameter: &InferParameter) -> Result<Option<Duration>, RequestError> {
    let microseconds = match &parameter.parameter_choice {
        None => Some(0),
        Some(ParameterChoice::Int64Param(value)) => u64::try_from(*value).ok(),
        Some(ParameterChoice::Uint64Param(value)) => Some(*value),
        Some(ParameterChoice::StringParam(text)) if text.is_empty() => Some(0),
        _ => None,
    };
    let microseconds = microseconds.ok_or_else(|| {
        let expected = "a whole number of microseconds, or 0 for no limit".to_owned();
        value(TIMEOUT, parameter, expected)
    })?;
    Ok((microseconds > 0).then(|| Duration::from_micros(microseconds)))
}

fn may_wait(parameter: &InferParameter) -> Result<bool, RequestError> {
    match &parameter.parameter_choice {
        None => Ok(false),
        Some(ParameterChoice::BoolParam(may)) => Ok(*may),
        _ => Err(value(MAY_WAIT, parameter, "a boolean".to_owned())),
    }
}

/// Whether a parameter that would change the answer has the value that changes nothing.
fn asks_for_nothing(name: &str, parameter: &InferParameter) -> bool {
    let Some(choice) = &parameter.parameter_choice else {
        return true;
    };
    match name {
        "sequence_id" => match choice {
            ParameterChoice::Int64Param(0) | ParameterChoice::Uint64Param(0) => true,
            ParameterChoice::StringParam(text) => text.is_empty(),
            _ => false,
        },
        "sequence_start" | "sequence_end" => matches!(choice, ParameterChoice::BoolParam(false)),
        names::ENABLE_EMPTY_FINAL_RESPONSE => matches!(choice, ParameterChoice::BoolParam(_)),
        _ => true,
    }
}

fn value(name: &'static str, parameter: &InferParameter, expected: String) -> RequestError {
    let value = match &parameter.parameter_choice {
        None => String::new(),
        Some(ParameterChoice::BoolParam(value)) => value.to_string(),
        Some(ParameterChoice::Int64Param(value)) => value.to_string(),
        Some(ParameterChoice::Uint64Param(value)) => value.to_string(),
        Some(ParameterChoice::DoubleParam(value)) => value.to_string(),
        Some(ParameterChoice::StringParam(text)) => text.chars().take(MAX_SHOWN).collect(),
    };
    RequestError::ParameterValue {
        parameter: name,
        value,
        expected,
    }
}

fn beyond(name: &'static str, capability: &'static str, limits: &Limits) -> RequestError {
    RequestError::ParameterCapability {
        parameter: name,
        capability,
        executor: limits.info.executor.clone(),
    }
}
