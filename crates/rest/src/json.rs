//! The JSON of what is not a tensor: values, lists and parameters. Pure.

use inflight_kserve::inference::InferParameter;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::streamed::Parameter;
use serde_json::Value;

use crate::error::RestError;

/// Why a body cannot be read.
pub(crate) fn not_json(error: serde_json::Error) -> RestError {
    RestError::invalid(format!("the request's JSON cannot be read: {error}"))
}

/// Appends a value as JSON.
pub(crate) fn json(value: &(impl serde::Serialize + ?Sized), out: &mut Vec<u8>) {
    // Numbers, texts and maps of them always are JSON, and a vector takes them all.
    if let Err(error) = serde_json::to_writer(&mut *out, value) {
        tracing::error!(%error, "cannot write JSON");
    }
}

/// Appends items between two brackets.
pub(crate) fn separated<I: IntoIterator>(
    items: I,
    [open, close]: [u8; 2],
    out: &mut Vec<u8>,
    mut write: impl FnMut(I::Item, &mut Vec<u8>),
) {
    out.push(open);
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(item, out);
    }
    out.push(close);
}

/// What the value of a parameter may be.
pub(crate) const PARAMETER: &str = "a number, a string, true or false";

/// A parameter as gRPC writes it.
pub(crate) fn parameter(name: &str, value: &Value) -> Result<InferParameter, RestError> {
    parameter_of(value)
        .ok_or_else(|| RestError::invalid(format!("the parameter `{name}` must be {PARAMETER}")))
}

/// The parameter of this value. `None`: it is not one of [`PARAMETER`].
pub(crate) fn parameter_of(value: &Value) -> Option<InferParameter> {
    let choice = match value {
        Value::Bool(flag) => ParameterChoice::BoolParam(*flag),
        Value::String(text) => ParameterChoice::StringParam(text.clone()),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => ParameterChoice::Int64Param(number),
            (None, Some(number)) => ParameterChoice::Uint64Param(number),
            (None, None) => ParameterChoice::DoubleParam(number.as_f64().unwrap_or(f64::NAN)),
        },
        _ => return None,
    };
    Some(InferParameter {
        parameter_choice: Some(choice),
    })
}

/// Appends a parameter's value as JSON.
pub(crate) fn write_parameter(parameter: Parameter<'_>, out: &mut Vec<u8>) {
    match parameter {
        Parameter::Unset => out.extend_from_slice(b"null"),
        Parameter::Bool(flag) => json(&flag, out),
        Parameter::Int64(number) => json(&number, out),
        Parameter::Uint64(number) => json(&number, out),
        Parameter::Double(number) => json(&number, out),
        Parameter::Text(text) => json(text, out),
    }
}
