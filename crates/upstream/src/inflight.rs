//! An Inflight worker: its models, their files, and for each one stream for all its requests. Owns how a worker is
//! connected and served; knows nothing of clients.

mod assets;
pub mod request;
mod step_stream;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use inflight_kserve::assets::model_assets_client::ModelAssetsClient;
use inflight_kserve::assets::{DescribeRequest, ModelDescription, WatchAdaptersRequest};
use inflight_kserve::cache_state::cache_state_client::CacheStateClient;
use inflight_kserve::client::{self, ConnectError};
use inflight_kserve::encoded::EncodedClient;
use inflight_kserve::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use inflight_kserve::inference::{RepositoryIndexRequest, ServerLiveRequest, ServerReadyRequest};
use tonic::Code;
use tonic::transport::Channel;

pub use self::assets::{AssetCache, AssetError};
use self::step_stream::StepStream;
use super::connection::Connection;
use super::context::Context;
use super::peer::Served;
use super::placement;
use super::pool::Pool;
use super::rpc::{self, RpcError};
use super::slot::WorkerSlot;

/// Each model is a stream, and files in memory.
const MOST_MODELS: usize = 64;
/// How long to wait before asking for the adapters again. A lost worker shows on the stream of its requests.
const WATCH_AGAIN: Duration = Duration::from_secs(1);

/// Why a worker is not ready.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    #[error(transparent)]
    Transport(#[from] ConnectError),
    #[error(transparent)]
    Rpc(#[from] RpcError),
    #[error("the server is running but not ready yet")]
    Starting,
    #[error(transparent)]
    Assets(#[from] AssetError),
    #[error("the worker has more than {MOST_MODELS} models")]
    TooManyModels,
    #[error("the worker has two models that are called `{0}`")]
    SameName(String),
}

/// A connected worker.
#[derive(Debug)]
pub struct Worker {
    /// One for each model.
    streams: Vec<StepStream>,
    kserve: GrpcInferenceServiceClient<Channel>,
    assets: ModelAssetsClient<Channel>,
    caches: CacheStateClient<Channel>,
}

impl Worker {
    /// Asks the worker for its models and opens the streams.
    ///
    /// # Errors
    /// [`NotReady`].
    pub async fn connect(
        slot: &WorkerSlot,
        channel: Channel,
        cache: &AssetCache,
        context: &Context,
    ) -> Result<Self, NotReady> {
        let options = context.transport();
        let mut kserve = client::inference_client(channel.clone(), &options);
        let mut assets = client::assets_client(channel.clone());
        let ready = kserve.server_ready(ServerReadyRequest {});
        if !rpc::call("ServerReady", ready).await?.ready {
            return Err(NotReady::Starting);
        }
        let description = assets.describe(DescribeRequest {});
        let description = rpc::call("ModelAssets.Describe", description).await?;
        slot.met(description.created_unix_seconds);
        let of = description.served_model_name.clone();
        let core = description.core_model_name.clone();
        let mut served = Vec::new();
        for description in each_model(description)? {
            served.push(cache.served_model(&mut assets, description).await?);
        }
        let models = models(&mut kserve, &core).await?;
        if !models.iter().any(|(name, _)| *name == core) {
            // It has been asked to end since it said that it is ready. What it served is still known.
            return Err(NotReady::Starting);
        }
        slot.peer.set_up(Served {
            pool: Arc::new(Pool::new(
                &slot.address,
                &slot.pulse,
                &options,
                Some(context.limits.sharing()),
            )?),
            models,
            of: Some(of),
        });
        let caches = client::cache_state_client(channel.clone());
        let requests = EncodedClient::new(channel, &options);
        let mut streams = Vec::new();
        for served in served {
            let name = &served.description.served_model_name;
            let seat = context.table.placement(name).join();
            let requests = requests.clone();
            streams.push(StepStream::open(slot, served, requests, context.limits, seat).await?);
        }
        Ok(Self {
            streams,
            kserve,
            assets,
            caches,
        })
    }

    /// Serves until the worker is lost. Returns why, and how many requests that ended.
    pub async fn serve(self, slot: &WorkerSlot, context: &Context) -> (String, usize) {
        let connections: Vec<_> = self
            .streams
            .iter()
            .map(|stream| Arc::clone(&stream.connection))
            .collect();
        slot.pulse.reset();
        // Before the line is logged: a client that waits for it may send a request at once.
        context.table.set_ready(slot, connections.clone());
        for connection in &connections {
            let description = &connection.served.description;
            tracing::info!(
                worker = %slot.address,
                model = %description.served_model_name,
                executor = %description.executor,
                "worker ready"
            );
        }
        let probe = async || {
            let mut kserve = self.kserve.clone();
            kserve.server_live(ServerLiveRequest {}).await.is_ok()
        };
        let reads = self.streams.into_iter();
        let reads =
            reads.map(|stream| Box::pin(stream.read(slot, context.limits, &context.metrics)));
        let reason = tokio::select! {
            biased;
            // The streams of one process end together.
            (reason, _, _) = select_all(reads) => reason,
            reason = slot.watch_pulse(context.limits.worker_silence, probe) => reason,
            never = follow_adapters(self.assets, slot, connections.first(), context) => match never {},
            never = follow_caches(self.caches, &connections) => match never {},
        };
        let reason = rpc::abbreviated(&reason).to_owned();
        let requests = connections
            .iter()
            .map(|connection| connection.active())
            .sum();
        context.table.set_lost(slot, &reason);
        for connection in &connections {
            connection.fail_all("the worker was lost");
        }
        (reason, requests)
    }
}

/// Keeps up with the LoRA adapters of the worker's first model for as long as it is polled. Those of other models do
/// not change.
async fn follow_adapters(
    mut assets: ModelAssetsClient<Channel>,
    slot: &WorkerSlot,
    first: Option<&Arc<Connection>>,
    context: &Context,
) -> Infallible {
    while let Some(connection) = first {
        match assets.watch_adapters(WatchAdaptersRequest {}).await {
            Ok(lists) => {
                let mut lists = lists.into_inner();
                while let Ok(Some(list)) = lists.message().await {
                    context.table.set_adapters(slot, connection, list.adapters);
                }
            }
            // A worker of an earlier release, whose adapters stay as they are.
            Err(status) if status.code() == Code::Unimplemented => break,
            Err(_) => {}
        }
        tokio::time::sleep(WATCH_AGAIN).await;
    }
    std::future::pending().await
}

/// Keeps up with what the cache of each model holds for as long as it is polled.
async fn follow_caches(
    caches: CacheStateClient<Channel>,
    connections: &[Arc<Connection>],
) -> Infallible {
    let follow = |connection: &Arc<Connection>| {
        let (caches, connection) = (caches.clone(), Arc::clone(connection));
        async move {
            let model = &connection.served.description.core_model_name;
            if let Some(seat) = connection.seat() {
                let (address, pulse) = (&connection.address, &connection.pulse);
                placement::follow::follow(caches, model, address, seat, pulse).await;
            }
        }
    };
    join_all(connections.iter().map(follow)).await;
    std::future::pending().await
}

/// The worker's first model, then the others of its process.
fn each_model(mut first: ModelDescription) -> Result<Vec<ModelDescription>, NotReady> {
    let further = std::mem::take(&mut first.further_models);
    if further.len() >= MOST_MODELS {
        return Err(NotReady::TooManyModels);
    }
    let models: Vec<ModelDescription> = std::iter::once(first).chain(further).collect();
    let mut names = BTreeSet::new();
    match models
        .iter()
        .find(|model| !names.insert(&model.served_model_name))
    {
        Some(twice) => Err(NotReady::SameName(twice.served_model_name.clone())),
        None => Ok(models),
    }
}

/// Name and version of each model that the worker has for KServe's clients; `core` if it does not say.
async fn models(
    kserve: &mut GrpcInferenceServiceClient<Channel>,
    core: &str,
) -> Result<BTreeSet<(String, String)>, RpcError> {
    let index = kserve.repository_index(RepositoryIndexRequest {
        repository_name: String::new(),
        ready: true,
    });
    match rpc::call("RepositoryIndex", index).await {
        Ok(index) => {
            let models = index.models.into_iter();
            Ok(models.map(|model| (model.name, model.version)).collect())
        }
        Err(RpcError::Failed { status, .. }) if status.code() == Code::Unimplemented => {
            Ok([(core.to_owned(), String::new())].into())
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(names: &[&str]) -> ModelDescription {
        let mut models = names.iter().map(|name| ModelDescription {
            served_model_name: (*name).to_owned(),
            ..ModelDescription::default()
        });
        let first = models.next().unwrap();
        ModelDescription {
            further_models: models.collect(),
            ..first
        }
    }

    #[test]
    fn a_workers_models_are_its_first_and_the_further_ones() {
        let names = |models: &[ModelDescription]| {
            let names = models.iter().map(|model| model.served_model_name.clone());
            assert!(models.iter().all(|model| model.further_models.is_empty()));
            names.collect::<Vec<_>>()
        };
        for given in [&["a"][..], &["a", "b", "c"]] {
            assert_eq!(names(&each_model(described(given)).unwrap()), given);
        }
        let twice = each_model(described(&["a", "b", "a"])).unwrap_err();
        assert!(matches!(twice, NotReady::SameName(name) if name == "a"));
        let many: Vec<String> = (0..=MOST_MODELS).map(|number| number.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(each_model(described(&many[..MOST_MODELS])).is_ok());
        let refused = each_model(described(&many)).unwrap_err();
        assert!(matches!(refused, NotReady::TooManyModels));
    }
}
