//! Triton's generate extension: one flat JSON object each way. Pure; owns how its keys become tensors, which
//! follows the model's own metadata, and how tensors become keys.

use std::time::Duration;

use bytes::BytesMut;
use inflight_kserve::inference::model_infer_request::InferInputTensor;
use inflight_kserve::inference::model_metadata_response::TensorMetadata;
use inflight_kserve::inference::{ModelInferRequest, ModelMetadataResponse};
use inflight_kserve::names::{self, FINAL_RESPONSE};
use inflight_kserve::streamed::{Parameter, ResponseView};
use inflight_kserve::tensor::{DataType, Tensor};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use smallvec::SmallVec;

use crate::error::RestError;
use crate::infer::malformed;
use crate::json::{PARAMETER, json, not_json, parameter, parameter_of, write_parameter};
use crate::route::ModelRef;
use crate::tensor_json;

/// Keys of one object.
const MAX_KEYS: usize = 1024;

/// The members of a JSON object in their order.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Members<'de>;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    if members.len() == MAX_KEYS {
                        let text = format_args!("the object has more than {MAX_KEYS} keys");
                        return Err(serde::de::Error::custom(text));
                    }
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Read)
    }
}

/// How long its client allows for a request of `generate` or `generate_stream`, as far as its body says so whatever the
/// model's inputs are. `None`: it does not, or not so that a worker takes it.
pub fn timeout(body: &[u8]) -> Option<Duration> {
    #[derive(Deserialize)]
    struct Asked {
        timeout: Option<u64>,
        parameters: Option<Parameters>,
    }
    #[derive(Deserialize)]
    struct Parameters {
        timeout: Option<u64>,
    }
    let asked: Asked = serde_json::from_slice(body).ok()?;
    let nested = asked.parameters.and_then(|parameters| parameters.timeout);
    let microseconds = match (asked.timeout, nested) {
        (Some(time), None) | (None, Some(time)) => time,
        // Which one counts is for `parse` to say.
        _ => return None,
    };
    // Zero is unlimited.
    (microseconds > 0).then(|| Duration::from_micros(microseconds))
}

/// Reads the body of `generate` or `generate_stream` for a model with these inputs. Keys that are inputs become
/// tensors, `id` the request's id, and all others parameters; so do the members of an object `parameters`.
///
/// # Errors
/// 400: what is wrong with it.
pub fn parse(
    model: &ModelRef,
    metadata: &ModelMetadataResponse,
    body: &[u8],
) -> Result<ModelInferRequest, RestError> {
    let Members(members) = serde_json::from_slice(body).map_err(not_json)?;
    let mut request = ModelInferRequest {
        model_name: model.name.clone(),
        model_version: model.version.clone(),
        ..ModelInferRequest::default()
    };
    // What distinguishes the last response from a stream that was cut.
    let last = parameter(names::ENABLE_EMPTY_FINAL_RESPONSE, &Value::Bool(true))?;
    let last_name = names::ENABLE_EMPTY_FINAL_RESPONSE.to_owned();
    request.parameters.insert(last_name, last);
    let mut buffer = BytesMut::new();
    for (key, value) in members {
        let find = |name: &str| metadata.inputs.iter().find(|input| input.name == name);
        if key == "parameters" && find(&key).is_none() {
            let Members(members) = serde_json::from_str(value.get()).map_err(not_json)?;
            for (key, value) in members {
                let input = find(&key);
                add(&mut request, &mut buffer, input, key, value)?;
            }
            continue;
        }
        let input = find(&key);
        if key == "id" && input.is_none() {
            request.id = serde_json::from_str(value.get())
                .map_err(|_| RestError::invalid(format!("`id` must be a string, not `{value}`")))?;
            continue;
        }
        add(&mut request, &mut buffer, input, key, value)?;
    }
    Ok(request)
}

/// Adds a member as the input that it is, or else as a parameter.
fn add(
    request: &mut ModelInferRequest,
    buffer: &mut BytesMut,
    input: Option<&TensorMetadata>,
    key: String,
    value: &RawValue,
) -> Result<(), RestError> {
    let Some(input) = input else {
        if key == names::ENABLE_EMPTY_FINAL_RESPONSE {
            return Ok(());
        }
        let value = serde_json::from_str(value.get()).map_err(not_json)?;
        let value = parameter_of(&value).ok_or_else(|| {
            RestError::invalid(format!(
                "`{key}` is not an input of the model; as a parameter, `{key}` must be {PARAMETER}"
            ))
        })?;
        request.parameters.insert(key, value);
        return Ok(());
    };
    if request.inputs.iter().any(|input| input.name == key) {
        return Err(RestError::invalid(format!("`{key}` is given twice")));
    }
    let datatype = DataType::from_name(&input.datatype).ok_or_else(|| {
        let datatype = &input.datatype;
        RestError::invalid(format!(
            "`{key}` has type {datatype}, which JSON cannot represent"
        ))
    })?;
    let count = tensor_json::pack(value, datatype, 1, buffer)
        .map_err(|error| RestError::invalid(format!("`{key}`: {error}")))?;
    let shape = shape(&input.shape, count).ok_or_else(|| {
        let wanted = &input.shape;
        RestError::invalid(format!(
            "`{key}` has `{count}` elements, which does not match the shape {wanted:?}"
        ))
    })?;
    request.inputs.push(InferInputTensor {
        name: key,
        datatype: input.datatype.clone(),
        shape,
        ..InferInputTensor::default()
    });
    request.raw_input_contents.push(buffer.split().freeze());
    Ok(())
}

/// The shape of `count` elements under one with open dimensions: what the fixed ones leave goes into the innermost
/// open one, and the others are 1.
fn shape(wanted: &[i64], count: usize) -> Option<Vec<i64>> {
    let mut left = i64::try_from(count).ok()?;
    for fixed in wanted.iter().filter(|dimension| **dimension >= 0) {
        if *fixed == 0 {
            return None;
        }
        if left % fixed != 0 {
            return None;
        }
        left /= fixed;
    }
    let mut shape = wanted.to_vec();
    for open in shape.iter_mut().rev().filter(|dimension| **dimension < 0) {
        *open = std::mem::replace(&mut left, 1);
    }
    (left == 1).then_some(shape)
}

/// What a key of a response means.
#[derive(Clone, Copy)]
enum Entry<'a> {
    Text(&'a str),
    Parameter(Parameter<'a>),
    Tensor(&'a Tensor<'a>),
}

/// Appends a response as one object, its keys in order.
///
/// # Errors
/// 500: the model's response is malformed.
pub fn write(response: &ResponseView<'_>, out: &mut Vec<u8>) -> Result<(), RestError> {
    let outputs = response.outputs().map_err(|error| malformed(&error))?;
    let mut entries: SmallVec<[(&str, Entry<'_>); 8]> = outputs
        .iter()
        .map(|tensor| (tensor.name, Entry::Tensor(tensor)))
        .collect();
    entries.push(("model_name", Entry::Text(response.model_name)));
    entries.push(("model_version", Entry::Text(response.model_version)));
    if !response.id.is_empty() {
        entries.push(("id", Entry::Text(response.id)));
    }
    let shown = response.parameters.iter();
    let shown = shown.filter(|(name, _)| *name != FINAL_RESPONSE);
    entries.extend(shown.map(|(name, value)| (*name, Entry::Parameter(*value))));
    // Stable: an output comes before a parameter of its name, which is then left out.
    entries.sort_by_key(|(name, _)| *name);
    entries.dedup_by(|later, first| later.0 == first.0);
    out.push(b'{');
    for (index, (name, entry)) in entries.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        json(name, out);
        out.push(b':');
        match entry {
            Entry::Text(text) => json(text, out),
            Entry::Parameter(value) => write_parameter(value, out),
            Entry::Tensor(tensor) => write_tensor(tensor, out),
        }
    }
    out.push(b'}');
    Ok(())
}

/// One element as it is, any other number of them as a list.
fn write_tensor(tensor: &Tensor<'_>, out: &mut Vec<u8>) {
    let start = out.len();
    out.push(b'[');
    if tensor_json::write(tensor.datatype, &tensor.data, out) == 1 {
        out.remove(start);
    } else {
        out.push(b']');
    }
}

#[cfg(test)]
mod tests;
