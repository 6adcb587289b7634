//! The connect loop of one configured server. Owns the retries, and which protocol the server speaks;
//! what follows is the protocol's own.
//!
//! States: *connecting* (with backoff) → *describing* (ready, metadata, models) → *ready* → *connecting*
//! again when the server is lost for whatever reason.

use std::sync::Arc;
use std::time::Duration;

use inflight_kserve::client;
use inflight_kserve::inference::ServerMetadataRequest;
use inflight_kserve::names;

use super::context::Context;
use super::inflight::{self, AssetCache, Worker};
use super::rpc::{self, RpcError};
use super::slot::WorkerSlot;
use super::triton::tokenizers::Tokenizers;
use super::triton::{self, Server};
use super::watched;

/// First wait after a failed attempt; doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// A server that comes back is noticed within this; retries at this pace cost nothing.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// What the connect loops of all servers share.
#[derive(Debug)]
pub struct Connector {
    context: Context,
    cache: AssetCache,
    tokenizers: Tokenizers,
}

impl Connector {
    /// `tokenizers`: for the models of plain Triton servers.
    pub fn new(context: Context, tokenizers: Tokenizers) -> Self {
        Self {
            cache: AssetCache::new(context.templates.clone()),
            context,
            tokenizers,
        }
    }
}

/// Why a server is not ready.
#[derive(Debug, thiserror::Error)]
enum NotReady {
    #[error(transparent)]
    Transport(#[from] client::ConnectError),
    #[error(transparent)]
    Rpc(#[from] RpcError),
    #[error(transparent)]
    Inflight(#[from] inflight::NotReady),
    #[error(transparent)]
    Triton(#[from] triton::NotReady),
    #[error(transparent)]
    Watched(#[from] watched::NotReady),
    #[error("the model is loading: {0}")]
    Loading(String),
}

impl NotReady {
    /// What the first call found.
    fn first(error: RpcError) -> Self {
        if let RpcError::Failed { status, .. } = &error
            && let Some(stage) = status.metadata().get(names::STAGE_HEADER)
            && let Ok(stage) = stage.to_str()
        {
            return Self::Loading(rpc::abbreviated(stage).to_owned());
        }
        Self::Rpc(error)
    }

    /// Whether something was not answered in time; other things may have been.
    fn is_silence(&self) -> bool {
        match self {
            Self::Transport(error) => error.is_silence(),
            Self::Rpc(error) | Self::Triton(triton::NotReady::Rpc(error)) => {
                matches!(error, RpcError::TimedOut { .. })
            }
            _ => false,
        }
    }
}

/// Keeps one server connected for as long as the gateway runs.
pub async fn keep_connected(slot: Arc<WorkerSlot>, connector: Arc<Connector>) {
    let mut backoff = BACKOFF_MIN;
    let mut last_reason = String::new();
    loop {
        slot.pulse.listen();
        match connect_and_serve(&slot, &connector).await {
            Ok((reason, requests)) => {
                backoff = BACKOFF_MIN;
                last_reason.clear();
                tracing::warn!(worker = %slot.address, %reason, requests, "worker lost");
            }
            Err(error) => {
                // A server without a model for OpenAI's clients may have some for KServe's.
                if matches!(error, NotReady::Triton(triton::NotReady::NoModel { .. })) {
                    slot.pulse.reset();
                } else if error.is_silence() && slot.peer.is_up() && !slot.pulse.was_heard() {
                    // One with models for KServe's clients alone is not watched otherwise.
                    slot.give_up();
                } else {
                    slot.peer.set_down();
                }
                let reason = rpc::describe(&error);
                slot.set_reason(&reason);
                // A reason that does not change is logged once.
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

/// Connects, and serves until the server is lost. Returns why, and how many requests that ended.
async fn connect_and_serve(
    slot: &WorkerSlot,
    connector: &Connector,
) -> Result<(String, usize), NotReady> {
    let Connector {
        context,
        cache,
        tokenizers,
    } = connector;
    if slot.is_watched() {
        let server = watched::Server::connect(slot, tokenizers, context).await?;
        return Ok(server.serve(slot, tokenizers, context).await);
    }
    let options = context.transport();
    let channel = client::connect(&slot.address, &options).await?;
    let mut kserve = client::inference_client(channel.clone(), &options);
    let metadata = kserve.server_metadata(ServerMetadataRequest {});
    let metadata = rpc::call("ServerMetadata", metadata).await;
    let metadata = metadata.map_err(NotReady::first)?;
    slot.pulse.hear();
    let announced = |name: &String| name == names::STEP_BATCHING_EXTENSION;
    if metadata.extensions.iter().any(announced) {
        let worker = Worker::connect(slot, channel, cache, context).await?;
        return Ok(worker.serve(slot, context).await);
    }
    let server = Server::connect(slot, metadata.name, tokenizers, context).await?;
    Ok(server.serve(slot, tokenizers, context).await)
}
