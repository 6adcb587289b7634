//! A server's models, for as long as it answers. Owns when it is lost, and what is logged of it; what it says is `asking`'s
//! and `feed`'s.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use inflight_base::wall_clock::unix_seconds;
use inflight_kserve::assets::ModelDescription;
use inflight_kserve::client::Socket;
use inflight_kv_events::{Dialing, Heard, follow};
use inflight_models::served::{Protocol, ServedModel};
use tokio::sync::mpsc::{self, Receiver};

use super::asking::{Asker, LEAST_SILENCE, MODELS, Seen};
use super::feed::Feed;
use super::getter::{GetError, Getter};
use super::models::{self, Found};
use crate::connection::{Connection, Transport};
use crate::context::Context;
use crate::handles::Handle;
use crate::prompt_request::PromptRequest;
use crate::registry::Registry;
use crate::request_queue::NotSent;
use crate::slot::WorkerSlot;
use crate::triton::tokenizers::Tokenizers;

/// For the first answer of a server.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// Batches of events that may wait; behind them, the server's own queue fills.
const WAITING: usize = 64;

/// Why a server is not ready.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    #[error(transparent)]
    Get(#[from] GetError),
    #[error("{0}")]
    Models(String),
    #[error("the server lists no model")]
    NoModel,
}

/// A server and its models.
#[derive(Debug)]
pub struct Server {
    found: BTreeMap<String, Found>,
    connections: Vec<Arc<Connection>>,
    feed: Feed,
}

/// Of a server that does not take requests from here.
#[derive(Debug)]
struct NoTransport;

impl Transport for NoTransport {
    fn send(&self, _: Handle, _: &PromptRequest<'_>, _: u32) -> Result<(), NotSent> {
        Err(NotSent::Closed)
    }

    fn stop(&self, _: Handle) {}

    fn close(&self) {}
}

impl Server {
    /// Asks which models the server has.
    ///
    /// # Errors
    /// [`NotReady`].
    pub async fn connect(
        slot: &WorkerSlot,
        tokenizers: &Tokenizers,
        context: &Context,
    ) -> Result<Self, NotReady> {
        let getter = Getter::new(slot.host_port(), context.network.clone());
        let answer = getter.get(MODELS, FIRST_ANSWER).await?;
        let found = models::read(&answer).map_err(NotReady::Models)?;
        let mut server = Self {
            found: BTreeMap::new(),
            connections: Vec::new(),
            feed: Feed::new(context.kv_events.is_some()),
        };
        server.set_models(found, slot, tokenizers, context)?;
        Ok(server)
    }

    /// Watches until the server is lost. Returns why, and how many requests were counted there.
    pub async fn serve(
        self,
        slot: &WorkerSlot,
        tokenizers: &Tokenizers,
        context: &Context,
    ) -> (String, usize) {
        let limit = context.limits.worker_silence.max(LEAST_SILENCE);
        let new_getter = || Getter::new(slot.host_port(), context.network.clone());
        let (seen, sees) = mpsc::channel(1);
        // Each on its own connection: an answer may be late.
        let [of_models, of_load] = [seen.clone(), seen].map(|seen| Asker {
            getter: new_getter(),
            pulse: &slot.pulse,
            seen,
        });
        let (heard, hears) = mpsc::channel(WAITING);
        let dialer = Arc::new(new_getter());
        let listen = async {
            if let Some(source) = &context.kv_events {
                let dial = |port| -> Dialing<Box<dyn Socket>> {
                    let dialer = Arc::clone(&dialer);
                    Box::pin(async move { dialer.dial(port).await })
                };
                follow(source, dial, heard).await;
            }
            std::future::pending().await
        };
        slot.pulse.reset();
        let reason = tokio::select! {
            biased;
            reason = of_models.ask_models() => reason,
            reason = of_load.ask_load() => reason,
            // What it is asked anyway is enough.
            reason = slot.watch_pulse(limit, async || false) => reason,
            reason = self.watch(sees, hears, slot, tokenizers, context) => reason,
            never = listen => never,
        };
        let requests = slot.active();
        context.table.set_lost(slot, &reason);
        (reason, requests)
    }

    /// Takes what the server says until its models are gone; returns why.
    async fn watch(
        mut self,
        mut sees: Receiver<Seen>,
        mut hears: Receiver<Heard>,
        slot: &WorkerSlot,
        tokenizers: &Tokenizers,
        context: &Context,
    ) -> String {
        self.announce(slot, context);
        let mut logged = None;
        let mut has_load = true;
        loop {
            let fault = tokio::select! {
                Some(heard) = hears.recv() => {
                    self.log_heard(&heard, slot);
                    self.feed.hear(&heard)
                }
                seen = sees.recv() => match seen {
                    Some(Seen::Load(figures)) => {
                        let had_load = std::mem::replace(&mut has_load, figures.is_some());
                        if had_load && !has_load {
                            tracing::warn!(
                                worker = %slot.address,
                                "it has no metrics of vLLM, SGLang or trtllm-serve; its load is estimated"
                            );
                        }
                        self.feed.tick(figures)
                    }
                    Some(Seen::NoLoad(fault)) => self.feed.doubt(fault),
                    Some(Seen::Models(found)) if found == self.found => continue,
                    Some(Seen::Models(found)) => {
                        if let Err(error) = self.set_models(found, slot, tokenizers, context) {
                            return error.to_string();
                        }
                        self.announce(slot, context);
                        continue;
                    }
                    None => return std::future::pending().await,
                },
            };
            if let Some(fault) = fault {
                let reason = fault.text();
                tracing::warn!(worker = %slot.address, "worker's cache unknown: {reason}");
            }
            let blocks = self.feed.blocks();
            if blocks != logged {
                logged = blocks;
                if let Some((named, unnamed)) = blocks {
                    tracing::debug!(worker = %slot.address, named, unnamed, "cache events taken");
                }
            }
        }
    }

    /// Connects the models. One that has not changed keeps its connection.
    fn set_models(
        &mut self,
        found: BTreeMap<String, Found>,
        slot: &WorkerSlot,
        tokenizers: &Tokenizers,
        context: &Context,
    ) -> Result<(), NotReady> {
        if found.is_empty() {
            return Err(NotReady::NoModel);
        }
        let before = std::mem::take(&mut self.connections);
        for (name, model) in &found {
            let is_same = |one: &&Arc<Connection>| {
                one.served.description.served_model_name == *name
                    && self.found.get(name) == Some(model)
            };
            let kept = before.iter().find(is_same).map(Arc::clone);
            self.connections.push(kept.unwrap_or_else(|| {
                let connection = Connection::new(
                    Arc::clone(&slot.address),
                    Arc::new(served(name, model, tokenizers)),
                    Arc::clone(&slot.pulse),
                    Box::new(NoTransport),
                    Arc::new(Registry::default()),
                );
                Arc::new(connection.seated(context.table.placement(name).join()))
            }));
        }
        let seats = self.connections.iter().filter_map(|one| one.seat());
        let adapters = found.values().flat_map(|model| &model.adapters);
        let adapters = adapters.map(|one| (one.name.clone(), one.lora_task_id));
        self.feed
            .set_models(seats.map(Arc::clone), adapters.collect());
        self.found = found;
        Ok(())
    }

    fn announce(&self, slot: &WorkerSlot, context: &Context) {
        // Before the line is logged, as for other servers.
        context.table.set_ready(slot, self.connections.clone());
        for connection in &self.connections {
            tracing::info!(
                worker = %slot.address,
                model = %connection.served.description.served_model_name,
                has_tokenizer = connection.served.text.is_some(),
                "server watched"
            );
        }
    }

    /// What only the log needs.
    fn log_heard(&self, heard: &Heard, slot: &WorkerSlot) {
        match heard {
            Heard::Connected => tracing::info!(worker = %slot.address, "cache events connected"),
            Heard::Lost { reason, .. } => {
                tracing::debug!(worker = %slot.address, reason, "cache events lost");
            }
            Heard::Unreadable(error) => {
                tracing::debug!(worker = %slot.address, %error, "cache events unreadable");
            }
            Heard::Restarted => tracing::info!(worker = %slot.address, "cache events begin again"),
            Heard::Batch(_) | Heard::Missed => {}
        }
    }
}

fn served(name: &str, model: &Found, tokenizers: &Tokenizers) -> ServedModel {
    let files = tokenizers.text(name);
    let template = match files {
        Some(_) => None,
        None => tokenizers.template(name).map(Arc::new),
    };
    ServedModel {
        description: ModelDescription {
            served_model_name: name.to_owned(),
            core_model_name: name.to_owned(),
            // All of one name are prepared for alike.
            content_hash: format!("watched {name}"),
            created_unix_seconds: unix_seconds(),
            executor: "watched".to_owned(),
            max_seq_len: model
                .context
                .or_else(|| tokenizers.context(name))
                .unwrap_or(0),
            vocab_size: files.and_then(|files| files.vocabulary).unwrap_or(0),
            adapters: model.adapters.clone(),
            ..ModelDescription::default()
        },
        template,
        text: files.map(|files| Arc::clone(&files.text)),
        protocol: Protocol::Watched,
    }
}
