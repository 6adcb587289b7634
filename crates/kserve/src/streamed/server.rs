//! The server of streams whose responses may be encoded already: the generated server encodes whatever it sends.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use prost::Message;
use tonic::body::Body;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic::codegen::tokio_stream::Stream;
use tonic::codegen::{Body as HttpBody, BoxFuture, Service, StdError, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstDecoder;

use super::{EncodedResponse, PATH, ResponseView, StreamedResponse};
use crate::inference::grpc_inference_service_server::{
    GrpcInferenceService, GrpcInferenceServiceServer,
};
use crate::inference::{ModelInferRequest, ModelStreamInferResponse};

/// A response that a server sends.
#[derive(Debug)]
pub enum SentResponse {
    Message(Box<ModelStreamInferResponse>),
    Encoded(EncodedResponse),
}

impl From<ModelStreamInferResponse> for SentResponse {
    fn from(message: ModelStreamInferResponse) -> Self {
        Self::Message(Box::new(message))
    }
}

impl From<EncodedResponse> for SentResponse {
    fn from(response: EncodedResponse) -> Self {
        Self::Encoded(response)
    }
}

impl StreamedResponse for SentResponse {
    fn view(&self) -> Result<ResponseView<'_>, Status> {
        match self {
            Self::Message(message) => message.view(),
            Self::Encoded(response) => response.view(),
        }
    }
}

/// The streams of the generated service's `ModelStreamInfer`, which a [`StreamServer`] never calls.
pub type Unused = tonic::codegen::tokio_stream::Empty<Result<ModelStreamInferResponse, Status>>;

/// What the generated service's `ModelStreamInfer` answers.
pub fn streams_elsewhere() -> Status {
    Status::unimplemented("streams are served in another form")
}

/// A KServe service, and its `ModelStreamInfer` with responses in either form.
pub trait StreamService: GrpcInferenceService {
    type Responses: Stream<Item = Result<SentResponse, Status>> + Send + 'static;

    /// Answers the requests of a stream.
    ///
    /// # Errors
    /// The call as a whole is refused.
    fn stream(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Result<Self::Responses, Status>;
}

/// A KServe server whose streams are those of [`StreamService`].
#[derive(Debug)]
pub struct StreamServer<T> {
    service: Arc<T>,
    others: GrpcInferenceServiceServer<T>,
    max_message_bytes: usize,
}

impl<T> StreamServer<T> {
    /// Messages have `max_message_bytes` at most, in either direction.
    pub fn new(service: T, max_message_bytes: usize) -> Self {
        let service = Arc::new(service);
        let others = GrpcInferenceServiceServer::from_arc(Arc::clone(&service))
            .max_decoding_message_size(max_message_bytes)
            .max_encoding_message_size(max_message_bytes);
        Self {
            service,
            others,
            max_message_bytes,
        }
    }
}

impl<T> Clone for StreamServer<T> {
    fn clone(&self) -> Self {
        Self {
            service: Arc::clone(&self.service),
            others: self.others.clone(),
            ..*self
        }
    }
}

impl<T> NamedService for StreamServer<T> {
    const NAME: &'static str = <GrpcInferenceServiceServer<T> as NamedService>::NAME;
}

impl<T, B> Service<http::Request<B>> for StreamServer<T>
where
    T: StreamService,
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        if request.uri().path() != PATH {
            return self.others.call(request);
        }
        let limit = Some(self.max_message_bytes);
        let mut grpc = Grpc::new(ServerCodec).apply_max_message_size_config(limit, limit);
        let streams = Streams(Arc::clone(&self.service));
        Box::pin(async move { Ok(grpc.streaming(streams, request).await) })
    }
}

struct Streams<T>(Arc<T>);

impl<T: StreamService> StreamingService<ModelInferRequest> for Streams<T> {
    type Response = SentResponse;
    type ResponseStream = T::Responses;
    type Future = std::future::Ready<Result<Response<T::Responses>, Status>>;

    fn call(&mut self, request: Request<Streaming<ModelInferRequest>>) -> Self::Future {
        std::future::ready(self.0.stream(request).map(Response::new))
    }
}

/// Requests as messages, responses in either form.
struct ServerCodec;

impl Codec for ServerCodec {
    type Encode = SentResponse;
    type Decode = ModelInferRequest;
    type Encoder = Self;
    type Decoder = ProstDecoder<ModelInferRequest>;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::default()
    }
}

impl Encoder for ServerCodec {
    type Item = SentResponse;
    type Error = Status;

    fn encode(&mut self, item: SentResponse, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        match item {
            SentResponse::Message(message) => {
                let written = message.encode(out);
                written.map_err(|error| Status::internal(error.to_string()))
            }
            SentResponse::Encoded(response) => response.write(out),
        }
    }
}
