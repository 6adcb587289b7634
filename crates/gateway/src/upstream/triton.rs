//! A plain Triton server: which of its models can be served, and whether they still are. Owns asking
//! and watching; what a configuration means is `dialect`'s, and one request's life `exchange`'s.

pub mod answer;
pub mod dialect;
pub mod exchange;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use inflight_kserve::assets::ModelDescription;
use inflight_kserve::client::TransportOptions;
use inflight_kserve::inference::model_config::SchedulingChoice;
use inflight_kserve::inference::{ModelConfig, ModelConfigRequest, RepositoryIndexRequest};
use tonic::Code;

use self::dialect::{Surroundings, TritonModel};
use self::exchange::{Exchanges, Pool};
use super::connect::{ConnectError, Connecting, ask, beginning, chain};
use super::connection::{Connection, Wire};
use super::registry::Registry;
use super::served::ServedModel;
use super::table::WorkerSlot;
use super::tokenizers::Tokenizers;

/// How often a server is asked whether it and its models are ready. Nothing else tells: a stream per
/// request is silent between requests.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// How often configurations are read again: a model that is loaded anew with another one may look the
/// same in the index.
const READ_EVERY: Duration = Duration::from_secs(5);
/// For all configurations together.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Models of one server that are looked at; each costs a call.
const MAX_MODELS: usize = 256;
/// An index of tens of thousands of models.
const MAX_INDEX_BYTES: usize = 4 << 20;
/// The largest configurations of models that generate are 30 KB.
const MAX_CONFIG_BYTES: usize = 1 << 20;

/// Codes that tell of the connection or the server; all others of what was asked.
const LOST: [Code; 4] = [
    Code::Cancelled,
    Code::DeadlineExceeded,
    Code::Unavailable,
    Code::Unknown,
];

/// Name and version of each model that can take requests.
type Index = BTreeSet<(String, String)>;
/// The configuration of each model by its name, or why it cannot be read.
type Configs = BTreeMap<String, Result<ModelConfig, String>>;

/// A server and what it serves.
#[derive(Debug)]
pub struct Server {
    name: String,
    pool: Arc<Pool>,
    index: Index,
    configs: Configs,
    connections: Vec<Arc<Connection>>,
}

impl Server {
    /// Asks which models the server has, and connects those that can be served.
    ///
    /// # Errors
    /// [`ConnectError`], in particular when none can be served, with why not.
    pub async fn describe(
        slot: &WorkerSlot,
        name: String,
        options: &TransportOptions,
        shared: &Connecting,
    ) -> Result<Self, ConnectError> {
        let pool = Arc::new(Pool::new(&slot.address, options)?);
        let index = match index(&pool).await {
            Err(ConnectError::Call { status, .. }) if status.code() == Code::Unimplemented => {
                return Err(ConnectError::Unknown {
                    server: name,
                    status,
                });
            }
            index => index?,
        };
        let mut server = Self {
            name,
            configs: configs(&pool, &index).await?,
            pool,
            index,
            connections: Vec::new(),
        };
        server.connect(slot, shared)?;
        Ok(server)
    }

    /// Connects the models that can be served. One that is as it was keeps its connection, and with it
    /// its requests under way.
    fn connect(&mut self, slot: &WorkerSlot, shared: &Connecting) -> Result<(), ConnectError> {
        let models = names(&self.index).len();
        if models > MAX_MODELS {
            tracing::warn!(
                worker = %slot.address,
                models,
                "only the first {MAX_MODELS} models by name are looked at"
            );
        }
        let mut connections = Vec::new();
        let mut reasons = String::new();
        for found in find_models(&self.configs, &shared.tokenizers) {
            let served = match found {
                Ok(served) => served,
                Err(reason) => {
                    let reason = beginning(&reason);
                    tracing::warn!(worker = %slot.address, "a model is not served: {reason}");
                    reasons.push_str("; ");
                    reasons.push_str(reason);
                    continue;
                }
            };
            let same = |old: &&Arc<Connection>| old.served.triton == served.triton;
            let connection = match self.connections.iter().find(same) {
                Some(old) => Arc::clone(old),
                None => {
                    let registry = Arc::new(Registry::default());
                    let metrics = Arc::clone(&shared.metrics);
                    let pool = Arc::clone(&self.pool);
                    let exchanges = Exchanges::new(pool, Arc::clone(&registry), metrics);
                    let wire = Wire::Exchanges(exchanges);
                    let address = Arc::clone(&slot.address);
                    Arc::new(Connection::new(address, Arc::new(served), wire, registry))
                }
            };
            connections.push(connection);
        }
        if connections.is_empty() {
            return Err(ConnectError::NoModel {
                server: self.name.clone(),
                reasons,
            });
        }
        self.connections = connections;
        Ok(())
    }

    /// Serves until the server is lost; returns why. When its models change, they are connected anew.
    pub async fn watch(mut self, slot: &WorkerSlot, shared: &Connecting) -> String {
        self.announce(slot, shared);
        let mut ticks = tokio::time::interval(WATCH_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut read = Instant::now();
        loop {
            ticks.tick().await;
            for connection in &self.connections {
                connection.sweep_stalled(Instant::now(), shared.limits.slow_client);
            }
            let index = match index(&self.pool).await {
                Ok(index) => index,
                Err(error) => return chain(&error),
            };
            if index == self.index && read.elapsed() < READ_EVERY {
                continue;
            }
            let configs = match configs(&self.pool, &index).await {
                Ok(configs) => configs,
                Err(error) => return chain(&error),
            };
            read = Instant::now();
            self.index = index;
            if configs == self.configs {
                continue;
            }
            self.configs = configs;
            if let Err(error) = self.connect(slot, shared) {
                return chain(&error);
            }
            self.announce(slot, shared);
        }
    }

    fn announce(&self, slot: &WorkerSlot, shared: &Connecting) {
        // Before it is said: who reads the line may ask at once.
        shared.table.set_ready(slot, self.connections.clone());
        for connection in &self.connections {
            tracing::info!(
                worker = %slot.address,
                server = %self.name,
                model = %connection.served.description.served_model_name,
                "model ready"
            );
        }
    }
}

/// The models that are ready. Whether the server as a whole is says less: one model that cannot be loaded
/// makes it unready for good.
async fn index(pool: &Pool) -> Result<Index, ConnectError> {
    let request = RepositoryIndexRequest {
        repository_name: String::new(),
        ready: true,
    };
    let mut client = pool.client().max_decoding_message_size(MAX_INDEX_BYTES);
    let index = ask("RepositoryIndex", client.repository_index(request)).await?;
    let models = index.into_inner().models.into_iter();
    Ok(models.map(|model| (model.name, model.version)).collect())
}

/// The models' configurations, all of them in time or none.
async fn configs(pool: &Pool, index: &Index) -> Result<Configs, ConnectError> {
    let read = async {
        let mut configs = Configs::new();
        for name in names(index).into_iter().take(MAX_MODELS) {
            configs.insert(name.to_owned(), config(pool, name).await?);
        }
        Ok(configs)
    };
    let silent = |_| ConnectError::Silent("ModelConfig", READ_TIMEOUT);
    let read = tokio::time::timeout(READ_TIMEOUT, read).await;
    read.map_err(silent)?
}

/// Each model once, whatever its versions.
fn names(index: &Index) -> BTreeSet<&str> {
    index.iter().map(|(name, _)| name.as_str()).collect()
}

/// A model's configuration. That it cannot be read is no reason to leave the others.
async fn config(pool: &Pool, model: &str) -> Result<Result<ModelConfig, String>, ConnectError> {
    let request = ModelConfigRequest {
        name: model.to_owned(),
        version: String::new(),
    };
    let mut client = pool.client().max_decoding_message_size(MAX_CONFIG_BYTES);
    match ask("ModelConfig", client.model_config(request)).await {
        Ok(answer) => {
            let mut config = answer.into_inner().config.unwrap_or_default();
            // What requests for it must say.
            config.name = model.to_owned();
            Ok(Ok(config))
        }
        Err(ConnectError::Call { status, .. }) if !LOST.contains(&status.code()) => Ok(Err(
            format!("its configuration cannot be read: {}", status.message()),
        )),
        Err(error) => Err(error),
    }
}

/// Every model that generates, ready to be served or with why it is not.
fn find_models(configs: &Configs, tokenizers: &Tokenizers) -> Vec<Result<ServedModel, String>> {
    let found = configs.iter().filter_map(|(name, config)| {
        let served = match config {
            Ok(config) => {
                let described = dialect::describe(config, surroundings(config, configs))?;
                described.and_then(|model| serve(model, tokenizers))
            }
            Err(reason) => Err(reason.clone()),
        };
        Some(served.map_err(|reason| format!("`{name}`: {reason}")))
    });
    found.collect()
}

/// An ensemble streams where one of its steps does, and one of them tokenizes for it; BLS calls the
/// model of that name.
fn surroundings(config: &ModelConfig, configs: &Configs) -> Surroundings {
    let read = |name: &str| configs.get(name)?.as_ref().ok();
    let decoupled = |config: &ModelConfig| {
        let policy = config.model_transaction_policy.as_ref();
        policy.is_some_and(|policy| policy.decoupled)
    };
    let steps: Vec<&ModelConfig> = match &config.scheduling_choice {
        Some(SchedulingChoice::EnsembleScheduling(ensemble)) => {
            let names = ensemble.step.iter();
            names.filter_map(|step| read(&step.model_name)).collect()
        }
        _ => read("preprocessing").into_iter().collect(),
    };
    let tokenizes = steps
        .iter()
        .find(|step| step.parameters.contains_key("add_special_tokens"));
    let is_ensemble = config.platform == "ensemble";
    Surroundings {
        decoupled: decoupled(config) || (is_ensemble && steps.iter().any(|step| decoupled(step))),
        adds_special_tokens: tokenizes
            .is_none_or(|step| dialect::flag(step, "add_special_tokens", true)),
    }
}

fn serve(model: TritonModel, tokenizers: &Tokenizers) -> Result<ServedModel, String> {
    let files = tokenizers.text(&model.name);
    if files.is_none() && !model.takes_text() {
        return Err(
            "it takes token ids; give its tokenizer with `--tokenizer DIRECTORY`".to_owned(),
        );
    }
    if files.is_none() && !model.decoupled && !model.counts_tokens() && !model.tells_reason() {
        return Err(
            "it neither streams nor counts its tokens, so a cut answer would look like a finished \
             one; give its tokenizer with `--tokenizer DIRECTORY`"
                .to_owned(),
        );
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    let description = ModelDescription {
        served_model_name: model.name.clone(),
        core_model_name: model.name.clone(),
        // Servers of one model name that are spoken to alike may take each other's requests.
        content_hash: format!("{model:?}"),
        created_unix_seconds: i64::try_from(now).unwrap_or(i64::MAX),
        executor: "triton".to_owned(),
        max_seq_len: tokenizers.context(&model.name).unwrap_or(0),
        vocab_size: files.and_then(|files| files.vocabulary).unwrap_or(0),
        ..ModelDescription::default()
    };
    Ok(ServedModel {
        description,
        text: files.map(|files| Arc::clone(&files.text)),
        triton: Some(Arc::new(model)),
    })
}

#[cfg(test)]
mod tests;
