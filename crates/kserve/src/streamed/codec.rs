//! The client of streams whose responses stay as they came: the generated client decodes whatever it gets.

use bytes::Buf;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{GrpcMethod, IntoStreamingRequest, Response, Status, Streaming};
use tonic_prost::ProstEncoder;

use super::EncodedResponse;
use crate::client::TransportOptions;
use crate::inference::ModelInferRequest;

const SERVICE: &str = "inference.GRPCInferenceService";
const METHOD: &str = "ModelStreamInfer";
const PATH: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// Opens streams on one connection. Cloning one costs a few counters.
#[derive(Clone, Debug)]
pub struct StreamClient(Grpc<Channel>);

impl StreamClient {
    /// With the options' message limit.
    pub fn new(channel: Channel, options: &TransportOptions) -> Self {
        Self(limited(channel, options))
    }

    /// `ModelStreamInfer`.
    ///
    /// # Errors
    /// The server's, or UNKNOWN: there is no connection.
    pub async fn model_stream_infer(
        &mut self,
        requests: impl IntoStreamingRequest<Message = ModelInferRequest>,
    ) -> Result<Response<Streaming<EncodedResponse>>, Status> {
        open(&mut self.0, requests, EncodedCodec).await
    }
}

/// A client with the options' message limit.
pub(crate) fn limited(channel: Channel, options: &TransportOptions) -> Grpc<Channel> {
    Grpc::new(channel)
        .max_decoding_message_size(options.max_message_bytes)
        .max_encoding_message_size(options.max_message_bytes)
}

/// `ModelStreamInfer`, whatever the form of its messages.
pub(crate) async fn open<C>(
    client: &mut Grpc<Channel>,
    requests: impl IntoStreamingRequest<Message = C::Encode>,
    codec: C,
) -> Result<Response<Streaming<C::Decode>>, Status>
where
    C: Codec<Encode: Send + Sync + 'static, Decode: Send + Sync + 'static>,
{
    let ready = client.ready().await;
    ready.map_err(|error| Status::unknown(format!("the connection failed: {error}")))?;
    let mut requests = requests.into_streaming_request();
    requests
        .extensions_mut()
        .insert(GrpcMethod::new(SERVICE, METHOD));
    let path = PathAndQuery::from_static(PATH);
    client.streaming(requests, path, codec).await
}

/// Requests as messages, responses as they come.
struct EncodedCodec;

impl Codec for EncodedCodec {
    type Encode = ModelInferRequest;
    type Decode = EncodedResponse;
    type Encoder = ProstEncoder<ModelInferRequest>;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Decoder for EncodedCodec {
    type Item = EncodedResponse;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<EncodedResponse>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        Ok(Some(EncodedResponse::new(bytes)))
    }
}
