//! The connect loop of one configured server. Owns when it counts as ready and what happens to its
//! requests when it is lost; what follows after the first questions is the wire's own.
//!
//! States: *connecting* (with backoff) → *describing* (ready, metadata, models) → *ready* → *connecting*
//! again when the server is lost for whatever reason.

use std::sync::Arc;
use std::time::Duration;

use inflight_kserve::assets::DescribeRequest;
use inflight_kserve::client::{self, TransportOptions};
use inflight_kserve::inference::{ServerMetadataRequest, ServerReadyRequest};
use inflight_kserve::names;

use super::assets::AssetCache;
use super::connection::ConnectionLimits;
use super::steps::Steps;
use super::table::{Table, WorkerSlot};
use super::tokenizers::Tokenizers;
use super::triton::Server;
use crate::metrics::Metrics;

/// First wait after a failed attempt; doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// A server that came back is noticed within this; retries at this pace cost nothing.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// For the small questions asked of a server.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);
/// Characters that are kept of a server's words; a traceback has a few thousand.
const MAX_WORDS: usize = 8_000;

/// What all connect loops share.
#[derive(Debug)]
pub struct Connecting {
    pub table: Arc<Table>,
    pub cache: AssetCache,
    pub tokenizers: Tokenizers,
    pub limits: ConnectionLimits,
    pub metrics: Arc<Metrics>,
}

/// Why a server is not ready.
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
    #[error("the server is up but not ready yet")]
    NotReady,
    #[error(
        "the server `{server}` neither announces `{}` nor lists its models as Triton does: {status}",
        names::STEP_BATCHING_EXTENSION
    )]
    Unknown {
        server: String,
        status: tonic::Status,
    },
    #[error("the server `{server}` has no model that can be served{reasons}")]
    NoModel { server: String, reasons: String },
    #[error(transparent)]
    Assets(#[from] super::assets::AssetError),
}

enum Link {
    Steps(Steps),
    Triton(Server),
}

/// Keeps one server connected for as long as the gateway runs.
pub async fn keep_connected(slot: Arc<WorkerSlot>, shared: Arc<Connecting>) {
    let mut backoff = BACKOFF_MIN;
    let mut last_reason = String::new();
    loop {
        match connect(&slot, &shared).await {
            Ok(link) => {
                backoff = BACKOFF_MIN;
                last_reason.clear();
                let (reason, requests) = match link {
                    Link::Steps(steps) => serve_steps(&slot, &shared, steps).await,
                    Link::Triton(server) => serve_triton(&slot, &shared, server).await,
                };
                tracing::warn!(worker = %slot.address, %reason, requests, "worker lost");
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

/// Serves until the worker is lost; returns why, and how many requests that ended.
async fn serve_steps(slot: &WorkerSlot, shared: &Connecting, steps: Steps) -> (String, usize) {
    let connection = Arc::clone(&steps.connection);
    // Before it is said: who reads the line may ask at once.
    shared.table.set_ready(slot, vec![Arc::clone(&connection)]);
    let description = &connection.served.description;
    tracing::info!(
        worker = %slot.address,
        model = %description.served_model_name,
        executor = %description.executor,
        "worker ready"
    );
    let reason = steps.read(shared.limits, &shared.metrics).await;
    let requests = connection.active();
    shared.table.set_lost(slot, &reason);
    connection.fail_all("the worker was lost");
    (reason, requests)
}

/// The same for a plain Triton, whose requests under way have streams of their own: those tell what
/// becomes of them, be it that the server only failed to answer a question in time.
async fn serve_triton(slot: &WorkerSlot, shared: &Connecting, server: Server) -> (String, usize) {
    let reason = server.watch(slot, shared).await;
    let requests = slot.active();
    shared.table.set_lost(slot, &reason);
    (reason, requests)
}

fn transport(shared: &Connecting) -> TransportOptions {
    TransportOptions {
        max_message_bytes: shared.limits.max_message_bytes,
        ..Default::default()
    }
}

async fn connect(slot: &WorkerSlot, shared: &Connecting) -> Result<Link, ConnectError> {
    let options = transport(shared);
    let channel = client::connect(&slot.address, &options).await?;
    let mut kserve = client::inference_client(channel.clone(), &options);
    let mut assets = client::assets_client(channel);

    let metadata = ask(
        "ServerMetadata",
        kserve.server_metadata(ServerMetadataRequest {}),
    )
    .await?;
    let metadata = metadata.into_inner();
    let announced = |name: &String| name == names::STEP_BATCHING_EXTENSION;
    if !metadata.extensions.iter().any(announced) {
        let server = Server::describe(slot, metadata.name, &options, shared).await?;
        return Ok(Link::Triton(server));
    }
    let ready = ask("ServerReady", kserve.server_ready(ServerReadyRequest {})).await?;
    if !ready.into_inner().ready {
        return Err(ConnectError::NotReady);
    }
    let description = ask("ModelAssets.Describe", assets.describe(DescribeRequest {})).await?;
    let served = shared
        .cache
        .served_model(&mut assets, description.into_inner())
        .await?;
    let address = Arc::clone(&slot.address);
    let steps = Steps::open(address, served, &mut kserve, shared.limits).await?;
    Ok(Link::Steps(steps))
}

/// A small question, answered in time or not at all.
///
/// # Errors
/// [`ConnectError::Call`], [`ConnectError::Silent`].
pub async fn ask<T>(
    call: &'static str,
    answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<tonic::Response<T>, ConnectError> {
    match tokio::time::timeout(ASK_TIMEOUT, answer).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(status)) => Err(ConnectError::Call { call, status }),
        Err(_) => Err(ConnectError::Silent(call, ASK_TIMEOUT)),
    }
}

/// As much as is kept of what a server says went wrong.
pub fn beginning(text: &str) -> &str {
    let end = text.char_indices().nth(MAX_WORDS);
    end.and_then(|(end, _)| text.get(..end)).unwrap_or(text)
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
    beginning(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_endless_words_the_beginning_is_kept() {
        let cut = "é".repeat(MAX_WORDS);
        for (text, kept) in [("", ""), ("short", "short"), (&cut, &cut)] {
            assert_eq!(beginning(text), kept);
        }
        assert_eq!(beginning(&"é".repeat(1 << 20)), cut);
        let error = ConnectError::NoModel {
            server: "s".to_owned(),
            reasons: "é".repeat(1 << 20),
        };
        assert_eq!(chain(&error).chars().count(), MAX_WORDS);
    }
}
