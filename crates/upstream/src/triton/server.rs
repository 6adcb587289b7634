//! Which models of a Triton server can be served, and whether they still can. Owns asking and watching;
//! what a configuration means is `dialect`'s, and one request's life `exchange`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use inflight_base::wall_clock::unix_seconds;
use inflight_kserve::assets::ModelDescription;
use inflight_kserve::client;
use inflight_kserve::inference::model_config::SchedulingChoice;
use inflight_kserve::inference::{
    ModelConfig, ModelConfigRequest, RepositoryIndexRequest, ServerLiveRequest,
};
use inflight_kserve::names::STEP_BATCHING_EXTENSION;
use inflight_models::dialect::{self, Surroundings, TritonModel};
use inflight_models::served::{MAX_NAME_BYTES, Protocol, ServedModel};
use tokio::time::Instant;
use tonic::Code;

use super::exchange::Exchanges;
use super::tokenizers::Tokenizers;
use crate::connection::Connection;
use crate::context::Context;
use crate::peer::Served;
use crate::pool::Pool;
use crate::pulse::Pulse;
use crate::registry::Registry;
use crate::rpc::{self, RpcError};
use crate::slot::WorkerSlot;

/// How often a server is asked whether it and its models are ready. There is no other sign: with a stream per
/// request, a server sends nothing between requests.
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

/// Codes that are about the connection or the server; all others are about the request.
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

/// Why a server is not ready.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    #[error(transparent)]
    Transport(#[from] client::ConnectError),
    #[error(transparent)]
    Rpc(#[from] RpcError),
    #[error(
        "the server `{server}` neither announces `{}` nor lists its models as Triton does: {status}",
        STEP_BATCHING_EXTENSION
    )]
    Unknown {
        server: String,
        status: tonic::Status,
    },
    #[error("the server `{server}` has no supported model{reasons}")]
    NoModel { server: String, reasons: String },
}

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
    /// [`NotReady`], in particular when none can be served, with why not.
    pub async fn connect(
        slot: &WorkerSlot,
        name: String,
        tokenizers: &Tokenizers,
        context: &Context,
    ) -> Result<Self, NotReady> {
        // Calls of KServe's clients travel on it. A server that was never lost keeps it.
        let served = slot.peer.served().filter(|served| served.of.is_none());
        let pool = match served.filter(|_| slot.peer.is_up()) {
            Some(served) => Arc::clone(&served.pool),
            None => Arc::new(Pool::new(
                &slot.address,
                &slot.pulse,
                &context.transport(),
                None,
            )?),
        };
        let index = match index(&pool).await {
            Err(RpcError::Failed { status, .. }) if status.code() == Code::Unimplemented => {
                return Err(NotReady::Unknown {
                    server: name,
                    status,
                });
            }
            index => index?,
        };
        slot.pulse.hear();
        list(slot, &pool, &index);
        let mut server = Self {
            name,
            configs: configs(&pool, &index, &slot.pulse).await?,
            pool,
            index,
            connections: Vec::new(),
        };
        server.connect_models(slot, tokenizers, context)?;
        Ok(server)
    }

    /// Connects the models that can be served. One that has not changed keeps its connection, and with it
    /// its open requests.
    fn connect_models(
        &mut self,
        slot: &WorkerSlot,
        tokenizers: &Tokenizers,
        context: &Context,
    ) -> Result<(), NotReady> {
        let models = names(&self.index).len();
        if models > MAX_MODELS {
            tracing::warn!(
                worker = %slot.address,
                models,
                "too many models; only the first {MAX_MODELS} by name are considered"
            );
        }
        let mut connections = Vec::new();
        let mut reasons = String::new();
        let mut refused = BTreeMap::new();
        for (name, found) in find_models(&self.configs, tokenizers) {
            let (model, served) = match found {
                Ok(found) => found,
                Err(reason) => {
                    let reason = rpc::abbreviated(&reason);
                    reasons.push_str("; ");
                    reasons.push_str(reason);
                    refused.insert(name.to_owned(), reason.to_owned());
                    continue;
                }
            };
            let same = |old: &&Arc<Connection>| old.served.protocol == served.protocol;
            let connection = match self.connections.iter().find(same) {
                Some(old) => Arc::clone(old),
                None => {
                    let served = Arc::new(served);
                    let registry = Arc::new(Registry::default());
                    let exchanges = Exchanges::new(
                        model,
                        Arc::clone(&served),
                        Arc::clone(&self.pool),
                        Arc::clone(&registry),
                        Arc::clone(&slot.pulse),
                        &context.metrics,
                    );
                    let address = Arc::clone(&slot.address);
                    let transport = Box::new(exchanges);
                    let pulse = Arc::clone(&slot.pulse);
                    let name = &served.description.served_model_name;
                    let seat = context.table.placement(name).join();
                    let connection = Connection::new(address, served, pulse, transport, registry);
                    Arc::new(connection.seated(seat))
                }
            };
            connections.push(connection);
        }
        for reason in slot.set_refused(refused).into_values() {
            tracing::warn!(worker = %slot.address, "a model is not served: {reason}");
        }
        if connections.is_empty() {
            return Err(NotReady::NoModel {
                server: self.name.clone(),
                reasons,
            });
        }
        self.connections = connections;
        Ok(())
    }

    /// Serves until the server is lost. Returns why, and how many requests were open. Each of these has its own
    /// stream and may still be answered: perhaps the server was only slow to answer a call. If it was silent for
    /// too long, they fail at once.
    pub async fn serve(
        self,
        slot: &WorkerSlot,
        tokenizers: &Tokenizers,
        context: &Context,
    ) -> (String, usize) {
        let pool = Arc::clone(&self.pool);
        // Any answer is a sign of life, an error too, unless it is about the way to the server.
        let probe = async || match pool.client().server_live(ServerLiveRequest {}).await {
            Ok(_) => true,
            Err(status) => !LOST.contains(&status.code()),
        };
        slot.pulse.reset();
        let (reason, is_silent) = tokio::select! {
            biased;
            reason = self.watch(slot, tokenizers, context) => (reason, false),
            reason = slot.watch_pulse(context.limits.worker_silence, probe) => (reason, true),
        };
        let requests = slot.active();
        if is_silent {
            slot.fail_all("the worker was lost");
        }
        context.table.set_lost(slot, &reason);
        (reason, requests)
    }

    /// Watches until the server is lost; returns why. When its models change, they are connected anew.
    async fn watch(
        mut self,
        slot: &WorkerSlot,
        tokenizers: &Tokenizers,
        context: &Context,
    ) -> String {
        self.announce(slot, context);
        let mut ticks = tokio::time::interval(WATCH_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut read = Instant::now();
        loop {
            ticks.tick().await;
            for connection in &self.connections {
                connection.sweep_stalled(Instant::now(), context.limits.slow_client);
            }
            let index = match index(&self.pool).await {
                Ok(index) => index,
                Err(error) => return rpc::describe(&error),
            };
            if index == self.index && read.elapsed() < READ_EVERY {
                continue;
            }
            list(slot, &self.pool, &index);
            let configs = match configs(&self.pool, &index, &slot.pulse).await {
                Ok(configs) => configs,
                Err(error) => return rpc::describe(&error),
            };
            read = Instant::now();
            self.index = index;
            if configs == self.configs {
                continue;
            }
            self.configs = configs;
            if let Err(error) = self.connect_models(slot, tokenizers, context) {
                return rpc::describe(&error);
            }
            self.announce(slot, context);
        }
    }

    fn announce(&self, slot: &WorkerSlot, context: &Context) {
        // Before the line is logged: a client that waits for it may send a request at once.
        context.table.set_ready(slot, self.connections.clone());
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

/// Records in the table which models KServe clients find at the server.
fn list(slot: &WorkerSlot, pool: &Arc<Pool>, index: &Index) {
    slot.peer.set_up(Served {
        pool: Arc::clone(pool),
        models: index.clone(),
        of: None,
    });
}

/// The models that are ready. Whether the server as a whole is says less: one model that cannot be loaded
/// makes it unready for good.
async fn index(pool: &Pool) -> Result<Index, RpcError> {
    let request = RepositoryIndexRequest {
        repository_name: String::new(),
        ready: true,
    };
    let mut client = pool.client().max_decoding_message_size(MAX_INDEX_BYTES);
    let index = rpc::call("RepositoryIndex", client.repository_index(request)).await?;
    let models = index.models.into_iter();
    Ok(models.map(|model| (model.name, model.version)).collect())
}

/// The models' configurations, all of them in time or none. Each is a sign of life.
async fn configs(pool: &Pool, index: &Index, pulse: &Pulse) -> Result<Configs, RpcError> {
    let read = async {
        let mut configs = Configs::new();
        for name in names(index).into_iter().take(MAX_MODELS) {
            configs.insert(name.to_owned(), config(pool, name).await?);
            pulse.hear();
        }
        Ok(configs)
    };
    let late = |_| RpcError::TimedOut {
        call: "ModelConfig",
        limit: READ_TIMEOUT,
    };
    let read = tokio::time::timeout(READ_TIMEOUT, read).await;
    read.map_err(late)?
}

/// Each model once, whatever its versions.
fn names(index: &Index) -> BTreeSet<&str> {
    index.iter().map(|(name, _)| name.as_str()).collect()
}

/// A model's configuration. If it cannot be read, the server's other models are still served.
async fn config(pool: &Pool, model: &str) -> Result<Result<ModelConfig, String>, RpcError> {
    let request = ModelConfigRequest {
        name: model.to_owned(),
        version: String::new(),
    };
    let mut client = pool.client().max_decoding_message_size(MAX_CONFIG_BYTES);
    match rpc::call("ModelConfig", client.model_config(request)).await {
        Ok(answer) => {
            let mut config = answer.config.unwrap_or_default();
            // What requests for it must say.
            config.name = model.to_owned();
            Ok(Ok(config))
        }
        Err(RpcError::Failed { status, .. }) if !LOST.contains(&status.code()) => Ok(Err(format!(
            "its configuration cannot be read: {}",
            status.message()
        ))),
        Err(error) => Err(error),
    }
}

/// A model that can be served; the second describes the first.
type Found = (Arc<TritonModel>, ServedModel);

/// Every model that generates: ready to be served, or why it is not.
fn find_models<'a>(
    configs: &'a Configs,
    tokenizers: &Tokenizers,
) -> Vec<(&'a str, Result<Found, String>)> {
    let found = configs.iter().filter_map(|(name, config)| {
        // Names are logged as they are.
        if name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
            let start: String = name.chars().take(32).collect();
            let reason = format!(
                "`{}…`: its name is longer than {MAX_NAME_BYTES} bytes or has control characters",
                start.escape_debug()
            );
            return Some((name.as_str(), Err(reason)));
        }
        let served = match config {
            Ok(config) => {
                let described = dialect::describe(config, surroundings(config, configs))?;
                described.and_then(|model| serve(model, tokenizers))
            }
            Err(reason) => Err(reason.clone()),
        };
        let served = served.map_err(|reason| format!("`{name}`: {reason}"));
        Some((name.as_str(), served))
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
    // What generates: a step of an ensemble, the model that BLS calls, or the model itself.
    let core = match is_ensemble {
        true => steps
            .iter()
            .copied()
            .find(|step| dialect::generates_tokens(step)),
        false if dialect::generates_tokens(config) => None,
        false => read(&dialect::called_core_model(config)),
    };
    let core = core.unwrap_or(config);
    Surroundings {
        decoupled: decoupled(config) || (is_ensemble && steps.iter().any(|step| decoupled(step))),
        excludes_prompt: dialect::flag(core, "exclude_input_in_output", false),
        adds_special_tokens: tokenizes
            .is_none_or(|step| dialect::flag(step, "add_special_tokens", true)),
    }
}

fn serve(model: TritonModel, tokenizers: &Tokenizers) -> Result<Found, String> {
    let files = tokenizers.text(&model.name);
    if files.is_none() && !model.takes_text() {
        return Err(
            "it takes token ids; pass its tokenizer with `--tokenizer DIRECTORY`".to_owned(),
        );
    }
    if files.is_none() && !model.decoupled && !model.counts_tokens() && !model.reports_reason() {
        return Err(
            "it neither streams nor counts its tokens, so a truncated answer would look complete; pass \
             its tokenizer with `--tokenizer DIRECTORY`"
                .to_owned(),
        );
    }
    let description = ModelDescription {
        served_model_name: model.name.clone(),
        core_model_name: model.name.clone(),
        // Servers of one model name that are spoken to alike may take each other's requests.
        content_hash: format!("{model:?}"),
        created_unix_seconds: unix_seconds(),
        executor: "triton".to_owned(),
        max_seq_len: tokenizers.context(&model.name).unwrap_or(0),
        vocab_size: files.and_then(|files| files.vocabulary).unwrap_or(0),
        ..ModelDescription::default()
    };
    let template = match files {
        Some(_) => None,
        None => tokenizers.template(&model.name).map(Arc::new),
    };
    let model = Arc::new(model);
    let served = ServedModel {
        description,
        template,
        text: files.map(|files| Arc::clone(&files.text)),
        protocol: Protocol::Triton(Arc::clone(&model)),
    };
    Ok((model, served))
}

#[cfg(test)]
mod tests;
