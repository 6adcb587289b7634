//! A model of the table and its workers. Owns which of them a request of the model goes to; which models there are is the
//! table's.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use inflight_models::adapter::Adapter;
use inflight_models::served::ServedModel;
use inflight_routing::Turns;
use inflight_text::ChatTemplate;

use super::choice::{Criteria, MakeQuery, Server, least_busy};
use crate::connection::Connection;
use crate::phases::{Disaggregate, Phases, is_for_contexts};
use crate::placement::{Placed, Prompts};
use crate::slot::{PastModel, WorkerSlot};
use crate::visit::Visit;

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
    pub(super) has_contexts: bool,
    /// Of all models.
    turns: Arc<Turns>,
}

impl ModelEntry {
    /// A model that a worker serves, with no worker yet.
    pub(super) fn new(model: &PastModel, turns: &Arc<Turns>) -> Self {
        Self {
            name: model.name.clone(),
            created: model.created,
            max_seq_len: model.max_seq_len,
            adapters: BTreeSet::new(),
            workers: Vec::new(),
            has_contexts: false,
            turns: Arc::clone(turns),
        }
    }

    /// Adds a worker that serves it like this. Workers of one name may differ in files while they are being renewed.
    pub(super) fn add(&mut self, slot: &Arc<WorkerSlot>, model: PastModel) {
        self.created = self.created.min(model.created);
        let lengths = [self.max_seq_len, model.max_seq_len];
        self.max_seq_len = lengths.into_iter().flatten().min();
        self.adapters.extend(model.adapters);
        self.has_contexts |= model.is_for_contexts;
        self.workers.push(Arc::clone(slot));
    }

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
    pub(super) fn renders_at_once(&self) -> bool {
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
