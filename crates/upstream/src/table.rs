//! The table of models: model → workers. Owns which there are; a model's [`ModelEntry`] picks among its workers. Knows
//! nothing of how connections are made or of what requests say.

mod choice;
mod entry;
mod peers;

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use inflight_kserve::assets;
use inflight_routing::Turns;
use parking_lot::Mutex;
use tokio::sync::watch;

pub use self::choice::MakeQuery;
pub use self::entry::{ModelEntry, Suits};
pub use self::peers::{NoPeer, Picked};
use super::connection::Connection;
use super::phases::is_for_contexts;
use super::placement::Placement;
use super::slot::{PastModel, WorkerSlot};
use super::visit::Visit;
use crate::metrics::Placements;

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
                let entry = models.entry(model.name.clone());
                let entry = entry.or_insert_with(|| ModelEntry::new(&model, &self.turns));
                entry.add(slot, model);
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
