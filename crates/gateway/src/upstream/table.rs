//! The table of models: model → workers. Owns which worker a request goes to; knows nothing of how
//! connections are made or of what requests say.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use inflight_kserve::assets;
use inflight_text::TextModel;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::connection::Connection;
use super::peer::Peer;
use super::pool::Pool;
use super::pulse::Pulse;
use crate::model::adapter::{Adapter, task_of};
use crate::model::served::ServedModel;

/// Requests that are being prepared for a server when it is taken out have so long to be sent.
const PREPARING: Duration = Duration::from_secs(1);
/// How often a server that was taken out is asked whether its last request has ended.
const IDLE_POLL: Duration = Duration::from_millis(50);

/// One configured server, connected or not.
#[derive(Debug)]
pub(crate) struct WorkerSlot {
    /// `host:port` as given.
    pub address: Arc<str>,
    /// Whether it still answers, while it is connected.
    pub pulse: Arc<Pulse>,
    /// For KServe's clients.
    pub peer: Peer,
    /// One for each model it serves: an Inflight worker has one model, a plain Triton any number.
    connections: ArcSwap<Vec<Arc<Connection>>>,
    /// The models it last served, and why it is not ready now.
    past: Mutex<Past>,
    /// Set once it is no longer configured.
    retired: watch::Sender<bool>,
}

#[derive(Clone, Debug)]
struct PastModel {
    name: String,
    created: i64,
    max_seq_len: Option<u32>,
    /// Names of its LoRA adapters.
    adapters: Vec<String>,
    /// Kept while the worker is away, so that its return costs no loading.
    _text: Option<Arc<TextModel>>,
}

#[derive(Debug, Default)]
struct Past {
    models: Vec<PastModel>,
    /// Models that it has and that cannot be served, and why; `None`: it has not said what it has.
    refused: Option<BTreeMap<String, String>>,
    reason: String,
}

impl WorkerSlot {
    fn new(address: &str) -> Self {
        let past = Past {
            models: Vec::new(),
            refused: None,
            reason: "not connected yet".to_owned(),
        };
        Self {
            address: address.into(),
            pulse: Arc::default(),
            peer: Peer::default(),
            connections: ArcSwap::default(),
            past: Mutex::new(past),
            retired: watch::Sender::new(false),
        }
    }

    /// Waits until it is no longer configured and its last request has ended.
    pub(crate) async fn released(&self) {
        let mut retired = self.retired.subscribe();
        // The sender lives as long as `self`.
        let _ = retired.wait_for(|retired| *retired).await;
        tokio::time::sleep(PREPARING).await;
        while self.active() > 0 {
            tokio::time::sleep(IDLE_POLL).await;
        }
    }

    /// Whether it is still configured, and only finishes its requests otherwise.
    fn is_retired(&self) -> bool {
        *self.retired.borrow()
    }

    /// The connections of all its models; none when it is not ready.
    pub(crate) fn connections(&self) -> Arc<Vec<Arc<Connection>>> {
        self.connections.load_full()
    }

    /// Whether any of its models can take requests.
    pub(crate) fn is_ready(&self) -> bool {
        !self.connections.load().is_empty() && !self.pulse.is_silent() && !self.is_retired()
    }

    /// Watches the server until it counts as lost, and says when it stops answering and begins again; see
    /// [`Pulse::watch`]. Returns why it is lost.
    pub(crate) async fn watch_pulse<P: Future<Output = bool>>(
        &self,
        limit: Duration,
        probe: impl Fn() -> P,
    ) -> String {
        let changed = |silent| {
            if silent {
                self.set_reason("the server has stopped answering");
                tracing::warn!(worker = %self.address, "worker silent");
            } else {
                self.set_reason("");
                tracing::info!(worker = %self.address, "worker answers again");
            }
        };
        self.pulse.watch(limit, probe, changed).await;
        "the server has not answered for too long".to_owned()
    }

    /// Whether KServe's calls may be sent to it.
    pub(crate) fn takes_calls(&self) -> bool {
        self.peer.is_up() && !self.pulse.is_silent() && !self.is_retired()
    }

    /// Ends every request that it has with an error.
    pub(crate) fn fail_all(&self, text: &str) {
        for connection in self.connections.load().iter() {
            connection.fail_all(text);
        }
    }

    /// Requests that wait for its output.
    pub(crate) fn active(&self) -> usize {
        let connections = self.connections.load();
        let of_models = connections.iter().map(|connection| connection.active());
        of_models.sum::<usize>() + self.peer.active()
    }

    /// The connection of this model, when ready.
    fn connection(&self, model: &str) -> Option<Arc<Connection>> {
        if self.pulse.is_silent() {
            return None;
        }
        let connections = self.connections.load();
        let serves = |connection: &&Arc<Connection>| {
            connection.served.description.served_model_name == model
        };
        connections.iter().find(serves).cloned()
    }

    /// Why the worker is not ready; empty when it is.
    pub(crate) fn reason(&self) -> String {
        if self.is_retired() {
            return "taken out; it finishes its requests".to_owned();
        }
        self.past.lock().reason.clone()
    }

    /// Remembers which of a server's models cannot be served, and why.
    pub(crate) fn set_refused(&self, refused: BTreeMap<String, String>) {
        self.past.lock().refused = Some(refused);
    }

    /// Remembers why the worker is not ready.
    pub(crate) fn set_reason(&self, reason: &str) {
        self.past.lock().reason = reason.to_owned();
    }
}

/// A model and the workers that serve it, or did when last seen.
#[derive(Debug)]
pub(crate) struct ModelEntry {
    pub name: String,
    /// Seconds since the epoch at which the model was loaded.
    pub created: i64,
    /// Prompt plus generated tokens that fit a request on any of its workers, where one says it.
    pub max_seq_len: Option<u32>,
    /// Names of the LoRA adapters that any of its workers has.
    pub adapters: BTreeSet<String>,
    workers: Vec<Arc<WorkerSlot>>,
    /// Numbers the picks, of all models.
    turns: Arc<AtomicU64>,
}

impl ModelEntry {
    /// What the next request is prepared for: the model as the worker serves it that [`ModelEntry::pick`]
    /// would choose now. Picks nothing: preparing a long prompt takes a while, and the worker is chosen by
    /// the load after it.
    pub(crate) fn next_served(&self) -> Option<Arc<ServedModel>> {
        let connection = self.least_loaded(|_| true)?;
        Some(Arc::clone(&connection.served))
    }

    /// [`ModelEntry::next_served`] of the workers that have this LoRA adapter, which it also looks up.
    pub(crate) fn next_with(&self, adapter: &str) -> Option<(Arc<ServedModel>, Adapter)> {
        let connection =
            self.least_loaded(|connection| task_of(&connection.served, adapter).is_some())?;
        let served = Arc::clone(&connection.served);
        let adapter = Adapter {
            task_id: task_of(&served, adapter)?,
            name: adapter.to_owned(),
        };
        Some((served, adapter))
    }

    /// Picks the worker of a request: the ready connection with the fewest active requests, and among
    /// equals the one whose last turn is longest ago. Only workers with the same files as
    /// `content_hash` count, because a prompt is tokenized for one tokenizer, none of the `tried`
    /// addresses, and those with the `adapter` alone.
    pub(crate) fn pick(
        &self,
        content_hash: &str,
        tried: &[Arc<str>],
        adapter: Option<&Adapter>,
    ) -> Option<Arc<Connection>> {
        let connection = self.least_loaded(|connection| {
            connection.served.description.content_hash == content_hash
                && !tried.contains(&connection.address)
                && adapter.is_none_or(|adapter| adapter.is_of(&connection.served))
        })?;
        // The first number is 1: a connection that never had a turn is before all others.
        let turn = self.turns.fetch_add(1, Ordering::Relaxed) + 1;
        connection.last_turn.store(turn, Ordering::Relaxed);
        Some(connection)
    }

    fn least_loaded(&self, fits: impl Fn(&Connection) -> bool) -> Option<Arc<Connection>> {
        let ready = self.workers.iter();
        let ready = ready.filter_map(|slot| Some((slot, slot.connection(&self.name)?)));
        let least =
            ready
                .filter(|(_, connection)| fits(connection))
                .min_by_key(|(slot, connection)| {
                    let last_turn = connection.last_turn.load(Ordering::Relaxed);
                    (connection.active() + slot.peer.active(), last_turn)
                });
        least.map(|(_, connection)| connection)
    }
}

/// Why no model was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoModel {
    /// Some worker has never said what it serves: the name may yet appear.
    NotYet,
    /// Every worker has said what it serves, and none serves this.
    Unknown,
    /// A server has it, and it cannot be served; why not.
    Refused(String),
}

/// Why no server takes a call of KServe's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoPeer {
    /// Some server has never said what it serves: the name may yet appear.
    NotYet,
    /// No server has the model.
    Unknown,
    /// Several models go by the name; these are names of one each.
    Ambiguous(Vec<String>),
    /// All that have it are away, or have been tried.
    NoneReady,
}

/// A server that was picked for a call, and the name that the model has there.
#[derive(Clone, Debug)]
pub(crate) struct Picked {
    pub slot: Arc<WorkerSlot>,
    pub pool: Arc<Pool>,
    pub model: String,
}

/// All workers and the models they serve.
#[derive(Debug)]
pub(crate) struct Table {
    /// Those that are configured, and behind them those that were and still have requests.
    workers: ArcSwap<Vec<Arc<WorkerSlot>>>,
    models: ArcSwap<BTreeMap<String, Arc<ModelEntry>>>,
    turns: Arc<AtomicU64>,
    /// One change at a time.
    changing: Mutex<()>,
}

impl Table {
    /// A table over these worker addresses, none connected.
    pub(crate) fn new(addresses: &[String]) -> Self {
        let table = Self {
            workers: ArcSwap::default(),
            models: ArcSwap::default(),
            turns: Arc::default(),
            changing: Mutex::new(()),
        };
        table.configure(addresses);
        table
    }

    /// Every configured worker, and those that were and still have requests.
    pub(crate) fn workers(&self) -> Arc<Vec<Arc<WorkerSlot>>> {
        self.workers.load_full()
    }

    /// Makes these addresses the configured ones; returns the slots of those that are new, for
    /// `connect`'s loops. One that is missing gets no new requests, and stays until [`Table::remove`].
    pub(crate) fn configure(&self, addresses: &[String]) -> Vec<Arc<WorkerSlot>> {
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
        for slot in leaving {
            slot.retired.send_replace(true);
            workers.push(slot);
        }
        self.workers.store(Arc::new(workers));
        self.rebuild();
        added
    }

    /// Forgets a worker that was released; whatever it still has ends with an error.
    pub(crate) fn remove(&self, slot: &Arc<WorkerSlot>) {
        let _one = self.changing.lock();
        slot.fail_all("the worker was taken out");
        slot.connections.store(Arc::default());
        let rest = self.workers.load();
        let rest = rest.iter().filter(|other| !Arc::ptr_eq(other, slot));
        self.workers.store(Arc::new(rest.cloned().collect()));
    }

    /// Every known model, by name.
    pub(crate) fn models(&self) -> Arc<BTreeMap<String, Arc<ModelEntry>>> {
        self.models.load_full()
    }

    /// The model of this name.
    ///
    /// # Errors
    /// [`NoModel`]: whether it may yet appear.
    pub(crate) fn find(&self, model: &str) -> Result<Arc<ModelEntry>, NoModel> {
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

    /// Picks the server of a call for this model: the one with the fewest open requests, and among equals the one
    /// whose last turn is longest ago; none of the `tried` addresses. `OWN:MODEL` is the model at workers whose
    /// own model is called `OWN`, and at others the model of that name. Needs an empty version, or one that there is.
    ///
    /// # Errors
    /// [`NoPeer`].
    pub(crate) fn pick_peer(
        &self,
        name: &str,
        version: &str,
        tried: &[Arc<str>],
    ) -> Result<Picked, NoPeer> {
        let mut owners: Vec<Option<String>> = Vec::new();
        let mut is_heard = false;
        let mut is_complete = true;
        let mut fitting = Vec::new();
        let workers = self.workers.load();
        let configured = workers.iter().filter(|slot| !slot.is_retired());
        for slot in configured {
            let Some(served) = slot.peer.served() else {
                is_complete = false;
                continue;
            };
            is_heard = true;
            let qualified = served.of.as_deref().and_then(|of| {
                let rest = name.strip_prefix(of)?.strip_prefix(':')?;
                served.has(rest, version).then_some(rest)
            });
            let model = if served.has(name, version) {
                if !owners.contains(&served.of) {
                    owners.push(served.of.clone());
                }
                name
            } else if let Some(model) = qualified {
                model
            } else {
                continue;
            };
            fitting.push((slot, served.pool.clone(), model.to_owned()));
        }
        if owners.len() > 1 {
            let names = owners
                .into_iter()
                .flatten()
                .map(|of| format!("{of}:{name}"));
            return Err(NoPeer::Ambiguous(names.collect()));
        }
        if fitting.is_empty() {
            return Err(if is_heard && is_complete {
                NoPeer::Unknown
            } else {
                NoPeer::NotYet
            });
        }
        let ready = fitting
            .into_iter()
            .filter(|(slot, ..)| slot.takes_calls() && !tried.contains(&slot.address));
        let least = ready.min_by_key(|(slot, ..)| {
            let last_turn = slot.peer.last_turn.load(Ordering::Relaxed);
            (slot.active(), last_turn)
        });
        let (slot, pool, model) = least.ok_or(NoPeer::NoneReady)?;
        let turn = self.turns.fetch_add(1, Ordering::Relaxed) + 1;
        slot.peer.last_turn.store(turn, Ordering::Relaxed);
        let slot = Arc::clone(slot);
        Ok(Picked { slot, pool, model })
    }

    /// Whether any worker is ready.
    pub(crate) fn ready(&self) -> bool {
        self.workers.load().iter().any(|slot| slot.is_ready())
    }

    /// A server became ready, with a connection for each of its models.
    pub(crate) fn set_ready(&self, slot: &WorkerSlot, connections: Vec<Arc<Connection>>) {
        let _one = self.changing.lock();
        let models = connections.iter().map(|connection| {
            let description = &connection.served.description;
            PastModel {
                name: description.served_model_name.clone(),
                created: description.created_unix_seconds,
                max_seq_len: Some(description.max_seq_len).filter(|length| *length > 0),
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

    /// A server was lost; its models stay known, so that clients get 503 and not 404.
    pub(crate) fn set_lost(&self, slot: &WorkerSlot, reason: &str) {
        let _one = self.changing.lock();
        slot.set_reason(reason);
        slot.peer.set_down();
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
                        turns: Arc::clone(&self.turns),
                    });
                // Workers of one name may differ in files while they are being renewed.
                entry.created = entry.created.min(model.created);
                let lengths = [entry.max_seq_len, model.max_seq_len];
                entry.max_seq_len = lengths.into_iter().flatten().min();
                entry.adapters.extend(model.adapters);
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
mod tests {
    use inflight_kserve::assets::ModelDescription;
    use inflight_testkit::model::byte_model_files;
    use inflight_text::ModelFiles;

    use super::*;
    use crate::model::served::Protocol;
    use crate::upstream::connection::{NotSent, Transport};
    use crate::upstream::prompt_request::PromptRequest;
    use crate::upstream::registry::Handle;

    #[derive(Debug)]
    struct NoTransport;

    impl Transport for NoTransport {
        fn send(&self, _: Handle, _: &PromptRequest<'_>, _: u32) -> Result<(), NotSent> {
            Ok(())
        }
        fn stop(&self, _: Handle) {}
        fn close(&self) {}
    }

    fn connection(slot: &WorkerSlot, model: &str, hash: &str) -> Arc<Connection> {
        let files: ModelFiles = byte_model_files()
            .into_iter()
            .map(|(name, data)| (name, data.to_vec()))
            .collect();
        let description = ModelDescription {
            served_model_name: model.to_owned(),
            content_hash: hash.to_owned(),
            ..ModelDescription::default()
        };
        let text = Arc::new(TextModel::load(&files).unwrap());
        let served = Arc::new(ServedModel {
            description,
            text: Some(text),
            template: None,
            protocol: Protocol::StepBatching,
        });
        let address = Arc::clone(&slot.address);
        Arc::new(Connection::new(
            address,
            served,
            Arc::clone(&slot.pulse),
            Box::new(NoTransport),
            Arc::default(),
        ))
    }

    fn table() -> Table {
        Table::new(&["a:1".to_owned(), "b:1".to_owned(), "c:1".to_owned()])
    }

    fn ready(table: &Table, index: usize, model: &str, hash: &str) -> Arc<Connection> {
        let slot = Arc::clone(&table.workers()[index]);
        let connection = connection(&slot, model, hash);
        table.set_ready(&slot, vec![Arc::clone(&connection)]);
        connection
    }

    #[test]
    fn a_name_is_unknown_only_once_every_worker_has_spoken() {
        let table = table();
        assert_eq!(table.find("m").unwrap_err(), NoModel::NotYet);
        ready(&table, 0, "m", "h");
        ready(&table, 1, "m", "h");
        assert!(table.find("m").is_ok());
        assert_eq!(table.find("other").unwrap_err(), NoModel::NotYet);
        ready(&table, 2, "n", "h");
        assert_eq!(table.find("other").unwrap_err(), NoModel::Unknown);
    }

    #[test]
    fn ties_take_turns_and_the_least_loaded_wins() {
        let table = table();
        let connections: Vec<_> = (0..3).map(|index| ready(&table, index, "m", "h")).collect();
        let entry = table.find("m").unwrap();
        let pick = || entry.pick("h", &[], None).unwrap().address.to_string();
        // Asking what to prepare for takes no turn.
        let prepare_and_pick = || entry.next_served().map(|_| pick()).unwrap();
        let turns: Vec<_> = (0..6).map(|_| prepare_and_pick()).collect();
        assert_eq!(turns, ["a:1", "b:1", "c:1", "a:1", "b:1", "c:1"]);
        for busy in [0, 2] {
            connections[busy].open(Arc::default(), 0, 1, 0, 1).unwrap();
        }
        assert!((0..4).all(|_| pick() == "b:1"));
        let elsewhere = entry.pick("h", &["b:1".into()], None).unwrap();
        assert_eq!(&*elsewhere.address, "a:1");
        let tried = ["a:1", "b:1", "c:1"].map(Arc::from);
        assert!(entry.pick("h", &tried, None).is_none());
    }

    #[tokio::test]
    async fn a_worker_that_is_taken_out_keeps_its_requests_and_gets_no_more() {
        let table = table();
        let old = ready(&table, 0, "m", "h");
        ready(&table, 1, "n", "h");
        let handle = old.open(Arc::default(), 0, 1, 0, 1).unwrap();
        let slot = Arc::clone(&table.workers()[0]);
        let added = table.configure(&["b:1".to_owned(), "d:1".to_owned(), "d:1".to_owned()]);
        let shown = |slots: &[Arc<WorkerSlot>]| -> Vec<String> {
            slots.iter().map(|slot| slot.address.to_string()).collect()
        };
        assert_eq!(shown(&added), ["d:1"]);
        assert_eq!(shown(&table.workers()), ["b:1", "d:1", "a:1", "c:1"]);
        assert!(!slot.is_ready() && slot.reason().starts_with("taken out"));
        assert_eq!(table.find("m").unwrap_err(), NoModel::NotYet);
        assert!(table.find("n").is_ok());
        // Its model is only another worker's again.
        ready(&table, 0, "m", "h");
        assert_eq!(
            &*table
                .find("m")
                .unwrap()
                .pick("h", &[], None)
                .unwrap()
                .address,
            "b:1"
        );
        let soon = PREPARING + Duration::from_millis(120);
        let released = tokio::time::timeout(soon, slot.released());
        assert!(released.await.is_err(), "it has a request");
        let late = old
            .open(Arc::default(), 0, 1, 0, 1)
            .expect("one may be on its way");
        old.cancel(handle);
        old.cancel(late);
        slot.released().await;
        table.remove(&slot);
        assert!(old.open(Arc::default(), 0, 1, 0, 1).is_err());
        assert_eq!(shown(&table.workers()), ["b:1", "d:1", "c:1"]);
        // Put in again, it is another.
        assert_eq!(shown(&table.configure(&["a:1".to_owned()])), ["a:1"]);
        table.configure(&[]);
        assert_eq!(table.find("x").unwrap_err(), NoModel::NotYet);
    }

    #[test]
    fn a_lost_worker_is_passed_over_and_its_model_stays_known() {
        let table = table();
        ready(&table, 0, "m", "old");
        ready(&table, 1, "m", "new");
        let entry = table.find("m").unwrap();
        let pick = |hash| {
            entry
                .pick(hash, &[], None)
                .map(|connection| connection.address.to_string())
        };
        assert_eq!(
            (0..3).filter_map(|_| pick("new")).collect::<Vec<_>>(),
            ["b:1"; 3]
        );
        table.set_lost(&table.workers()[1], "gone");
        assert_eq!(pick("new"), None);
        assert_eq!(pick("old").as_deref(), Some("a:1"));
        table.set_lost(&table.workers()[0], "gone");
        assert!(
            table
                .find("m")
                .is_ok_and(|entry| entry.next_served().is_none())
        );
        assert!(!table.ready());
        assert_eq!(table.workers()[0].reason(), "gone");
    }
}
