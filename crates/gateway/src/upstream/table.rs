//! The table of models: model → workers. Owns which worker a request goes to; knows nothing of how
//! connections are made or of what requests say.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption};
use inflight_text::TextModel;
use parking_lot::Mutex;

use super::connection::Connection;

/// One configured worker, connected or not.
#[derive(Debug)]
pub struct WorkerSlot {
    /// `host:port` as given on the command line.
    pub address: Arc<str>,
    connection: ArcSwapOption<Connection>,
    /// The model it last served, and why it is not ready now.
    past: Mutex<Past>,
}

#[derive(Clone, Debug)]
struct PastModel {
    name: String,
    created: i64,
    max_seq_len: u32,
    /// Kept while the worker is away, so that its return costs no loading.
    _text: Arc<TextModel>,
}

#[derive(Debug, Default)]
struct Past {
    model: Option<PastModel>,
    reason: String,
}

impl WorkerSlot {
    fn new(address: &str) -> Self {
        let past = Past {
            model: None,
            reason: "not connected yet".to_owned(),
        };
        Self {
            address: address.into(),
            connection: ArcSwapOption::empty(),
            past: Mutex::new(past),
        }
    }

    /// The connection, when ready.
    pub fn connection(&self) -> Option<Arc<Connection>> {
        self.connection.load_full()
    }

    /// Why the worker is not ready; empty when it is.
    pub fn reason(&self) -> String {
        self.past.lock().reason.clone()
    }

    /// Remembers why the worker is not ready.
    pub fn set_reason(&self, reason: &str) {
        self.past.lock().reason = reason.to_owned();
    }
}

/// A model and the workers that serve it, or did when last seen.
#[derive(Debug)]
pub struct ModelEntry {
    pub name: String,
    /// Seconds since the epoch at which the model was loaded.
    pub created: i64,
    /// Prompt plus generated tokens that fit a request on any of its workers.
    pub max_seq_len: u32,
    workers: Vec<Arc<WorkerSlot>>,
    rotation: AtomicUsize,
}

impl ModelEntry {
    /// The ready connection with the fewest active requests, ties in turn. With `content_hash`, only
    /// workers with the same files: a prompt is tokenized once, for one tokenizer.
    pub fn pick(&self, content_hash: Option<&str>) -> Option<Arc<Connection>> {
        let count = self.workers.len();
        let start = self.rotation.fetch_add(1, Ordering::Relaxed);
        let mut best: Option<(usize, Arc<Connection>)> = None;
        for offset in 0..count {
            let slot = self.workers.get(start.wrapping_add(offset) % count);
            let Some(connection) = slot.and_then(|slot| slot.connection()) else {
                continue;
            };
            let hash = &connection.served.description.content_hash;
            if content_hash.is_some_and(|wanted| wanted != hash) {
                continue;
            }
            let active = connection.active();
            if best.as_ref().is_none_or(|(fewest, _)| active < *fewest) {
                best = Some((active, connection));
            }
        }
        best.map(|(_, connection)| connection)
    }
}

/// Why no model was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoModel {
    /// Some worker has never said what it serves: the name may yet appear.
    NotYet,
    /// Every worker has said what it serves, and none serves this.
    Unknown,
}

/// All workers and the models they serve.
#[derive(Debug)]
pub struct Table {
    workers: Vec<Arc<WorkerSlot>>,
    models: ArcSwap<BTreeMap<String, Arc<ModelEntry>>>,
    /// One change at a time.
    changing: Mutex<()>,
}

impl Table {
    /// A table over these worker addresses, none connected.
    pub fn new(addresses: &[String]) -> Self {
        Self {
            workers: addresses
                .iter()
                .map(|address| Arc::new(WorkerSlot::new(address)))
                .collect(),
            models: ArcSwap::default(),
            changing: Mutex::new(()),
        }
    }

    /// Every configured worker.
    pub fn workers(&self) -> &[Arc<WorkerSlot>] {
        &self.workers
    }

    /// Every known model, by name.
    pub fn models(&self) -> Arc<BTreeMap<String, Arc<ModelEntry>>> {
        self.models.load_full()
    }

    /// The model of this name.
    ///
    /// # Errors
    /// [`NoModel`]: whether it may yet appear.
    pub fn find(&self, model: &str) -> Result<Arc<ModelEntry>, NoModel> {
        if let Some(entry) = self.models.load().get(model) {
            return Ok(Arc::clone(entry));
        }
        let silent = self
            .workers
            .iter()
            .any(|slot| slot.past.lock().model.is_none());
        Err(if silent {
            NoModel::NotYet
        } else {
            NoModel::Unknown
        })
    }

    /// Whether any worker is ready.
    pub fn ready(&self) -> bool {
        self.workers
            .iter()
            .any(|slot| slot.connection.load().is_some())
    }

    /// A worker became ready.
    pub fn set_ready(&self, slot: &WorkerSlot, connection: Arc<Connection>) {
        let _one = self.changing.lock();
        let description = &connection.served.description;
        {
            let mut past = slot.past.lock();
            past.model = Some(PastModel {
                name: description.served_model_name.clone(),
                created: description.created_unix_seconds,
                max_seq_len: description.max_seq_len,
                _text: Arc::clone(&connection.served.text),
            });
            past.reason.clear();
        }
        slot.connection.store(Some(connection));
        self.rebuild();
    }

    /// A worker was lost; its model stays known, so that clients get 503 and not 404.
    pub fn set_lost(&self, slot: &WorkerSlot, reason: &str) {
        let _one = self.changing.lock();
        slot.set_reason(reason);
        slot.connection.store(None);
    }

    fn rebuild(&self) {
        let mut models: BTreeMap<String, ModelEntry> = BTreeMap::new();
        for slot in &self.workers {
            let Some(model) = slot.past.lock().model.clone() else {
                continue;
            };
            let entry = models
                .entry(model.name.clone())
                .or_insert_with(|| ModelEntry {
                    name: model.name,
                    created: model.created,
                    max_seq_len: model.max_seq_len,
                    workers: Vec::new(),
                    rotation: AtomicUsize::new(0),
                });
            // Workers of one name may differ in files while they are being renewed.
            entry.created = entry.created.min(model.created);
            entry.max_seq_len = entry.max_seq_len.min(model.max_seq_len);
            entry.workers.push(Arc::clone(slot));
        }
        let models = models
            .into_iter()
            .map(|(name, entry)| (name, Arc::new(entry)))
            .collect();
        self.models.store(Arc::new(models));
    }
}
