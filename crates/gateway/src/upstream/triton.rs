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

use self::dialect::{Surroundings, TritonModel};
use self::exchange::{Exchanges, Pool};
use super::connect::{ConnectError, Connecting, ask, chain};
use super::connection::{Connection, Wire};
use super::registry::Registry;
use super::served::ServedModel;
use super::table::WorkerSlot;
use super::tokenizers::Tokenizers;

/// How often a server is asked whether it and its models are ready. Nothing else tells: a stream per
/// request is silent between requests.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Models of one server that are looked at; each costs a call.
const MAX_MODELS: usize = 256;

/// Name and version of each model that can take requests.
type Index = BTreeSet<(String, String)>;

/// A server and what it serves.
#[derive(Debug)]
pub struct Server {
    name: String,
    pool: Arc<Pool>,
    index: Index,
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
            Err(ConnectError::Call { status, .. })
                if status.code() == tonic::Code::Unimplemented =>
            {
                return Err(ConnectError::Unknown {
                    server: name,
                    status,
                });
            }
            index => index?,
        };
        let mut configs = BTreeMap::new();
        for (model, _) in index.iter().take(MAX_MODELS) {
            let config = config(&pool, model).await?;
            configs.insert(model.clone(), config);
        }
        let mut connections = Vec::new();
        let mut reasons = String::new();
        for found in find_models(&configs, &shared.tokenizers) {
            match found {
                Ok(served) => {
                    let registry = Arc::new(Registry::default());
                    let metrics = Arc::clone(&shared.metrics);
                    let exchanges =
                        Exchanges::new(Arc::clone(&pool), Arc::clone(&registry), metrics);
                    let wire = Wire::Exchanges(exchanges);
                    let address = Arc::clone(&slot.address);
                    let connection = Connection::new(address, Arc::new(served), wire, registry);
                    connections.push(Arc::new(connection));
                }
                Err(reason) => {
                    tracing::warn!(worker = %slot.address, "a model is not served: {reason}");
                    reasons.push_str("; ");
                    reasons.push_str(&reason);
                }
            }
        }
        if connections.is_empty() {
            return Err(ConnectError::NoModel {
                server: name,
                reasons,
            });
        }
        Ok(Self {
            name,
            pool,
            index,
            connections,
        })
    }

    /// Serves until the server is lost; returns why. When its models change, they are looked at again.
    pub async fn watch(
        mut self,
        slot: &WorkerSlot,
        options: &TransportOptions,
        shared: &Connecting,
    ) -> String {
        self.announce(slot, shared);
        let mut ticks = tokio::time::interval(WATCH_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            for connection in &self.connections {
                connection.sweep_stalled(Instant::now(), shared.limits.slow_client);
            }
            match index(&self.pool).await {
                Ok(index) if index == self.index => continue,
                Ok(_) => {}
                Err(error) => return chain(&error),
            }
            let described = Self::describe(slot, self.name.clone(), options, shared).await;
            let mut changed = match described {
                Ok(server) => server,
                Err(error) => return chain(&error),
            };
            // A model that is as it was keeps its connection, and with it its requests under way.
            for connection in &mut changed.connections {
                let same = |old: &&Arc<Connection>| old.served.triton == connection.served.triton;
                if let Some(old) = self.connections.iter().find(same) {
                    *connection = Arc::clone(old);
                }
            }
            self = changed;
            self.announce(slot, shared);
        }
    }

    fn announce(&self, slot: &WorkerSlot, shared: &Connecting) {
        for connection in &self.connections {
            tracing::info!(
                worker = %slot.address,
                server = %self.name,
                model = %connection.served.description.served_model_name,
                "model ready"
            );
        }
        shared.table.set_ready(slot, self.connections.clone());
    }
}

/// The models that are ready. Whether the server as a whole is says less: one model that cannot be loaded
/// makes it unready for good.
async fn index(pool: &Pool) -> Result<Index, ConnectError> {
    let request = RepositoryIndexRequest {
        repository_name: String::new(),
        ready: true,
    };
    let index = ask("RepositoryIndex", pool.client().repository_index(request)).await?;
    let models = index.into_inner().models.into_iter();
    Ok(models.map(|model| (model.name, model.version)).collect())
}

async fn config(pool: &Pool, model: &str) -> Result<ModelConfig, ConnectError> {
    let request = ModelConfigRequest {
        name: model.to_owned(),
        version: String::new(),
    };
    let answer = ask("ModelConfig", pool.client().model_config(request)).await?;
    Ok(answer.into_inner().config.unwrap_or_default())
}

/// Every model that generates, ready to be served or with why it is not.
fn find_models(
    configs: &BTreeMap<String, ModelConfig>,
    tokenizers: &Tokenizers,
) -> Vec<Result<ServedModel, String>> {
    let found = configs.values().filter_map(|config| {
        let surroundings = surroundings(config, configs);
        let described = dialect::describe(config, surroundings)?;
        let served = described.and_then(|model| serve(model, tokenizers));
        Some(served.map_err(|reason| format!("`{}`: {reason}", config.name)))
    });
    found.collect()
}

/// An ensemble streams where one of its steps does, and one of them tokenizes for it; BLS calls the
/// model of that name.
fn surroundings(config: &ModelConfig, configs: &BTreeMap<String, ModelConfig>) -> Surroundings {
    let decoupled = |config: &ModelConfig| {
        let policy = config.model_transaction_policy.as_ref();
        policy.is_some_and(|policy| policy.decoupled)
    };
    let steps: Vec<&ModelConfig> = match &config.scheduling_choice {
        Some(SchedulingChoice::EnsembleScheduling(ensemble)) => {
            let names = ensemble.step.iter();
            names
                .filter_map(|step| configs.get(&step.model_name))
                .collect()
        }
        _ => configs.get("preprocessing").into_iter().collect(),
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
