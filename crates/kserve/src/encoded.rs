//! Requests that are written in the form in which they travel. Owns that such a request says the same as one that a
//! [`RequestBuilder`](crate::tensor::RequestBuilder) makes; which tensors there are its caller decides.
//!
//! A `ModelInferRequest` of about twenty tensors takes three allocations for each of them, and a second pass to
//! encode it; a gateway would make one for every prompt.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};
use tonic::client::Grpc;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{IntoStreamingRequest, Response, Status, Streaming};
use tonic_prost::ProstDecoder;

use crate::client::TransportOptions;
use crate::inference::infer_parameter::ParameterChoice;
use crate::inference::{InferParameter, ModelInferRequest, ModelStreamInferResponse};
use crate::step::Handle;
use crate::tensor::{DataType, Element, pack_bytes};
use crate::{names, streamed};

/// Field numbers of `ModelInferRequest` and of the messages in it, from KServe's protocol.
mod field {
    pub(super) const MODEL_NAME: u32 = 1;
    pub(super) const ID: u32 = 3;
    pub(super) const PARAMETERS: u32 = 4;
    pub(super) const INPUTS: u32 = 5;
    pub(super) const OUTPUTS: u32 = 6;
    pub(super) const RAW_INPUT_CONTENTS: u32 = 7;
    /// Of an input or an output.
    pub(super) const NAME: u32 = 1;
    /// Of an input.
    pub(super) const DATATYPE: u32 = 2;
    pub(super) const SHAPE: u32 = 3;
    /// Of a map's entry.
    pub(super) const KEY: u32 = 1;
    pub(super) const VALUE: u32 = 2;
}

/// Room for everything in a message but the tensors' data: about twenty names with their types and shapes.
const HEAD_CAPACITY: usize = 1 << 10;
/// Key and length before each tensor's data.
const FRAME: usize = 6;

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

/// Writes a request. Tensors' data are in the order of the tensors.
#[derive(Debug)]
pub struct RequestWriter {
    message: BytesMut,
    /// The tensors' data, each with its key: they come after everything else.
    data: BytesMut,
    /// One tensor's data, until its length is known.
    packed: BytesMut,
}

impl RequestWriter {
    /// `capacity` is the expected size of all tensor data in bytes.
    pub fn new(model_name: &str, id: &str, capacity: usize) -> Self {
        let mut message = BytesMut::with_capacity(HEAD_CAPACITY + capacity);
        put_text(field::MODEL_NAME, model_name, &mut message);
        put_text(field::ID, id, &mut message);
        Self {
            message,
            data: BytesMut::with_capacity(capacity + 32 * FRAME),
            packed: BytesMut::with_capacity(capacity),
        }
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
        T::pack(values, &mut self.packed);
        self.finish(name, T::DATATYPE, shape)
    }

    /// Appends a BYTES tensor.
    pub fn push_bytes<E: AsRef<[u8]>>(
        &mut self,
        name: &str,
        shape: &[i64],
        elements: impl IntoIterator<Item = E>,
    ) -> &mut Self {
        pack_bytes(elements, &mut self.packed);
        self.finish(name, DataType::Bytes, shape)
    }

    /// Asks for an output by name. With none asked for, a server sends what the model always has.
    pub fn output(&mut self, name: &str) -> &mut Self {
        put_head(field::OUTPUTS, text_len(name), &mut self.message);
        put_text(field::NAME, name, &mut self.message);
        self
    }

    /// Sets a parameter of the message.
    pub fn parameter(&mut self, name: &str, value: ParameterChoice) -> &mut Self {
        let parameter = InferParameter {
            parameter_choice: Some(value),
        };
        let value = parameter.encoded_len();
        let entry = text_len(name) + 1 + encoded_len_varint(value as u64) + value;
        put_head(field::PARAMETERS, entry, &mut self.message);
        put_text(field::KEY, name, &mut self.message);
        put_head(field::VALUE, value, &mut self.message);
        parameter.encode_raw(&mut self.message);
        self
    }

    /// The request.
    pub fn build(mut self) -> EncodedRequest {
        self.message.put_slice(&self.data);
        EncodedRequest(self.message.freeze())
    }

    fn finish(&mut self, name: &str, datatype: DataType, shape: &[i64]) -> &mut Self {
        let datatype = datatype.name();
        let lengths = shape.iter().map(|size| encoded_len_varint(*size as u64));
        let packed_shape: usize = lengths.sum();
        let head = 1 + encoded_len_varint(packed_shape as u64);
        let input = text_len(name) + text_len(datatype) + head + packed_shape;
        put_head(field::INPUTS, input, &mut self.message);
        put_text(field::NAME, name, &mut self.message);
        put_text(field::DATATYPE, datatype, &mut self.message);
        put_head(field::SHAPE, packed_shape, &mut self.message);
        for size in shape {
            encode_varint(*size as u64, &mut self.message);
        }
        put_head(field::RAW_INPUT_CONTENTS, self.packed.len(), &mut self.data);
        self.data.put_slice(&self.packed);
        self.packed.clear();
        self
    }
}

/// The key of a field of `length` bytes, and its length. Keys of fields up to 15 have one byte.
fn put_head(field: u32, length: usize, out: &mut BytesMut) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(length as u64, out);
}

fn put_text(field: u32, text: &str, out: &mut BytesMut) {
    put_head(field, text.len(), out);
    out.put_slice(text.as_bytes());
}

/// The bytes of a text with its key and length.
fn text_len(text: &str) -> usize {
    1 + encoded_len_varint(text.len() as u64) + text.len()
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
    ) -> Result<Response<Streaming<ModelStreamInferResponse>>, Status> {
        streamed::open(&mut self.0, requests, RequestCodec).await
    }
}

/// Requests as they are, responses as messages.
struct RequestCodec;

impl Codec for RequestCodec {
    type Encode = EncodedRequest;
    type Decode = ModelStreamInferResponse;
    type Encoder = Self;
    type Decoder = ProstDecoder<ModelStreamInferResponse>;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::default()
    }
}

impl Encoder for RequestCodec {
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
    use crate::tensor::RequestBuilder;

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
            prop_assert_eq!(written.build().decode().unwrap(), built.build());
        }
    }
}
