//! A request that another program sends to a worker which was picked here: a proxy that asks where requests go. Owns that it
//! counts at its worker for as long as it lasts; knows nothing of how it gets there.

use std::sync::Arc;

use crate::placement::Placed;
use crate::slot::WorkerSlot;

/// A request at the worker that was picked for it; it has ended once this is dropped.
#[derive(Debug)]
pub struct Visit {
    slot: Arc<WorkerSlot>,
    /// Why the worker was picked, where its reports are heard.
    placed: Option<Placed>,
}

impl Visit {
    pub(crate) fn new(slot: Arc<WorkerSlot>, placed: Option<Placed>) -> Self {
        slot.peer.enter();
        Self { slot, placed }
    }

    /// The worker's `host:port`, as it was given.
    pub fn worker(&self) -> &Arc<str> {
        &self.slot.address
    }

    /// Its answer has begun.
    pub fn started(&mut self) {
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
