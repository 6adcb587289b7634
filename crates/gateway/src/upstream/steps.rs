//! The step-batched stream of an Inflight worker, as its client reads it. Owns when the stream counts
//! as lost; knows nothing of connecting or of clients.

use std::sync::Arc;
use std::time::Instant;

use inflight_kserve::inference::ModelStreamInferResponse;
use inflight_kserve::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use inflight_kserve::step::StepBatch;
use tonic::Streaming;
use tonic::transport::Channel;

use super::connect::{ConnectError, ask};
use super::connection::{Connection, ConnectionLimits, Wire};
use super::outbound::Outbound;
use super::registry::Registry;
use super::served::ServedModel;
use crate::metrics::Metrics;

/// An open stream and the connection whose rows it carries.
#[derive(Debug)]
pub struct Steps {
    pub connection: Arc<Connection>,
    stream: Streaming<ModelStreamInferResponse>,
}

impl Steps {
    /// Opens the stream.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn open(
        address: Arc<str>,
        served: Arc<ServedModel>,
        kserve: &mut GrpcInferenceServiceClient<Channel>,
        limits: ConnectionLimits,
    ) -> Result<Self, ConnectError> {
        let outbound = Arc::new(Outbound::new(limits.send_queue));
        let stream = ask(
            "ModelStreamInfer",
            kserve.model_stream_infer(outbound.stream()),
        )
        .await?;
        let registry = Arc::new(Registry::default());
        let wire = Wire::Steps(outbound);
        let connection = Arc::new(Connection::new(address, served, wire, registry));
        Ok(Self {
            connection,
            stream: stream.into_inner(),
        })
    }

    /// Reads until the stream ends; returns why it did. The gateway always reads: one client that does
    /// not never holds up the others.
    pub async fn read(mut self, limits: ConnectionLimits, metrics: &Metrics) -> String {
        loop {
            let message = match self.stream.message().await {
                Ok(Some(message)) => message,
                Ok(None) => return "the worker ended the stream".to_owned(),
                Err(status) => return format!("the stream failed: {status}"),
            };
            if !message.error_message.is_empty() {
                return format!("the worker refused the stream: {}", message.error_message);
            }
            let Some(response) = message.infer_response else {
                continue;
            };
            let batch = match StepBatch::decode(&response) {
                Ok(batch) => batch,
                Err(error) => return format!("the worker sent a malformed step: {error}"),
            };
            let now = Instant::now();
            let delivered = self.connection.registry.distribute(&batch, now);
            metrics.tokens_out.inc_by(delivered);
            self.connection.sweep_stalled(now, limits.slow_client);
        }
    }
}
