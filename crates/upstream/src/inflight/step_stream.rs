//! The step-batched stream of an Inflight worker, as the gateway writes and reads it. Owns when the stream
//! counts as lost; knows nothing of connecting or of clients.

use std::sync::Arc;

use inflight_kserve::encoded::{EncodedClient, EncodedRequest};
use inflight_kserve::names::STEPS_HEADER;
use inflight_kserve::step::{self, StepBatch, stop_request};
use inflight_kserve::streamed::{EncodedResponse, StreamedResponse};
use inflight_models::served::ServedModel;
use tokio::time::Instant;
use tonic::{Request, Streaming};

use super::request::infer_request;
use crate::connection::{Connection, Transport};
use crate::context::Limits;
use crate::handles::Handle;
use crate::metrics::Metrics;
use crate::placement::Seat;
use crate::prompt_request::PromptRequest;
use crate::registry::Registry;
use crate::request_queue::{NotSent, RequestQueue};
use crate::rpc::{self, RpcError};
use crate::slot::WorkerSlot;

/// The sending side: one queue for all requests.
#[derive(Debug)]
struct StepTransport {
    queue: Arc<RequestQueue<EncodedRequest>>,
    served: Arc<ServedModel>,
}

impl StepTransport {
    fn model(&self) -> &str {
        &self.served.description.core_model_name
    }
}

impl Transport for StepTransport {
    fn send(&self, handle: Handle, prompt: &PromptRequest<'_>, _: u32) -> Result<(), NotSent> {
        let request = infer_request(self.model(), prompt, handle);
        self.queue.send(handle, request)
    }

    fn stop(&self, handle: Handle) {
        let request = || {
            let stop = stop_request(self.model(), step::Handle(handle.number()));
            EncodedRequest::from(&stop)
        };
        self.queue.stop(handle, request);
    }

    fn close(&self) {
        self.queue.close();
    }
}

/// An open stream and the connection whose output it carries.
#[derive(Debug)]
pub(super) struct StepStream {
    pub connection: Arc<Connection>,
    registry: Arc<Registry>,
    stream: Streaming<EncodedResponse>,
}

impl StepStream {
    /// Opens the stream.
    ///
    /// # Errors
    /// [`RpcError`].
    pub(super) async fn open(
        slot: &WorkerSlot,
        served: Arc<ServedModel>,
        mut client: EncodedClient,
        limits: Limits,
        seat: Option<Arc<Seat>>,
    ) -> Result<Self, RpcError> {
        let queue = Arc::new(RequestQueue::new(limits.send_queue));
        let mut request = Request::new(queue.stream());
        // A name that metadata cannot have is known with the first request.
        if let Ok(model) = served.description.core_model_name.parse() {
            request.metadata_mut().insert(STEPS_HEADER, model);
        }
        let stream = client.model_stream_infer(request);
        let stream = rpc::call("ModelStreamInfer", stream).await?;
        let registry = Arc::new(Registry::default());
        let transport = Box::new(StepTransport {
            queue,
            served: Arc::clone(&served),
        });
        let address = Arc::clone(&slot.address);
        let pulse = Arc::clone(&slot.pulse);
        let connection = Connection::new(address, served, pulse, transport, Arc::clone(&registry));
        Ok(Self {
            connection: Arc::new(connection.seated(seat).of(slot.life())),
            registry,
            stream,
        })
    }

    /// Reads until the stream ends; returns why it did. The gateway always reads, so that a client that
    /// does not read never holds up the others.
    pub(super) async fn read(
        mut self,
        slot: &WorkerSlot,
        limits: Limits,
        metrics: &Metrics,
    ) -> String {
        let model = &self.connection.served.description.served_model_name;
        let tokens_out = metrics.tokens_out(model);
        loop {
            let message = match self.stream.message().await {
                Ok(Some(message)) => message,
                Ok(None) => return "the worker ended the stream".to_owned(),
                Err(status) => return format!("the stream failed: {status}"),
            };
            let response = match message.view() {
                Ok(response) => response,
                Err(damaged) => return format!("the stream failed: {damaged}"),
            };
            if !response.error_message.is_empty() {
                return format!("the worker refused the stream: {}", response.error_message);
            }
            if step::is_leaving(&response) {
                tracing::info!(worker = %self.connection.address, model, "worker is about to end");
                slot.leave(&self.connection);
                continue;
            }
            let batch = match StepBatch::decode(response) {
                Ok(batch) => batch,
                Err(error) => return format!("the worker sent an invalid step message: {error}"),
            };
            let now = Instant::now();
            self.connection.pulse.hear();
            let distributed = self.registry.distribute(&batch, now);
            tokens_out.inc_by(distributed.tokens);
            for handle in distributed.overrun {
                self.connection.stop(handle);
            }
            self.connection.sweep_stalled(now, limits.slow_client);
        }
    }
}
