//! The responses to one request, from a separate stream or a shared one. Owns which requests share a stream, puts the
//! client's id back into the responses, and stops the work at the server when they are dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, Stream, StreamExt};
use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::streamed::{EncodedResponse, StreamClient, StreamedResponse};
use prost::Message;
use tokio_stream::Once;
use tonic::{Request, Status, Streaming};

use super::{Open, lost};
use crate::delivery::CallContext;
use crate::shared_stream::SharedResponses;

/// How long a server may take to close a stream after its last response.
const END_TIMEOUT: Duration = Duration::from_secs(10);
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

/// A request on its way.
pub(super) enum OnItsWay {
    Shared(SharedResponses),
    /// With its id at the server.
    Alone(StreamClient, Box<Request<Once<ModelInferRequest>>>, String),
}

impl OnItsWay {
    /// Its id at the server.
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Shared(responses) => responses.id(),
            Self::Alone(_, _, id) => id,
        }
    }

    pub(super) async fn responses(self) -> Result<Responses, Status> {
        match self {
            Self::Shared(responses) => Ok(Responses::Shared(responses)),
            Self::Alone(mut client, request, _) => {
                let responses = client.model_stream_infer(*request).await?.into_inner();
                Ok(Responses::Alone(Box::new(responses)))
            }
        }
    }
}

/// The responses to one request.
pub(super) enum Responses {
    Shared(SharedResponses),
    Alone(Box<Streaming<EncodedResponse>>),
}

impl Stream for Responses {
    type Item = Result<EncodedResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match &mut *self {
            Self::Shared(responses) => responses.poll_next_unpin(context),
            Self::Alone(responses) => responses.poll_next_unpin(context),
        }
    }
}

/// Resolves when a request is to end, to why.
pub(super) type Ended = Pin<Box<dyn Future<Output = Status> + Send>>;

/// See the module.
pub struct ForwardStream {
    first: Option<EncodedResponse>,
    /// `None`: it has ended.
    rest: Option<Responses>,
    /// The request's id as the client gave it.
    id: Arc<str>,
    /// Whether the last response has come; only set for a separate stream.
    is_final: bool,
    open: Open,
    /// Why it is to end early; asked only once that has come, and not with every response.
    ended: FuturesUnordered<Ended>,
    /// Holds the request's place.
    context: CallContext,
}

impl ForwardStream {
    pub(super) fn new(
        first: Option<EncodedResponse>,
        rest: Responses,
        id: String,
        open: Open,
        ended: Ended,
        context: CallContext,
    ) -> Self {
        Self {
            first,
            rest: Some(rest),
            id: id.into(),
            is_final: false,
            open,
            ended: std::iter::once(ended).collect(),
            context,
        }
    }

    fn pass_on(&mut self, message: EncodedResponse) -> EncodedResponse {
        if let Some(Responses::Alone(_)) = self.rest {
            self.is_final = message.view().is_ok_and(|response| response.is_final());
        }
        message.with_id(Arc::clone(&self.id))
    }
}

impl Stream for ForwardStream {
    type Item = Result<EncodedResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(self.pass_on(first))));
        }
        let Some(rest) = &mut self.rest else {
            return Poll::Ready(None);
        };
        match rest.poll_next_unpin(context) {
            Poll::Ready(Some(Ok(message))) => {
                self.open.slot.pulse.hear();
                Poll::Ready(Some(Ok(self.pass_on(message))))
            }
            Poll::Ready(Some(Err(status))) => {
                self.rest = None;
                let status = lost(status);
                self.context.trace.code(status.code());
                Poll::Ready(Some(Err(status)))
            }
            Poll::Ready(None) => {
                self.rest = None;
                Poll::Ready(None)
            }
            Poll::Pending => {
                let Poll::Ready(Some(status)) = self.ended.poll_next_unpin(context) else {
                    return Poll::Pending;
                };
                self.rest = None;
                self.context.trace.code(status.code());
                Poll::Ready(Some(Err(status)))
            }
        }
    }
}

impl Drop for ForwardStream {
    /// Reads a separate stream to its end, so that both sides close it. A reset would cost both sides work and count
    /// as a cancellation.
    fn drop(&mut self) {
        let Some(Responses::Alone(mut rest)) = self.rest.take().filter(|_| self.is_final) else {
            return;
        };
        if let Some(None | Some(Err(_))) = rest.next().now_or_never() {
            return;
        }
        let drain = async move { while let Some(Ok(_)) = rest.next().await {} };
        tokio::spawn(tokio::time::timeout(END_TIMEOUT, drain));
    }
}
