//! Requests and responses that are written in the form in which they travel. Owns that such a one says the same as one
//! that a [`RequestBuilder`](crate::tensor::RequestBuilder) or [`ResponseBuilder`](crate::tensor::ResponseBuilder)
//! makes; which tensors there are its caller decides.
//!
//! A `ModelInferRequest` of about twenty tensors takes three allocations for each of them, and a second pass to
//! encode it; a gateway would make one for every prompt, and a worker a response for every iteration.

mod tensors;

use bytes::{Buf, BufMut, Bytes};
use prost::Message;
use tonic::client::Grpc;
use tonic::codec::{EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{IntoStreamingRequest, Response, Status, Streaming};

use self::tensors::{TensorWriter, field};
use crate::client::TransportOptions;
use crate::fields::{put_head, put_text, text_len};
use crate::inference::ModelInferRequest;
use crate::inference::infer_parameter::ParameterChoice;
use crate::names;
use crate::step::Handle;
use crate::streamed::{self, EncodedResponse};
use crate::tensor::Element;

/// Room for everything in a request but the tensors' data: about twenty names with their types and shapes.
const REQUEST_HEAD: usize = 1 << 10;
const REQUEST_TENSORS: usize = 32;
/// The same in a response: most have six tensors.
const RESPONSE_HEAD: usize = 1 << 8;
const RESPONSE_TENSORS: usize = 8;
/// `infer_response` of `ModelStreamInferResponse`.
const INFER_RESPONSE: u32 = 2;
/// Its key and length.
const STREAM_HEAD: usize = 6;

/// A request as it travels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedRequest(Bytes);

impl EncodedRequest {
    /// The message.
    ///
    /// # Errors
    /// It is not a request.
    pub fn decode(self) -> Result<ModelInferRequest, prost::DecodeError> {
        ModelInferRequest::decode(self.0)
    }
}

impl From<&ModelInferRequest> for EncodedRequest {
    fn from(message: &ModelInferRequest) -> Self {
        Self(message.encode_to_vec().into())
    }
}

/// Writes a request.
#[derive(Debug)]
pub struct RequestWriter(TensorWriter);

impl RequestWriter {
    /// `capacity` is the expected size of all tensor data in bytes.
    pub fn new(model_name: &str, id: &str, capacity: usize) -> Self {
        let raw = field::RAW_INPUT_CONTENTS;
        let mut tensors = TensorWriter::new(raw, REQUEST_HEAD, REQUEST_TENSORS, capacity);
        put_text(field::MODEL_NAME, model_name, &mut tensors.message);
        put_text(field::ID, id, &mut tensors.message);
        Self(tensors)
    }

    /// Joins the request to the step stream that it is sent on.
    pub fn handle(&mut self, handle: Handle) -> &mut Self {
        self.scalar(names::HANDLE, handle)
    }

    /// A single value, shape `[1, 1]`: Triton's core model has a batch dimension before its own.
    pub fn scalar<T: Element>(&mut self, name: &str, value: T) -> &mut Self {
        self.push(name, &[1, 1], &[value])
    }

    /// A list of values, shape `[1, n]`.
    pub fn vector<T: Element>(&mut self, name: &str, values: &[T]) -> &mut Self {
        self.push(name, &[1, values.len() as i64], values)
    }

    /// Appends a tensor of fixed-size elements.
    pub fn push<T: Element>(&mut self, name: &str, shape: &[i64], values: &[T]) -> &mut Self {
        self.0.push(name, shape, values);
        self
    }

    /// Appends a BYTES tensor.
    pub fn push_bytes<E: AsRef<[u8]>>(
        &mut self,
        name: &str,
        shape: &[i64],
        elements: impl IntoIterator<Item = E>,
    ) -> &mut Self {
        self.0.push_bytes(name, shape, elements);
        self
    }

    /// Asks for an output by name. With none asked for, a server sends what the model always has.
    pub fn output(&mut self, name: &str) -> &mut Self {
        let message = &mut self.0.message;
        put_head(field::REQUESTED, text_len(name), message);
        put_text(field::NAME, name, message);
        self
    }

    /// Sets a parameter of the message.
    pub fn parameter(&mut self, name: &str, value: ParameterChoice) -> &mut Self {
        self.0.parameter(name, value);
        self
    }

    /// The request.
    pub fn build(self) -> EncodedRequest {
        EncodedRequest(self.0.build().freeze())
    }
}

/// Writes a response of a stream, without an id: it may be that of several requests.
#[derive(Debug)]
pub struct ResponseWriter(TensorWriter);

impl ResponseWriter {
    /// `capacity` is the expected size of all tensor data in bytes.
    pub fn new(model_name: &str, capacity: usize) -> Self {
        let raw = field::RAW_OUTPUT_CONTENTS;
        let mut tensors = TensorWriter::new(raw, RESPONSE_HEAD, RESPONSE_TENSORS, capacity);
        // What says how long the response is, once that is known.
        tensors.message.put_bytes(0, STREAM_HEAD);
        put_text(field::MODEL_NAME, model_name, &mut tensors.message);
        Self(tensors)
    }

    /// Appends a list of values, shape `[n]`.
    pub fn vector<T: Element>(&mut self, name: &str, values: &[T]) -> &mut Self {
        self.0.push(name, &[values.len() as i64], values);
        self
    }

    /// Appends a BYTES tensor of `length` elements, shape `[length]`.
    pub fn bytes<E: AsRef<[u8]>>(
        &mut self,
        name: &str,
        length: usize,
        elements: impl IntoIterator<Item = E>,
    ) -> &mut Self {
        self.0.push_bytes(name, &[length as i64], elements);
        self
    }

    /// Sets a parameter of the response.
    pub fn parameter(&mut self, name: &str, value: ParameterChoice) -> &mut Self {
        self.0.parameter(name, value);
        self
    }

    /// The response.
    pub fn build(self) -> EncodedResponse {
        let mut message = self.0.build();
        let mut head = [0; STREAM_HEAD];
        let mut rest = &mut head[..];
        // At most 4 GiB: six bytes.
        put_head(INFER_RESPONSE, message.len() - STREAM_HEAD, &mut rest);
        let unused = rest.len();
        message.advance(unused);
        let written = STREAM_HEAD - unused;
        message[..written].copy_from_slice(&head[..written]);
        EncodedResponse::new(message.freeze())
    }
}

/// Opens streams of encoded requests on one connection. Cloning one costs a few counters.
#[derive(Clone, Debug)]
pub struct EncodedClient(Grpc<Channel>);

impl EncodedClient {
    /// With the options' message limit.
    pub fn new(channel: Channel, options: &TransportOptions) -> Self {
        Self(streamed::limited(channel, options))
    }

    /// `ModelStreamInfer`.
    ///
    /// # Errors
    /// The server's, or UNKNOWN: there is no connection.
    pub async fn model_stream_infer(
        &mut self,
        requests: impl IntoStreamingRequest<Message = EncodedRequest>,
    ) -> Result<Response<Streaming<EncodedResponse>>, Status> {
        streamed::open::<AsWritten>(&mut self.0, requests).await
    }
}

#[derive(Default)]
struct AsWritten;

impl Encoder for AsWritten {
    type Item = EncodedRequest;
    type Error = Status;

    fn encode(&mut self, item: EncodedRequest, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(item.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tensor::{RequestBuilder, ResponseBuilder};

    fn value() -> impl Strategy<Value = ParameterChoice> {
        prop_oneof![
            any::<bool>().prop_map(ParameterChoice::BoolParam),
            any::<i64>().prop_map(ParameterChoice::Int64Param),
            ".{0,200}".prop_map(ParameterChoice::StringParam),
        ]
    }

    proptest! {
        #[test]
        fn a_written_request_is_the_one_that_is_built(
            (model, id) in (".{0,20}", ".{0,200}"),
            handle in any::<u64>(),
            ids in prop::collection::vec(any::<i32>(), 0..300),
            floats in prop::collection::vec(-1e9f32..1e9, 0..4),
            texts in prop::collection::vec(".{0,200}", 0..3),
            shape in prop::collection::vec(any::<i64>(), 0..4),
            parameters in prop::collection::hash_map("[a-z]{1,150}", value(), 0..4),
        ) {
            let mut built = RequestBuilder::new(&*model, &*id, 0);
            built
                .handle(Handle(handle))
                .vector("input_ids", &ids)
                .push("floats", &shape, &floats)
                .scalar("streaming", true)
                .push_bytes("texts", &[1, texts.len() as i64], &texts)
                .output("output_ids");
            let mut written = RequestWriter::new(&model, &id, 0);
            written
                .handle(Handle(handle))
                .vector("input_ids", &ids)
                .push("floats", &shape, &floats)
                .scalar("streaming", true)
                .push_bytes("texts", &[1, texts.len() as i64], &texts)
                .output("output_ids");
            for (name, value) in parameters {
                built.parameter(&*name, value.clone());
                written.parameter(&name, value);
            }
            let built = built.build();
            prop_assert_eq!(EncodedRequest::from(&built).decode().unwrap(), built.clone());
            prop_assert_eq!(written.build().decode().unwrap(), built);
        }

        #[test]
        fn a_written_response_is_the_one_that_is_built(
            model in ".{0,20}",
            // Also such that the length takes one, two and three bytes.
            ids in prop::collection::vec(any::<u64>(), 0..3000),
            texts in prop::collection::vec(".{0,200}", 0..3),
            parameters in prop::collection::hash_map("[a-z]{1,150}", value(), 0..4),
        ) {
            let mut built = ResponseBuilder::new(&*model, "", 0);
            built
                .push("ids", &[ids.len() as i64], &ids)
                .push_bytes("texts", &[texts.len() as i64], &texts);
            let mut written = ResponseWriter::new(&model, 0);
            written.vector("ids", &ids).bytes("texts", texts.len(), &texts);
            for (name, value) in parameters {
                built.parameter(&*name, value.clone());
                written.parameter(&name, value);
            }
            let message = written.build().decode().unwrap();
            prop_assert_eq!(message.error_message, "");
            prop_assert_eq!(message.infer_response, Some(built.build()));
        }
    }
}
