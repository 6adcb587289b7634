//! The client of streams whose responses stay as they came: the generated client decodes whatever it gets.

use std::marker::PhantomData;

use bytes::Buf;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{GrpcMethod, IntoStreamingRequest, Response, Status, Streaming};
use tonic_prost::ProstEncoder;

use super::EncodedResponse;
use crate::client::TransportOptions;
use crate::inference::ModelInferRequest;

const SERVICE: &str = "inference.GRPCInferenceService";
const METHOD: &str = "ModelStreamInfer";
pub(super) const PATH: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

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
        open::<ProstEncoder<ModelInferRequest>>(&mut self.0, requests).await
    }
}

/// A client with the options' message limit.
pub(crate) fn limited(channel: Channel, options: &TransportOptions) -> Grpc<Channel> {
    Grpc::new(channel)
        .max_decoding_message_size(options.max_message_bytes)
        .max_encoding_message_size(options.max_message_bytes)
}

/// `ModelStreamInfer`, with requests in the form that `E` writes.
pub(crate) async fn open<E>(
    client: &mut Grpc<Channel>,
    requests: impl IntoStreamingRequest<Message = E::Item>,
) -> Result<Response<Streaming<EncodedResponse>>, Status>
where
    E: Encoder<Item: Send + Sync + 'static, Error = Status> + Default + Send + Sync + 'static,
{
    let ready = client.ready().await;
    ready.map_err(|error| Status::unknown(format!("the connection failed: {error}")))?;
    let mut requests = requests.into_streaming_request();
    requests
        .extensions_mut()
        .insert(GrpcMethod::new(SERVICE, METHOD));
    let path = PathAndQuery::from_static(PATH);
    client
        .streaming(requests, path, EncodedCodec::<E>(PhantomData))
        .await
}

/// Requests as `E` writes them, responses as they come.
struct EncodedCodec<E>(PhantomData<E>);

impl<E> Codec for EncodedCodec<E>
where
    E: Encoder<Item: Send + 'static, Error = Status> + Default + Send + 'static,
{
    type Encode = E::Item;
    type Decode = EncodedResponse;
    type Encoder = E;
    type Decoder = AsItCame;

    fn encoder(&mut self) -> E {
        E::default()
    }

    fn decoder(&mut self) -> AsItCame {
        AsItCame
    }
}

struct AsItCame;

impl Decoder for AsItCame {
    type Item = EncodedResponse;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<EncodedResponse>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        Ok(Some(EncodedResponse::new(bytes)))
    }
}
