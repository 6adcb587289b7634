//! The responses to one request of a stream of its own. Owns that the client's own id is in them, and that dropping
//! them stops the work at the server.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{FutureExt, Stream, StreamExt};
use inflight_kserve::inference::ModelStreamInferResponse;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::names::FINAL_RESPONSE;
use tonic::Status;

use super::{CallContext, Open, Rest, Source, lost};
use crate::upstream::slot::WorkerSlot;
use crate::upstream::table::Picked;

/// How long a server may take to close a stream after its last response.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// See the module.
pub(crate) struct ForwardStream {
    first: Option<ModelStreamInferResponse>,
    /// `None`: it has ended.
    rest: Option<Rest>,
    /// The client's id of the request, and the server's.
    ids: Option<(String, String)>,
    /// Whether the last response has come.
    is_final: bool,
    open: Open,
    ended: Pin<Box<dyn Future<Output = Status> + Send>>,
    /// Holds the request's place.
    context: CallContext,
}

impl ForwardStream {
    pub(super) fn new(
        first: Option<ModelStreamInferResponse>,
        rest: Rest,
        ids: Option<(String, String)>,
        open: Open,
        ended: Pin<Box<dyn Future<Output = Status> + Send>>,
        context: CallContext,
    ) -> Self {
        Self {
            first,
            rest: Some(rest),
            ids,
            is_final: false,
            open,
            ended,
            context,
        }
    }

    /// Where it is from, if the request has an id: for a request that is about this one.
    pub(crate) fn source(&self) -> Option<Source> {
        let slot: &std::sync::Arc<WorkerSlot> = &self.open.slot;
        let picked = Picked {
            slot: std::sync::Arc::clone(slot),
            pool: std::sync::Arc::clone(&slot.peer.served()?.pool),
            model: self.open.model.clone(),
        };
        Some(Source {
            picked,
            client: self.open.client.clone(),
            id: self.ids.as_ref()?.1.clone(),
        })
    }

    fn pass_on(&mut self, mut message: ModelStreamInferResponse) -> ModelStreamInferResponse {
        if let Some(response) = &mut message.infer_response {
            if let Some((id, _)) = &self.ids {
                response.id.clone_from(id);
            }
            let flag = response.parameters.get(FINAL_RESPONSE);
            let choice = flag.and_then(|flag| flag.parameter_choice.as_ref());
            self.is_final = matches!(choice, Some(ParameterChoice::BoolParam(true)));
        }
        message
    }
}

impl Stream for ForwardStream {
    type Item = Result<ModelStreamInferResponse, Status>;

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
                let status = std::task::ready!(self.ended.as_mut().poll(context));
                self.rest = None;
                self.context.trace.code(status.code());
                Poll::Ready(Some(Err(status)))
            }
        }
    }
}

impl Drop for ForwardStream {
    /// A stream that is read to its end is closed by both sides; a reset would be work for both, and cancels.
    fn drop(&mut self) {
        let Some(mut rest) = self.rest.take().filter(|_| self.is_final) else {
            return;
        };
        if let Some(None | Some(Err(_))) = rest.next().now_or_never() {
            return;
        }
        let drain = async move { while let Some(Ok(_)) = rest.next().await {} };
        tokio::spawn(tokio::time::timeout(END_TIMEOUT, drain));
    }
}
