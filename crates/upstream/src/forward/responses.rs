//! One server's responses to one request, from a separate stream or a shared one. Owns which requests share a stream.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, Stream, StreamExt};
use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::streamed::{EncodedResponse, StreamClient};
use prost::Message;
use tokio_stream::Once;
use tonic::{Request, Status, Streaming};

use crate::shared_stream::SharedResponses;

/// Largest request that shares a stream: the next one waits until it is sent and tokenized.
const SHARED_BYTES: usize = 16 << 10;
/// Inputs of requests that get a separate stream. Either their responses have megabytes, or the worker splits them
/// into several requests, which one id does not stop.
const ALONE: [&str; 3] = [
    "return_context_logits",
    "return_generation_logits",
    "num_draft_tokens",
];

/// Whether a request may share a stream with others.
pub(super) fn may_share(message: &ModelInferRequest) -> bool {
    let mut inputs = message.inputs.iter();
    message.encoded_len() <= SHARED_BYTES
        && inputs.all(|input| !ALONE.contains(&input.name.as_str()))
}

/// The responses to one request.
pub(super) enum Responses {
    Shared(SharedResponses),
    Alone(Box<Streaming<EncodedResponse>>),
    Opening(BoxFuture<'static, Result<Responses, Status>>),
}

impl Responses {
    /// Those of a separate stream, which is opened when the first of them is asked for.
    pub(super) fn alone(
        mut client: StreamClient,
        request: Request<Once<ModelInferRequest>>,
    ) -> Self {
        let open = async move {
            let responses = client.model_stream_infer(request).await?.into_inner();
            Ok(Self::Alone(Box::new(responses)))
        };
        Self::Opening(open.boxed())
    }

    /// A request that was not sent.
    pub(super) fn failed(status: Status) -> Self {
        Self::Opening(std::future::ready(Err(status)).boxed())
    }
}

impl Stream for Responses {
    type Item = Result<EncodedResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match &mut *self {
                Self::Shared(responses) => return responses.poll_next_unpin(context),
                Self::Alone(responses) => return responses.poll_next_unpin(context),
                Self::Opening(opening) => match ready!(opening.as_mut().poll(context)) {
                    Ok(opened) => *self = opened,
                    Err(status) => return Poll::Ready(Some(Err(status))),
                },
            }
        }
    }
}
