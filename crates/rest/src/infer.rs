//! KServe's infer call: its JSON, and Triton's binary tensor extension. Pure; owns both forms of a request and of a
//! response.
//!
//! With the extension, the header `Inference-Header-Content-Length` says where the JSON ends, and tensors follow
//! it in their order, packed as in gRPC's raw contents.

use std::borrow::Cow;
use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use inflight_kserve::inference::model_infer_request::{
    InferInputTensor, InferRequestedOutputTensor,
};
use inflight_kserve::inference::{InferParameter, ModelInferRequest, ModelInferResponse};
use inflight_kserve::names::FINAL_RESPONSE;
use inflight_kserve::tensor::{DataType, Tensors};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::RestError;
use crate::json::{json, not_json, parameter, separated, write_parameter};
use crate::memory::{self, REGION as SHARED_MEMORY};
use crate::route::ModelRef;
use crate::tensor_json;

const BINARY_SIZE: &str = "binary_data_size";
const BINARY_OUTPUT: &str = "binary_data_output";
const BINARY: &str = "binary_data";
/// Inputs, and outputs, of one request; models have a few dozen.
const MAX_TENSORS: usize = 256;

/// Which outputs the client wants packed behind the JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputForm {
    by_default: bool,
    by_name: HashMap<String, bool>,
}

impl OutputForm {
    fn is_binary(&self, output: &str) -> bool {
        self.by_name.get(output).copied().unwrap_or(self.by_default)
    }
}

type Parameters<'a> = HashMap<Cow<'a, str>, Value>;

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow, default)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    parameters: Parameters<'a>,
    #[serde(borrow)]
    inputs: Vec<Input<'a>>,
    #[serde(borrow, default)]
    outputs: Vec<Output<'a>>,
}

#[derive(Deserialize)]
struct Input<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    datatype: Cow<'a, str>,
    shape: Vec<i64>,
    #[serde(borrow, default)]
    parameters: Parameters<'a>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Output<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    parameters: Parameters<'a>,
}

/// Reads the body of an infer call. `json_length`: where its JSON ends, if the client said so.
///
/// # Errors
/// 400: what is wrong with it.
pub fn parse(
    model: &ModelRef,
    body: &Bytes,
    json_length: Option<usize>,
) -> Result<(ModelInferRequest, OutputForm), RestError> {
    let (head, mut packed) = match json_length {
        None => (&body[..], Bytes::new()),
        Some(length) if length <= body.len() && length > 0 => {
            (&body[..length], body.slice(length..))
        }
        Some(length) => {
            return Err(RestError::invalid(format!(
                "`Inference-Header-Content-Length` is `{length}`, which must be from 1 to the body's length, `{}`",
                body.len()
            )));
        }
    };
    let Body {
        id,
        mut parameters,
        inputs,
        outputs,
    } = serde_json::from_slice(head).map_err(not_json)?;
    if inputs.len().max(outputs.len()) > MAX_TENSORS {
        return Err(RestError::invalid(format!(
            "the request has more than {MAX_TENSORS} inputs or outputs"
        )));
    }
    let mut form = OutputForm {
        by_default: flag(&mut parameters, BINARY_OUTPUT)?.unwrap_or(false),
        by_name: HashMap::new(),
    };
    let mut request = ModelInferRequest {
        model_name: model.name.clone(),
        model_version: model.version.clone(),
        id: id.unwrap_or_default().into_owned(),
        parameters: self::parameters(parameters)?,
        ..ModelInferRequest::default()
    };
    let mut buffer = BytesMut::new();
    for input in inputs {
        let (tensor, data) = read(input, &mut packed, &mut buffer)?;
        request.inputs.push(tensor);
        request.raw_input_contents.extend(data);
    }
    if !packed.is_empty() {
        return Err(RestError::invalid(format!(
            "`{}` bytes follow the last input; send their number in that input's `{BINARY_SIZE}`",
            packed.len()
        )));
    }
    for mut output in outputs {
        if let Some(binary) = flag(&mut output.parameters, BINARY)? {
            form.by_name.insert(output.name.to_string(), binary);
        }
        request.outputs.push(InferRequestedOutputTensor {
            name: output.name.into_owned(),
            parameters: self::parameters(output.parameters)?,
        });
    }
    Ok((request, form))
}

/// One input, and its packed elements, unless they are in shared memory.
fn read(
    input: Input<'_>,
    packed: &mut Bytes,
    buffer: &mut BytesMut,
) -> Result<(InferInputTensor, Option<Bytes>), RestError> {
    let Input {
        name,
        datatype,
        shape,
        mut parameters,
        data,
    } = input;
    let size = parameters.remove(BINARY_SIZE);
    let is_shared = parameters.contains_key(SHARED_MEMORY);
    let data = match (data, size, is_shared) {
        (Some(values), None, false) => Some(pack(&name, &datatype, &shape, values, buffer)?),
        (None, Some(size), false) => {
            let size = size.as_u64().and_then(|size| usize::try_from(size).ok());
            let size = size.filter(|size| *size <= packed.len()).ok_or_else(|| {
                RestError::invalid(format!(
                    "input `{name}`: `{BINARY_SIZE}` must be a number of bytes that follow the JSON; `{}` are left",
                    packed.len()
                ))
            })?;
            Some(packed.split_to(size))
        }
        (None, None, true) => None,
        (None, None, false) => {
            return Err(RestError::invalid(format!(
                "input `{name}` has no data: send `data`, or `{BINARY_SIZE}` or `{SHARED_MEMORY}` in its `parameters`"
            )));
        }
        _ => {
            return Err(RestError::invalid(format!(
                "input `{name}` has its data twice: send one of `data`, `{BINARY_SIZE}` and `{SHARED_MEMORY}`"
            )));
        }
    };
    let tensor = InferInputTensor {
        name: name.into_owned(),
        datatype: datatype.into_owned(),
        shape,
        parameters: self::parameters(parameters)?,
        contents: None,
    };
    Ok((tensor, data))
}

fn pack(
    name: &str,
    datatype: &str,
    shape: &[i64],
    values: &RawValue,
    buffer: &mut BytesMut,
) -> Result<Bytes, RestError> {
    let kind = DataType::from_name(datatype).ok_or_else(|| {
        RestError::invalid(format!("input `{name}` has unknown datatype `{datatype}`"))
    })?;
    let expected = shape.iter().try_fold(1_u64, |product, dimension| {
        product.checked_mul(u64::try_from(*dimension).ok()?)
    });
    // One array, or one for each dimension.
    let depth = shape.len().max(1);
    let count = tensor_json::pack(values, kind, depth, buffer)
        .map_err(|error| RestError::invalid(format!("input `{name}`: {error}")))?;
    if expected != Some(count as u64) {
        return Err(RestError::invalid(format!(
            "input `{name}` of shape {shape:?} has `{count}` elements"
        )));
    }
    Ok(buffer.split().freeze())
}

fn flag(parameters: &mut Parameters<'_>, name: &str) -> Result<Option<bool>, RestError> {
    match parameters.remove(name) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(flag)),
        Some(other) => Err(RestError::invalid(format!(
            "the parameter `{name}` must be true or false, not `{other}`"
        ))),
    }
}

fn parameters(given: Parameters<'_>) -> Result<HashMap<String, InferParameter>, RestError> {
    let read = given.into_iter().map(|(name, value)| {
        let value = parameter(&name, &value)?;
        Ok((name.into_owned(), value))
    });
    read.collect()
}

/// A response's body, and where its JSON ends if tensors follow it.
#[derive(Debug)]
pub struct Encoded {
    pub body: Vec<u8>,
    pub json_length: Option<usize>,
}

/// Writes the response to an infer call.
///
/// # Errors
/// 500: the model's response is malformed.
pub fn write(response: &ModelInferResponse, form: &OutputForm) -> Result<Encoded, RestError> {
    let sent = sent(response);
    let outputs = Tensors::outputs(&sent).map_err(|error| malformed(&error))?;
    let mut tensors = outputs.iter();
    let mut out = Vec::with_capacity(256);
    out.push(b'{');
    if !response.id.is_empty() {
        out.extend_from_slice(b"\"id\":");
        json(&response.id, &mut out);
        out.push(b',');
    }
    out.extend_from_slice(b"\"model_name\":");
    json(&response.model_name, &mut out);
    out.extend_from_slice(b",\"model_version\":");
    json(&response.model_version, &mut out);
    let shown = response.parameters.iter();
    let mut shown: Vec<_> = shown.filter(|(name, _)| *name != FINAL_RESPONSE).collect();
    shown.sort_unstable_by_key(|(name, _)| *name);
    if !shown.is_empty() {
        out.extend_from_slice(b",\"parameters\":");
        separated(shown, *b"{}", &mut out, |(name, value), out| {
            json(name, out);
            out.push(b':');
            write_parameter(value.into(), out);
        });
    }
    out.extend_from_slice(b",\"outputs\":");
    separated(&response.outputs, *b"[]", &mut out, |told, out| {
        out.extend_from_slice(b"{\"name\":");
        json(&told.name, out);
        out.extend_from_slice(b",\"datatype\":");
        json(&told.datatype, out);
        out.extend_from_slice(b",\"shape\":");
        json(&told.shape, out);
        if memory::is_there(told) {
            return memory::write_place(told, out);
        }
        let Some(output) = tensors.next() else {
            return out.push(b'}');
        };
        if form.is_binary(output.name) {
            out.extend_from_slice(b",\"parameters\":{\"binary_data_size\":");
            json(&output.data.len(), out);
            out.extend_from_slice(b"}}");
        } else {
            out.extend_from_slice(b",\"data\":[");
            tensor_json::write(output.datatype, &output.data, out);
            out.extend_from_slice(b"]}");
        }
    });
    out.push(b'}');
    let json_length = out.len();
    let mut is_binary = false;
    for output in outputs.iter().filter(|output| form.is_binary(output.name)) {
        is_binary = true;
        out.extend_from_slice(&output.data);
    }
    Ok(Encoded {
        body: out,
        json_length: is_binary.then_some(json_length),
    })
}

/// The response without its outputs in shared memory, of which it has no elements.
fn sent(response: &ModelInferResponse) -> Cow<'_, ModelInferResponse> {
    if !response.outputs.iter().any(memory::is_there) {
        return Cow::Borrowed(response);
    }
    let mut sent = response.clone();
    let mut are_there = response.outputs.iter().map(memory::is_there);
    sent.raw_output_contents
        .retain(|_| !are_there.next().unwrap_or(false));
    sent.outputs.retain(|output| !memory::is_there(output));
    Cow::Owned(sent)
}

/// 500: the server behind sent something that is not a response.
pub(crate) fn malformed(error: &impl std::fmt::Display) -> RestError {
    RestError::new(
        http::StatusCode::INTERNAL_SERVER_ERROR,
        format!("the model's response is malformed: {error}"),
    )
}

#[cfg(test)]
mod tests;
