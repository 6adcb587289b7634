//! One worker's connection: the connect loop, the step-batched stream and its reader. Owns when a
//! worker counts as ready and what happens to its requests when it is lost; knows nothing of clients.
//!
//! States of a worker: *connecting* (with backoff) → *describing* (ready, metadata, assets) → *ready*
//! (stream open) → *connecting* again when the stream ends for whatever reason.

use std::sync::Arc;
use std::time::{Duration, Instant};

use inflight_kserve::assets::DescribeRequest;
use inflight_kserve::client::{self, TransportOptions};
use inflight_kserve::inference::{
    ModelInferRequest, ModelStreamInferResponse, ServerMetadataRequest, ServerReadyRequest,
};
use inflight_kserve::names;
use inflight_kserve::step::{StepBatch, stop_request};
use tonic::Streaming;

use super::assets::{AssetCache, ServedModel};
use super::outbound::{NotQueued, Outbound};
use super::registry::{CODE_UNAVAILABLE, Closed, Registry};
use super::table::{Table, WorkerSlot};
use crate::metrics::Metrics;
use crate::stream::inbox::Inbox;

/// First wait after a failed attempt; doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// A worker that came back is noticed within this; retries at this pace cost nothing.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// For the small questions asked of a worker before its stream opens.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits of every worker connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Largest gRPC message accepted or sent, in bytes.
    pub max_message_bytes: usize,
    /// Requests that may wait to be written to one worker.
    pub send_queue: usize,
    /// How long a client may leave rows unread before its request is stopped.
    pub slow_client: Duration,
}

/// A ready connection.
#[derive(Debug)]
pub struct Connection {
    /// `host:port`, for logs and metrics.
    pub address: Arc<str>,
    pub served: Arc<ServedModel>,
    registry: Registry,
    outbound: Arc<Outbound>,
}

impl Connection {
    pub(super) fn new(address: Arc<str>, served: Arc<ServedModel>, send_queue: usize) -> Self {
        let outbound = Arc::new(Outbound::new(send_queue));
        Self {
            address,
            served,
            registry: Registry::default(),
            outbound,
        }
    }

    /// Opens a handle; see [`Registry::open`].
    ///
    /// # Errors
    /// [`Closed`] once the worker is lost.
    pub fn open(
        &self,
        inbox: Arc<Inbox>,
        first_choice: u32,
        sequences: u32,
    ) -> Result<u64, Closed> {
        self.registry.open(inbox, first_choice, sequences)
    }

    /// Sends the request of an open handle.
    ///
    /// # Errors
    /// [`NotQueued`]; the handle stays open and is the caller's to cancel.
    pub fn submit(&self, handle: u64, request: ModelInferRequest) -> Result<(), NotQueued> {
        self.outbound.send(handle, request)
    }

    /// Ends a handle whose rows nobody wants any more; frees its work at the worker at once.
    pub fn cancel(&self, handle: u64) {
        if self.registry.close_handle(handle) {
            self.stop(handle);
        }
    }

    fn stop(&self, handle: u64) {
        let model = &self.served.description.core_model_name;
        self.outbound.stop(handle, || stop_request(model, handle));
    }

    /// Handles that wait for rows.
    pub fn active(&self) -> usize {
        self.registry.active()
    }

    /// Ends every request of this connection with an error.
    pub fn fail_all(&self, text: &str) {
        self.registry
            .fail_all(CODE_UNAVAILABLE, text, Instant::now());
        self.outbound.close();
    }
}

/// Why a worker is not ready.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Transport(#[from] client::ConnectError),
    #[error("{call} failed: {status}")]
    Call {
        call: &'static str,
        status: tonic::Status,
    },
    #[error("{0} did not answer within {1:?}")]
    Silent(&'static str, Duration),
    #[error("the worker is up but not ready yet")]
    NotReady,
    #[error(
        "the server `{server}` does not announce `{}`; only Inflight workers can be fronted so far, \
         plain Triton servers come in a later version",
        names::STEP_BATCHING_EXTENSION
    )]
    NoStepBatching { server: String },
    #[error(transparent)]
    Assets(#[from] super::assets::AssetError),
}

/// Keeps one worker connected for as long as the gateway runs.
pub async fn keep_connected(
    slot: Arc<WorkerSlot>,
    table: Arc<Table>,
    cache: Arc<AssetCache>,
    limits: ConnectionLimits,
    metrics: Arc<Metrics>,
) {
    let mut backoff = BACKOFF_MIN;
    let mut last_reason = String::new();
    loop {
        match connect(&slot, &cache, limits).await {
            Ok((connection, stream)) => {
                backoff = BACKOFF_MIN;
                last_reason.clear();
                let connection = Arc::new(connection);
                tracing::info!(
                    worker = %slot.address,
                    model = %connection.served.description.served_model_name,
                    executor = %connection.served.description.executor,
                    "worker ready"
                );
                table.set_ready(&slot, Arc::clone(&connection));
                let reason = read(&connection, stream, limits, &metrics).await;
                table.set_lost(&slot, &reason);
                let affected = connection.active();
                connection.fail_all("the worker was lost");
                tracing::warn!(worker = %slot.address, %reason, requests = affected, "worker lost");
            }
            Err(error) => {
                let reason = chain(&error);
                slot.set_reason(&reason);
                // The same reason again and again is said once.
                if reason != last_reason {
                    tracing::warn!(worker = %slot.address, %reason, "worker not ready");
                    last_reason = reason;
                }
            }
        }
        // Jitter, so that many gateways do not return to a worker in step.
        tokio::time::sleep(backoff.mul_f64(rand::random_range(0.5..1.0))).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

async fn connect(
    slot: &WorkerSlot,
    cache: &AssetCache,
    limits: ConnectionLimits,
) -> Result<(Connection, Streaming<ModelStreamInferResponse>), ConnectError> {
    let options = TransportOptions {
        max_message_bytes: limits.max_message_bytes,
        ..Default::default()
    };
    let channel = client::connect(&slot.address, &options).await?;
    let mut kserve = client::inference_client(channel.clone(), &options);
    let mut assets = client::assets_client(channel);

    let ready = ask("ServerReady", kserve.server_ready(ServerReadyRequest {})).await?;
    if !ready.into_inner().ready {
        return Err(ConnectError::NotReady);
    }
    let metadata = ask(
        "ServerMetadata",
        kserve.server_metadata(ServerMetadataRequest {}),
    )
    .await?;
    let metadata = metadata.into_inner();
    if !metadata
        .extensions
        .iter()
        .any(|name| name == names::STEP_BATCHING_EXTENSION)
    {
        return Err(ConnectError::NoStepBatching {
            server: metadata.name,
        });
    }
    let description = ask("ModelAssets.Describe", assets.describe(DescribeRequest {})).await?;
    let served = cache
        .served_model(&mut assets, description.into_inner())
        .await?;
    let connection = Connection::new(Arc::clone(&slot.address), served, limits.send_queue);
    let stream = ask(
        "ModelStreamInfer",
        kserve.model_stream_infer(connection.outbound.stream()),
    )
    .await?;
    Ok((connection, stream.into_inner()))
}

async fn ask<T>(
    call: &'static str,
    answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<tonic::Response<T>, ConnectError> {
    match tokio::time::timeout(ASK_TIMEOUT, answer).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(status)) => Err(ConnectError::Call { call, status }),
        Err(_) => Err(ConnectError::Silent(call, ASK_TIMEOUT)),
    }
}

/// Reads until the stream ends; returns why it did. The gateway always reads: one client that does not
/// never holds up the others.
async fn read(
    connection: &Connection,
    mut stream: Streaming<ModelStreamInferResponse>,
    limits: ConnectionLimits,
    metrics: &Metrics,
) -> String {
    loop {
        let message = match stream.message().await {
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
        let delivered = connection.registry.distribute(&batch, now);
        metrics.tokens_out.inc_by(delivered);
        for handle in connection.registry.sweep_stalled(now, limits.slow_client) {
            tracing::warn!(worker = %connection.address, "stopped a request whose client reads nothing");
            connection.stop(handle);
        }
    }
}

/// An error and its causes, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
