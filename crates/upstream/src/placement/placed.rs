//! A request at the worker that was chosen for it. Owns that it counts there until it ends, and that its answer is compared
//! with what was expected.

use std::sync::Arc;

use inflight_routing::choose::Choice;
use inflight_routing::expectation::{Seconds, Ticket};

use super::Placement;
use super::seat::{CacheReports, Seat};
use super::trust::Fault;

/// A request that a worker got, for as long as it has it.
#[derive(Debug)]
pub struct Placed {
    seat: Arc<Seat>,
    ticket: Ticket,
    /// Blocks that the worker will hold.
    coming: Arc<[u64]>,
    choice: Choice,
    has_started: bool,
    /// Whether the worker's count of cached tokens says whether its reports are right.
    is_checked: bool,
    /// When it was sent here from another worker.
    sent: Option<Seconds>,
}

impl Placed {
    pub(super) fn new(
        seat: Arc<Seat>,
        ticket: Ticket,
        coming: Arc<[u64]>,
        choice: Choice,
        is_checked: bool,
        sent: Option<Seconds>,
    ) -> Self {
        Self {
            seat,
            ticket,
            coming,
            choice,
            has_started: false,
            is_checked,
            sent,
        }
    }

    /// What is known of all workers of its model.
    pub(crate) fn placement(&self) -> &Placement {
        self.seat.placement()
    }

    /// The seat that it has.
    #[cfg(test)]
    pub(super) fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    /// Whether its answer will say whether the worker's reports are right.
    #[cfg(test)]
    pub(super) fn is_checked(&self) -> bool {
        self.is_checked
    }

    /// Tokens that were expected in the worker's cache.
    #[cfg(test)]
    pub(crate) fn expected_cached(&self) -> u32 {
        self.choice.cached_tokens
    }

    /// The first output came.
    pub fn started(&mut self) {
        if !std::mem::replace(&mut self.has_started, true) {
            let placement = self.seat.placement();
            let now = placement.now();
            let mut state = placement.state.lock();
            state.expectations.started(self.ticket, now);
            if let Some(since) = self.sent {
                state.hand_overs.learn(&self.choice, now - since);
            }
        }
    }

    /// The worker says how many of the prompt's tokens were cached. The log says if its reports have been wrong too often by
    /// now.
    pub fn found_cached(&mut self, tokens: u32, worker: &str) {
        if let Some(fault) = self.cached(tokens) {
            tracing::warn!(worker, "worker's cache unknown: {}", fault.text());
        }
    }

    /// Returns a fault if its reports have been wrong too often by now.
    pub(super) fn cached(&mut self, tokens: u32) -> Option<Fault> {
        if !std::mem::take(&mut self.is_checked)
            || self.seat.cache_reports() != CacheReports::Reporting
        {
            return None;
        }
        self.seat.check(self.choice.cached_tokens, tokens)
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        let mut state = self.seat.placement().state.lock();
        state.expectations.ended(self.ticket);
        state.coming.ended(self.seat.server(), &self.coming);
    }
}
