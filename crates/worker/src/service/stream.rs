//! One gRPC stream: requests in, responses out, and what happens when either side ends.
//!
//! A separate task reads the requests, so that `stop` works while the client is behind with reading.
//! Dropping the response stream, as a client's cancel or a lost connection does, cancels every request on
//! it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::step::StepBatch;
use inflight_kserve::streamed::SentResponse;
use inflight_traces::TraceContext;
use tokio::task::AbortHandle;
use tonic::{Status, Streaming};

use super::Models;
use super::plain::each_response;
use crate::batch;
use crate::executor::{ClientId, ResponseBatch};
use crate::outbox::{Outbox, Taken};
use crate::response;

/// The requests of one stream and the outbox for their rows. Dropping it cancels them.
pub(super) struct StreamRequests {
    models: Arc<Models>,
    outbox: Arc<Outbox>,
    /// The client's address, which distinguishes its connection from others.
    peer: Option<SocketAddr>,
    /// What the call said of its trace.
    trace: Option<TraceContext>,
}

impl StreamRequests {
    pub(super) fn open(
        models: Arc<Models>,
        peer: Option<SocketAddr>,
        trace: Option<TraceContext>,
    ) -> Self {
        Self {
            outbox: models.common().open(),
            models,
            peer,
            trace,
        }
    }

    /// Makes it one of steps of this model, before it has a request. An unknown model is refused with the first request.
    pub(super) fn bind_steps(&self, model: &str) {
        if let Ok((shared, _)) = self.models.find(model, "") {
            self.outbox.bind_steps(shared.engine.place());
        }
    }
}

impl Drop for StreamRequests {
    fn drop(&mut self) {
        self.models.abandon(&self.outbox.close());
    }
}

/// Reads requests until the client ends its side.
async fn read(
    mut inbound: Streaming<ModelInferRequest>,
    models: Arc<Models>,
    outbox: Arc<Outbox>,
    peer: Option<SocketAddr>,
    call: Option<TraceContext>,
) {
    loop {
        outbox.has_room().await;
        match inbound.message().await {
            Ok(Some(message)) => {
                models.receive(message, &outbox, peer, call.as_ref()).await;
            }
            Ok(None) => return outbox.finish(),
            Err(status) => {
                // Not a request, or too large for one: nothing after it can be read.
                let live = outbox.fail(status);
                return models.abandon(&live);
            }
        }
    }
}

/// The responses of one ModelStreamInfer call.
pub(crate) struct ResponseStream {
    connection: StreamRequests,
    reader: AbortHandle,
    /// Responses of the rows that were taken last.
    ready: VecDeque<SentResponse>,
}

impl ResponseStream {
    pub(super) fn new(connection: StreamRequests, inbound: Streaming<ModelInferRequest>) -> Self {
        let reading = read(
            inbound,
            Arc::clone(&connection.models),
            Arc::clone(&connection.outbox),
            connection.peer,
            connection.trace.clone(),
        );
        let reader = tokio::spawn(reading).abort_handle();
        Self {
            connection,
            reader,
            ready: VecDeque::new(),
        }
    }

    /// The responses to this request alone.
    pub(super) fn of_one(connection: StreamRequests, message: ModelInferRequest) -> Self {
        let (models, outbox) = (
            Arc::clone(&connection.models),
            Arc::clone(&connection.outbox),
        );
        let (peer, call) = (connection.peer, connection.trace.clone());
        let reading = async move {
            models.receive(message, &outbox, peer, call.as_ref()).await;
            outbox.finish();
        };
        let reader = tokio::spawn(reading).abort_handle();
        Self {
            connection,
            reader,
            ready: VecDeque::new(),
        }
    }

    fn take_step(&mut self, rows: StepBatch) {
        let StreamRequests { models, outbox, .. } = &self.connection;
        let limits = &models.of_steps(outbox).limits;
        let (limit, core_model) = (limits.max_message_bytes / 2, &*limits.core_model);
        let parts = batch::split(rows, limit).into_iter();
        self.ready
            .extend(parts.map(|part| part.encode(core_model).into()));
    }

    fn take_plain(&mut self, batch: &ResponseBatch) {
        let StreamRequests { models, outbox, .. } = &self.connection;
        let stop = |client_ids: &[ClientId]| models.stop_requests(client_ids);
        each_response(stop, outbox, batch, |response| {
            let message = match response {
                Ok(response) => response::message(response),
                Err(failed) => {
                    response::failed(failed.error.code, failed.error.text, failed.response)
                }
            };
            self.ready.push_back(message.into());
        });
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Stream for ResponseStream {
    type Item = Result<SentResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(response) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(response)));
            }
            let mut taken = self.connection.outbox.take();
            if matches!(taken, Taken::Nothing) {
                // Again after registering, because rows may have come in between.
                self.connection.outbox.register(context.waker());
                taken = self.connection.outbox.take();
            }
            match taken {
                Taken::Reply(reply) => return Poll::Ready(Some(Ok(reply))),
                Taken::Step(rows) => self.take_step(rows),
                Taken::Plain(batch) => self.take_plain(&batch),
                Taken::Failed(status) => return Poll::Ready(Some(Err(status))),
                Taken::End => return Poll::Ready(None),
                Taken::Nothing => return Poll::Pending,
            }
        }
    }
}
