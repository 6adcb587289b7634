//! A response of a stream, read without a copy of it. Owns the form that those who only look at a response use, and
//! that it says the same of an encoded response as of a decoded one; which outputs a model has is not known here.
//!
//! A decoded response has an allocation for each of its strings, and a gateway that passes texts on gets one response
//! per token.

mod codec;
mod server;
mod wire;

use std::sync::Arc;

use bytes::{BufMut, Bytes};
use prost::Message;
use smallvec::SmallVec;
use tonic::Status;

use self::codec::PATH;
pub use self::codec::StreamClient;
pub(crate) use self::codec::{limited, open};
pub use self::server::{SentResponse, StreamServer, StreamService, Unused, streams_elsewhere};
use crate::inference::infer_parameter::ParameterChoice;
use crate::inference::{
    InferParameter, InferTensorContents, ModelInferResponse, ModelStreamInferResponse,
};
use crate::names;
use crate::tensor::{TensorError, Tensors, WireTensor};

/// A response of a stream, whatever its form.
pub trait StreamedResponse {
    /// What it says.
    ///
    /// # Errors
    /// INTERNAL: it is not a response.
    fn view(&self) -> Result<ResponseView<'_>, Status>;
}

/// A response as it came.
#[derive(Clone, Debug, Default)]
pub struct EncodedResponse {
    bytes: Bytes,
    /// What it is called where it goes.
    id: Option<Arc<str>>,
}

impl EncodedResponse {
    pub fn new(bytes: Bytes) -> Self {
        Self { bytes, id: None }
    }

    /// The same under another id.
    #[must_use]
    pub fn with_id(self, id: Arc<str>) -> Self {
        let id = Some(id);
        Self { id, ..self }
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The same in separate memory: what came is a part of what was read together with others.
    #[must_use]
    pub fn detached(self) -> Self {
        let bytes = Bytes::copy_from_slice(&self.bytes);
        Self { bytes, ..self }
    }

    /// Writes it under its other id, if it has one.
    ///
    /// # Errors
    /// INTERNAL: the message is malformed. One without another id is not looked at.
    fn write(self, out: &mut impl BufMut) -> Result<(), Status> {
        match self.id {
            None => out.put(self.bytes),
            Some(id) => {
                wire::write_with_id(&self.bytes, &id, out).map_err(|error| damaged(&error))?;
            }
        }
        Ok(())
    }

    /// The message.
    ///
    /// # Errors
    /// INTERNAL: the message is malformed.
    pub fn decode(self) -> Result<ModelStreamInferResponse, Status> {
        let mut message =
            ModelStreamInferResponse::decode(self.bytes).map_err(|error| damaged(&error))?;
        if let Some((response, id)) = message.infer_response.as_mut().zip(self.id) {
            response.id = String::from(&*id);
        }
        Ok(message)
    }
}

impl From<&ModelStreamInferResponse> for EncodedResponse {
    fn from(message: &ModelStreamInferResponse) -> Self {
        Self::new(message.encode_to_vec().into())
    }
}

impl StreamedResponse for EncodedResponse {
    fn view(&self) -> Result<ResponseView<'_>, Status> {
        let mut view = wire::read(&self.bytes).map_err(|error| damaged(&error))?;
        if let Some(id) = &self.id {
            view.id = id;
        }
        Ok(view)
    }
}

impl StreamedResponse for ModelStreamInferResponse {
    fn view(&self) -> Result<ResponseView<'_>, Status> {
        let response = self.infer_response.as_ref();
        Ok(ResponseView {
            error_message: &self.error_message,
            ..response.map(ResponseView::from).unwrap_or_default()
        })
    }
}

fn damaged(error: &dyn std::error::Error) -> Status {
    Status::internal(format!("a response was damaged: {error}"))
}

/// A parameter's value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Parameter<'a> {
    #[default]
    Unset,
    Bool(bool),
    Int64(i64),
    Uint64(u64),
    Double(f64),
    Text(&'a str),
}

impl<'a> From<&'a InferParameter> for Parameter<'a> {
    fn from(parameter: &'a InferParameter) -> Self {
        match &parameter.parameter_choice {
            None => Self::Unset,
            Some(ParameterChoice::BoolParam(flag)) => Self::Bool(*flag),
            Some(ParameterChoice::Int64Param(number)) => Self::Int64(*number),
            Some(ParameterChoice::Uint64Param(number)) => Self::Uint64(*number),
            Some(ParameterChoice::DoubleParam(number)) => Self::Double(*number),
            Some(ParameterChoice::StringParam(text)) => Self::Text(text),
        }
    }
}

/// What a response says.
#[derive(Debug, Default, PartialEq)]
pub struct ResponseView<'a> {
    /// Not empty: its request failed.
    pub error_message: &'a str,
    pub model_name: &'a str,
    pub model_version: &'a str,
    pub id: &'a str,
    /// By name, no name twice.
    pub parameters: SmallVec<[(&'a str, Parameter<'a>); 4]>,
    outputs: SmallVec<[OutputView<'a>; 2]>,
    raw: SmallVec<[Bytes; 2]>,
}

impl<'a> From<&'a ModelInferResponse> for ResponseView<'a> {
    fn from(response: &'a ModelInferResponse) -> Self {
        let parameters = response.parameters.iter();
        let outputs = response.outputs.iter().map(|output| OutputView {
            name: &output.name,
            datatype: &output.datatype,
            shape: output.shape.iter().copied().collect(),
            contents: output.contents.clone().map(Box::new),
            in_shared_memory: output.in_shared_memory(),
        });
        Self {
            error_message: "",
            model_name: &response.model_name,
            model_version: &response.model_version,
            id: &response.id,
            parameters: parameters
                .map(|(name, value)| (name.as_str(), value.into()))
                .collect(),
            outputs: outputs.collect(),
            raw: response.raw_output_contents.iter().cloned().collect(),
        }
    }
}

impl ResponseView<'_> {
    pub fn has_outputs(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Its outputs.
    ///
    /// # Errors
    /// When any is malformed: the response as a whole is then invalid.
    pub fn outputs(&self) -> Result<Tensors<'_>, TensorError> {
        Tensors::read(&self.outputs, &self.raw)
    }

    /// Whether nothing follows for its request.
    pub fn is_final(&self) -> bool {
        self.parameter(names::FINAL_RESPONSE) == Parameter::Bool(true)
    }

    /// The code of its error, where its server reports one.
    pub fn error_code(&self) -> Option<tonic::Code> {
        match self.parameter(names::ERROR_CODE) {
            Parameter::Int64(code) => i32::try_from(code).map(tonic::Code::from).ok(),
            _ => None,
        }
    }

    fn parameter(&self, name: &str) -> Parameter<'_> {
        let found = self.parameters.iter().find(|(own, _)| *own == name);
        found.map_or(Parameter::Unset, |(_, value)| *value)
    }
}

/// An output, not yet checked.
#[derive(Debug, Default, PartialEq)]
struct OutputView<'a> {
    name: &'a str,
    datatype: &'a str,
    shape: SmallVec<[i64; 4]>,
    contents: Option<Box<InferTensorContents>>,
    in_shared_memory: bool,
}

impl WireTensor for OutputView<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn datatype(&self) -> &str {
        self.datatype
    }

    fn shape(&self) -> &[i64] {
        &self.shape
    }

    fn contents(&self) -> Option<&InferTensorContents> {
        self.contents.as_deref()
    }

    fn in_shared_memory(&self) -> bool {
        self.in_shared_memory
    }
}

/// Panics if these bytes, read in place, are a response that says anything else decoded. The reverse does not hold:
/// prost takes a map's entry with a wrong wire type, which is refused in place. For tests of any bytes.
pub fn check_same(bytes: &[u8]) {
    let encoded = EncodedResponse::new(Bytes::copy_from_slice(bytes));
    let decoded = ModelStreamInferResponse::decode(bytes).map_err(|error| damaged(&error));
    let views = [
        encoded.view(),
        decoded
            .as_ref()
            .map_err(Status::clone)
            .and_then(StreamedResponse::view),
    ];
    if views[0].is_err() {
        return;
    }
    let message = decoded.iter().find_map(|it| it.infer_response.as_ref());
    let outputs = message.map_or_else(|| Ok(Tensors::default()), Tensors::outputs);
    let written = views.map(|mut view| {
        if let Ok(view) = &mut view {
            view.parameters.sort_by_key(|(name, _)| *name);
            assert_eq!(view.outputs(), outputs);
        }
        // As text, because NaN is not equal to itself.
        format!("{view:?}")
    });
    assert_eq!(written[0], written[1]);
}

#[cfg(test)]
mod tests;
