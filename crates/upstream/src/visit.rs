//! A request at the worker that was picked for it. Owns that it counts there for as long as it lasts, and at another one once
//! another program, a proxy that asks where requests go, sent it there instead; knows nothing of how it gets there.

use std::sync::Arc;

use inflight_routing::Choice;

use crate::placement::{CacheQuery, Placed};
use crate::slot::WorkerSlot;

/// A worker that the request goes to where the first one does not take it.
#[derive(Debug)]
pub(crate) struct Next {
    pub(crate) slot: Arc<WorkerSlot>,
    /// What was expected there when the first one was picked.
    pub(crate) expected: Option<Choice>,
}

/// A request at the worker that was picked for it; it has ended once this is dropped.
#[derive(Debug)]
pub struct Visit {
    slot: Arc<WorkerSlot>,
    /// Why the worker was picked, where its reports are heard.
    placed: Option<Placed>,
    others: Vec<Next>,
    /// What it asks of caches, until it has started.
    asked: Option<CacheQuery>,
}

impl Visit {
    /// At the one worker that was picked.
    pub(crate) fn at(slot: Arc<WorkerSlot>, placed: Option<Placed>) -> Self {
        Self::new(slot, placed, Vec::new(), None)
    }

    pub(crate) fn new(
        slot: Arc<WorkerSlot>,
        placed: Option<Placed>,
        others: Vec<Next>,
        asked: Option<CacheQuery>,
    ) -> Self {
        slot.peer.enter();
        Self {
            slot,
            placed,
            others,
            asked,
        }
    }

    /// The worker's `host:port`, as it was given.
    pub fn worker(&self) -> &Arc<str> {
        &self.slot.address
    }

    /// The workers that would be next, the best first.
    pub fn others(&self) -> impl Iterator<Item = &Arc<str>> {
        self.others.iter().map(|other| &other.slot.address)
    }

    /// This worker has it instead: it counts there from now on.
    pub fn moved(&mut self, slot: &Arc<WorkerSlot>) {
        slot.peer.enter();
        let before = std::mem::replace(&mut self.slot, Arc::clone(slot));
        before.peer.leave();
        let (Some(placed), Some(asked)) = (self.placed.take(), self.asked.take()) else {
            return;
        };
        let next = |other: &&Next| Arc::ptr_eq(&other.slot, slot);
        let expected = self.others.iter().find(next);
        let expected = expected.and_then(|other| other.expected);
        let connections = slot.connections();
        let mut seats = connections.iter().filter_map(|one| one.seat());
        let sent = |seat| placed.placement().sent_to(seat, &asked, expected);
        self.placed = seats.find_map(sent);
    }

    /// Its answer has begun.
    pub fn started(&mut self) {
        self.asked = None;
        if let Some(placed) = &mut self.placed {
            placed.started();
        }
    }

    /// Its answer says how many of its prompt's tokens were cached.
    pub fn found_cached(&mut self, tokens: u32) {
        if let Some(placed) = &mut self.placed {
            placed.found_cached(tokens, &self.slot.address);
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.slot.peer.leave();
    }
}
