//! The table of models: model → workers. Owns which worker a request goes to; knows nothing of how
//! connections are made or of what requests say.

mod choice;
mod peers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use inflight_kserve::assets;
use inflight_routing::Turns;
use inflight_text::ChatTemplate;
use parking_lot::Mutex;
use tokio::sync::watch;

pub use self::choice::MakeQuery;
use self::choice::{Criteria, Server, least_busy};
pub use self::peers::{NoPeer, Picked};
use super::connection::Connection;
use super::phases::{Disaggregate, Phases, is_for_contexts};
use super::placement::{Placed, Placement, Prompts};
use super::slot::{PastModel, WorkerSlot};
use super::visit::Visit;
use crate::metrics::Placements;
use crate::model::adapter::Adapter;
use crate::model::served::ServedModel;

/// A model and the workers that serve it, or did when last seen.
#[derive(Debug)]
pub struct ModelEntry {
    pub name: String,
    /// Seconds since the epoch at which the model was loaded.
    pub created: i64,
    /// Prompt plus generated tokens that fit a request on any of its workers, where one says it.
    pub max_seq_len: Option<u32>,
    /// Names of the LoRA adapters that any of its workers has.
    pub adapters: BTreeSet<String>,
    workers: Vec<Arc<WorkerSlot>>,
    /// Whether any of them is for contexts.
    has_contexts: bool,
    /// Of all models.
    turns: Arc<Turns>,
}

impl ModelEntry {
    /// What the next request is prepared for: the model as the worker serves it that [`ModelEntry::pick`]
    /// would choose now. Picks nothing: preparing a long prompt takes a while, and the worker is chosen by
    /// the load after it.
    pub fn next_served(&self) -> Option<Arc<ServedModel>> {
        Some(Arc::clone(&self.next(|one| !one.is_watched())?.served))
    }

    /// [`ModelEntry::next_served`] for a caller that sends the request another way: where all others are away, of a server
    /// that is only watched.
    pub fn next_endpoint(&self) -> Option<Arc<ServedModel>> {
        let watched = || Some(Arc::clone(&self.next(Connection::is_watched)?.served));
        self.next_served().or_else(watched)
    }

    /// Whether all its servers are only watched: nothing can be sent to them from here.
    pub fn is_only_watched(&self) -> bool {
        self.workers.iter().all(|slot| slot.is_watched())
    }

    /// [`ModelEntry::next_served`] of the workers that have this LoRA adapter, which it also looks up.
    pub fn next_with(&self, adapter: &str) -> Option<(Arc<ServedModel>, Adapter)> {
        self.next_that(adapter, |one| !one.is_watched())
    }

    /// [`ModelEntry::next_endpoint`] of the servers that have this LoRA adapter, which it also looks up.
    pub fn next_endpoint_with(&self, adapter: &str) -> Option<(Arc<ServedModel>, Adapter)> {
        let watched = || self.next_that(adapter, Connection::is_watched);
        self.next_with(adapter).or_else(watched)
    }

    fn next_that(
        &self,
        adapter: &str,
        fits: impl Fn(&Connection) -> bool,
    ) -> Option<(Arc<ServedModel>, Adapter)> {
        let connection = self.next(|one| fits(one) && one.task_of(adapter).is_some())?;
        let served = Arc::clone(&connection.served);
        let adapter = Adapter {
            task_id: connection.task_of(adapter)?,
            name: adapter.to_owned(),
        };
        Some((served, adapter))
    }

    fn next(&self, fits: impl Fn(&Connection) -> bool) -> Option<Arc<Connection>> {
        Some(least_busy(self.ready(fits))?.connection)
    }

    /// Whether small conversations with it are rendered at once, without waiting for another process. Taken from its
    /// first ready worker: except for moments, all workers of a model have the same files.
    fn renders_at_once(&self) -> bool {
        let mut workers = self.workers.iter();
        let connection = workers.find_map(|slot| slot.connection(&self.name));
        let template = connection
            .as_ref()
            .and_then(|one| one.served.chat_template());
        template.is_none_or(ChatTemplate::renders_at_once)
    }

    /// Picks the worker of a request, as `Criteria` says. None of the `tried` addresses counts. Workers for contexts get
    /// whole requests only where no other can.
    pub fn pick(
        &self,
        suits: Suits<'_>,
        tried: &[Arc<str>],
        asked: &Prompts<'_>,
    ) -> Option<(Arc<Connection>, Option<Placed>)> {
        let criteria = Criteria {
            asks: Some(&|block_tokens| asked.ask(block_tokens)),
            hashes_always: asked.is_transferred(),
            spares_contexts: self.has_contexts && matches!(suits.phases, Phases::Both),
            turns: &self.turns,
        };
        let (picked, placed) = criteria.pick(self.ready(|one| suits.takes(one, tried)))?;
        Some((picked.connection, placed))
    }

    /// As [`ModelEntry::pick`], for a request that another program sends, to a worker that `fits`, with at most so many
    /// `others` that would be next. Without `asks`, caches do not matter.
    pub fn pick_visited(
        &self,
        suits: Suits<'_>,
        fits: impl Fn(&WorkerSlot) -> bool,
        asks: Option<MakeQuery<'_>>,
        others: usize,
    ) -> Option<Visit> {
        let criteria = Criteria {
            asks,
            hashes_always: false,
            spares_contexts: self.has_contexts,
            turns: &self.turns,
        };
        let suited = self.ready(|one| suits.takes(one, &[]));
        let ranked = criteria.rank(suited.filter(|ready| fits(ready.slot)), others)?;
        Some(ranked.visited())
    }

    /// Whether a worker for contexts should compute these prompts and another one continue, rather than one do all of it.
    pub fn should_split(
        &self,
        which: Disaggregate,
        suits: Suits<'_>,
        tried: &[Arc<str>],
        asked: &Prompts<'_>,
    ) -> bool {
        if !self.has_contexts || which == Disaggregate::Never {
            return false;
        }
        let ready = self.ready(|one| suits.takes(one, tried));
        let ready = ready.map(|ready| ready.connection);
        let (contexts, others): (Vec<_>, Vec<_>) =
            ready.partition(|one| is_for_contexts(&one.served));
        let takes = |phases: Phases<'_>, workers: &[Arc<Connection>]| {
            workers.iter().any(|one| phases.suit(&one.served))
        };
        // Where costs are not known they are split as well: these workers are there for it.
        let pays = || {
            let placement = contexts.first()?.seat()?.placement();
            let ask = asked.ask(placement.block_tokens()?);
            placement.split_pays(
                &ask,
                contexts.iter().filter_map(|worker| worker.seat()),
                others.iter().filter_map(|worker| worker.seat()),
            )
        };
        takes(Phases::Context, &contexts)
            && takes(Phases::Generation(&Bytes::new()), &others)
            && (which == Disaggregate::Always || pays().unwrap_or(true))
    }

    /// Its workers that can take requests.
    fn ready(&self, fits: impl Fn(&Connection) -> bool) -> impl Iterator<Item = Ready<'_>> {
        let workers = self.workers.iter();
        let ready = workers.filter_map(|slot| {
            let connection = slot.connection(&self.name)?;
            Some(Ready { slot, connection })
        });
        ready.filter(move |ready| fits(&ready.connection))
    }
}

/// A worker of a model that can take requests.
struct Ready<'a> {
    slot: &'a Arc<WorkerSlot>,
    connection: Arc<Connection>,
}

impl Server for Ready<'_> {
    fn slot(&self) -> &Arc<WorkerSlot> {
        self.slot
    }

    fn worker(&self) -> Option<Arc<Connection>> {
        Some(Arc::clone(&self.connection))
    }
}

/// Which workers can take a request.
#[derive(Clone, Copy, Debug)]
pub struct Suits<'a> {
    /// Those with these files: a prompt is tokenized for one tokenizer.
    pub content_hash: &'a str,
    /// Those with this LoRA adapter.
    pub adapter: Option<&'a Adapter>,
    /// Those for these phases.
    pub phases: Phases<'a>,
    /// Those that can continue where another ended.
    pub resumes: bool,
    /// Those with these weights: another worker continues with an answer.
    pub weights: Option<&'a str>,
    /// Also those that are only watched: the caller sends the request another way.
    pub watched: bool,
    /// Any but this one, which has the request. A worker that has come back since is another.
    pub without: Option<&'a Connection>,
}

impl Suits<'_> {
    fn takes(&self, connection: &Connection, tried: &[Arc<str>]) -> bool {
        let description = &connection.served.description;
        // A server that is only watched gets the request as its client wrote it, and the adapter by its name.
        let is_alike = match connection.is_watched() {
            true => self.watched,
            false => description.content_hash == self.content_hash,
        };
        let has = |adapter: &Adapter| match connection.task_of(&adapter.name) {
            Some(task) => task == adapter.task_id || connection.is_watched(),
            None => false,
        };
        is_alike
            && !tried.contains(&connection.address)
            && self.adapter.is_none_or(has)
            && self.phases.suit(&connection.served)
            && (!self.resumes || connection.resumes())
            && self
                .weights
                .is_none_or(|weights| description.weights == weights)
            && !self
                .without
                .is_some_and(|one| std::ptr::eq(one, connection))
    }
}

/// Why no model was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoModel {
    /// Some worker has never said what it serves: the name may yet appear.
    NotYet,
    /// Every worker has said what it serves, and none serves this.
    Unknown,
    /// A server has it, and it cannot be served; why not.
    Refused(String),
}

/// All workers and the models they serve.
#[derive(Debug)]
pub struct Table {
    /// Those that are configured, and behind them those that were and still have requests.
    workers: ArcSwap<Vec<Arc<WorkerSlot>>>,
    models: ArcSwap<BTreeMap<String, Arc<ModelEntry>>>,
    /// What is known of the workers of each model. As many as there were models since the start.
    placements: Mutex<BTreeMap<String, Arc<Placement>>>,
    counts: Placements,
    turns: Arc<Turns>,
    /// One change at a time.
    changing: Mutex<()>,
    /// Signals each change of a server's adapters.
    adapters_changed: watch::Sender<()>,
}

impl Table {
    /// A table over these worker addresses, none connected.
    pub fn new(addresses: &[String]) -> Self {
        let table = Self {
            workers: ArcSwap::default(),
            models: ArcSwap::default(),
            placements: Mutex::default(),
            counts: Placements::default(),
            turns: Arc::default(),
            changing: Mutex::new(()),
            adapters_changed: watch::Sender::new(()),
        };
        table.configure(addresses);
        table
    }

    /// With what is counted of placed requests.
    #[must_use]
    pub fn counted(self, counts: Placements) -> Self {
        Self { counts, ..self }
    }

    /// Every configured worker, and those that were and still have requests.
    pub fn workers(&self) -> Arc<Vec<Arc<WorkerSlot>>> {
        self.workers.load_full()
    }

    /// Makes these addresses the configured ones; returns the slots of those that are new, for
    /// `connect`'s loops. One that is missing gets no new requests, and stays until [`Table::remove`].
    pub fn configure(&self, addresses: &[String]) -> Vec<Arc<WorkerSlot>> {
        let _one = self.changing.lock();
        let before = self.workers.load_full();
        let (kept, leaving): (Vec<_>, Vec<_>) = before.iter().cloned().partition(|slot| {
            let listed = |address: &String| **address == *slot.address;
            !slot.is_retired() && addresses.iter().any(listed)
        });
        let mut workers: Vec<Arc<WorkerSlot>> = Vec::new();
        let mut added = Vec::new();
        for address in addresses {
            let same = |slot: &&Arc<WorkerSlot>| *slot.address == **address;
            if workers.iter().any(|slot| same(&slot)) {
                continue;
            }
            workers.push(kept.iter().find(same).cloned().unwrap_or_else(|| {
                let slot = Arc::new(WorkerSlot::new(address));
                added.push(Arc::clone(&slot));
                slot
            }));
        }
        for slot in &leaving {
            slot.retired.send_replace(true);
            workers.push(Arc::clone(slot));
        }
        self.workers.store(Arc::new(workers));
        self.rebuild();
        // Now none of them is picked any more.
        for slot in leaving {
            slot.retire();
        }
        added
    }

    /// Forgets a worker that was released; whatever it still has ends with an error.
    pub fn remove(&self, slot: &Arc<WorkerSlot>) {
        let _one = self.changing.lock();
        slot.fail_all("the worker was taken out");
        slot.connections.store(Arc::default());
        let rest = self.workers.load();
        let rest = rest.iter().filter(|other| !Arc::ptr_eq(other, slot));
        self.workers.store(Arc::new(rest.cloned().collect()));
    }

    /// Every known model, by name.
    pub fn models(&self) -> Arc<BTreeMap<String, Arc<ModelEntry>>> {
        self.models.load_full()
    }

    /// What is known of the workers of a model.
    pub fn placement(&self, model: &str) -> Arc<Placement> {
        let mut placements = self.placements.lock();
        if let Some(placement) = placements.get(model) {
            return Arc::clone(placement);
        }
        let placement = Arc::new(Placement::new(self.counts.clone()));
        placements.insert(model.to_owned(), Arc::clone(&placement));
        placement
    }

    /// Whether small conversations with any model wait for no other process.
    pub fn renders_at_once(&self) -> bool {
        self.models().values().all(|entry| entry.renders_at_once())
    }

    /// The model of this name.
    ///
    /// # Errors
    /// [`NoModel`]: whether it may yet appear.
    pub fn find(&self, model: &str) -> Result<Arc<ModelEntry>, NoModel> {
        if let Some(entry) = self.models.load().get(model) {
            return Ok(Arc::clone(entry));
        }
        let workers = self.workers.load();
        let mut configured = workers.iter().filter(|slot| !slot.is_retired()).peekable();
        let reason =
            |slot: &Arc<WorkerSlot>| slot.past.lock().refused.as_ref()?.get(model).cloned();
        if let Some(reason) = configured.clone().find_map(reason) {
            return Err(NoModel::Refused(reason));
        }
        let silent = configured.peek().is_none()
            || configured.any(|slot| {
                let past = slot.past.lock();
                past.models.is_empty() && past.refused.is_none()
            });
        Err(if silent {
            NoModel::NotYet
        } else {
            NoModel::Unknown
        })
    }

    /// Picks the least loaded worker that `fits`, of whatever model, for a request that another program sends, with at most so
    /// many `others` that would be next.
    pub fn pick_visited(&self, fits: impl Fn(&WorkerSlot) -> bool, others: usize) -> Option<Visit> {
        let workers = self.workers.load();
        let ready = workers.iter().filter(|slot| slot.is_ready() && fits(slot));
        let ranked = self.criteria(None).rank(ready.cloned(), others)?;
        Some(ranked.visited())
    }

    /// Whether any worker is ready.
    pub fn ready(&self) -> bool {
        self.workers.load().iter().any(|slot| slot.is_ready())
    }

    /// A server became ready, with a connection for each of its models.
    pub fn set_ready(&self, slot: &WorkerSlot, connections: Vec<Arc<Connection>>) {
        let _one = self.changing.lock();
        let models = connections.iter().map(|connection| {
            let description = &connection.served.description;
            PastModel {
                name: description.served_model_name.clone(),
                created: description.created_unix_seconds,
                max_seq_len: Some(description.max_seq_len).filter(|length| *length > 0),
                is_for_contexts: is_for_contexts(&connection.served),
                adapters: adapter_names(&description.adapters),
                _text: connection.served.text.clone(),
            }
        });
        {
            let mut past = slot.past.lock();
            past.models = models.collect();
            past.reason.clear();
        }
        slot.connections.store(Arc::new(connections));
        self.rebuild();
    }

    /// A server that is ready announces these LoRA adapters for the model of this connection.
    pub fn set_adapters(
        &self,
        slot: &WorkerSlot,
        connection: &Connection,
        adapters: Vec<assets::Adapter>,
    ) {
        let _one = self.changing.lock();
        if *connection.adapters() == adapters {
            return;
        }
        let name = &connection.served.description.served_model_name;
        let mut past = slot.past.lock();
        if let Some(model) = past.models.iter_mut().find(|model| model.name == *name) {
            model.adapters = adapter_names(&adapters);
        }
        drop(past);
        connection.set_adapters(adapters);
        self.rebuild();
        self.adapters_changed.send_replace(());
    }

    /// Changes of servers' adapters from now on.
    pub fn adapter_changes(&self) -> watch::Receiver<()> {
        self.adapters_changed.subscribe()
    }

    /// A server was lost; its models stay known, so that clients get 503 and not 404.
    pub fn set_lost(&self, slot: &WorkerSlot, reason: &str) {
        let _one = self.changing.lock();
        slot.set_reason(reason);
        slot.peer.set_down();
        slot.part();
        slot.connections().iter().for_each(|one| one.part());
        slot.connections.store(Arc::default());
    }

    fn rebuild(&self) {
        let mut models: BTreeMap<String, ModelEntry> = BTreeMap::new();
        let workers = self.workers.load();
        for slot in workers.iter().filter(|slot| !slot.is_retired()) {
            for model in slot.past.lock().models.iter().cloned() {
                let entry = models
                    .entry(model.name.clone())
                    .or_insert_with(|| ModelEntry {
                        name: model.name,
                        created: model.created,
                        max_seq_len: model.max_seq_len,
                        adapters: BTreeSet::new(),
                        workers: Vec::new(),
                        has_contexts: false,
                        turns: Arc::clone(&self.turns),
                    });
                // Workers of one name may differ in files while they are being renewed.
                entry.created = entry.created.min(model.created);
                let lengths = [entry.max_seq_len, model.max_seq_len];
                entry.max_seq_len = lengths.into_iter().flatten().min();
                entry.adapters.extend(model.adapters);
                entry.has_contexts |= model.is_for_contexts;
                entry.workers.push(Arc::clone(slot));
            }
        }
        let models = models
            .into_iter()
            .map(|(name, entry)| (name, Arc::new(entry)))
            .collect();
        self.models.store(Arc::new(models));
    }
}

fn adapter_names(adapters: &[assets::Adapter]) -> Vec<String> {
    adapters
        .iter()
        .map(|adapter| adapter.name.clone())
        .collect()
}

#[cfg(test)]
mod tests;
