//! One worker's place among those of its model. Owns what its stream said and whether that is believed; what it means for
//! requests is in the state of the [`Placement`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use inflight_kserve::cache_state::{BlockChanges, CacheUpdate};
use inflight_routing::index::{Index, Level};
use parking_lot::Mutex;

use super::Placement;
use super::reports::{CacheUsage, Reports};
use super::trust::{Fault, Trust};
use crate::metrics::FaultLabels;

/// What is known of a worker's cache and load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheReports {
    /// It does not report.
    Silent,
    /// Its reports are heard.
    Reporting,
    /// Its reports are missing or not trusted.
    Faulty(Fault),
}

impl CacheReports {
    /// For `/health`; `None`: nothing is wrong.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Self::Silent | Self::Reporting => None,
            Self::Faulty(fault) => Some(fault.text()),
        }
    }
}

/// What to read next of a worker's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Message,
    /// A stream from the beginning: what was read before had no names.
    Snapshot,
}

/// How the blocks of a worker are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocks {
    Reported,
    Estimated,
}

/// A worker's place among those of its model; it is free again once this is dropped.
#[derive(Debug)]
pub struct Seat {
    placement: Arc<Placement>,
    server: u32,
    state: Mutex<CacheReports>,
    /// Taken before the lock of the placement.
    reports: Mutex<Reports>,
    trust: Mutex<Trust>,
}

impl Seat {
    pub(super) fn new(placement: Arc<Placement>, server: u32) -> Self {
        Self {
            placement,
            server,
            state: Mutex::new(CacheReports::Silent),
            reports: Mutex::default(),
            trust: Mutex::default(),
        }
    }

    /// Its number among those of its model.
    pub(super) fn server(&self) -> u32 {
        self.server
    }

    /// What is known of all workers of its model.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// What is known of the worker.
    pub fn cache_reports(&self) -> CacheReports {
        *self.state.lock()
    }

    /// How full its cache is; `None`: its reports are missing or not trusted.
    pub fn cache_usage(&self) -> Option<CacheUsage> {
        let is_heard = self.cache_reports() == CacheReports::Reporting;
        self.reports.lock().usage().filter(|_| is_heard)
    }

    /// Takes a message of the worker's stream.
    ///
    /// # Errors
    /// [`Fault`]: the stream is not to be believed; the caller [doubts](Self::doubt) the worker.
    pub fn take(&self, update: &CacheUpdate) -> Result<Next, Fault> {
        self.take_as(update, Blocks::Reported)
    }

    /// As [`Seat::take`], of a server that reports its load and reuses blocks, but does not say which it holds: they stay
    /// estimated.
    ///
    /// # Errors
    /// See [`Seat::take`].
    pub fn take_load(&self, update: &CacheUpdate) -> Result<(), Fault> {
        self.take_as(update, Blocks::Estimated).map(|_| ())
    }

    fn take_as(&self, update: &CacheUpdate, blocks: Blocks) -> Result<Next, Fault> {
        let Placement { block_tokens, .. } = &*self.placement;
        let now = self.placement.now();
        let mut reports = self.reports.lock();
        let taken = reports.take(update, now)?;
        if self.trust.lock().is_withheld(now) {
            return Err(Fault::Lies);
        }
        let mut guard = self.placement.state.lock();
        let state = &mut *guard;
        if taken.begins {
            reports.waiting.forget(self.server, &mut state.coming);
        }
        if taken.forgets {
            match blocks {
                Blocks::Reported => state.estimates.remove(self.server),
                Blocks::Estimated => state.estimates.add(self.server, reports.device_blocks()),
            }
            state.index.cleared(self.server);
        }
        let size = match blocks {
            Blocks::Reported => reports.block_tokens(),
            Blocks::Estimated => reports.assumed_block_tokens(),
        };
        if size > 0 && block_tokens.load(Ordering::Relaxed) == 0 {
            block_tokens.store(size, Ordering::Relaxed);
            // Its blocks so far were of a size that nobody else's had.
            if !taken.begins {
                return Ok(Next::Snapshot);
            }
        }
        if taken.begins && size > 0 && size == block_tokens.load(Ordering::Relaxed) {
            reports.begin_naming();
            state.naming.insert(self.server);
        }
        if reports.names_blocks() {
            for (changes, level) in [(&update.device, Level::Device), (&update.host, Level::Host)] {
                let Some(changes) = changes else { continue };
                state.index.removed(self.server, &changes.removed, level);
                store(&mut state.index, self.server, changes, level);
            }
            let coming = &mut state.coming;
            reports.waiting.take(update, self.server, coming)?;
        }
        if let Some(report) = &taken.report {
            state.expectations.reported(self.server, report);
        }
        drop(guard);
        drop(reports);
        self.set(CacheReports::Reporting);
        Ok(Next::Message)
    }

    /// Notes how many tokens of a prompt its answer says were cached, and how many were expected. Returns the fault if its
    /// reports have been wrong too often by now.
    pub(super) fn check(&self, expected: u32, found: u32) -> Option<Fault> {
        let counts = &self.placement.counts;
        counts.expected_tokens.inc_by(expected.into());
        counts.found_tokens.inc_by(found.into());
        let block = self.placement.block_tokens.load(Ordering::Relaxed);
        let now = self.placement.now();
        let fault = self.trust.lock().note(expected, found, block, now)?;
        self.doubt(fault);
        Some(fault)
    }

    /// The stream begins, or begins again.
    pub fn begin(&self) {
        let before = std::mem::take(&mut *self.reports.lock());
        self.forget_names(before);
    }

    /// The worker's reports are missing or not trusted. What it held is unknown from here on.
    pub fn doubt(&self, fault: Fault) {
        if self.cache_reports() != CacheReports::Faulty(fault) {
            let labels = FaultLabels {
                reason: fault.label(),
            };
            self.placement.counts.faults.get_or_create(&labels).inc();
        }
        let before = std::mem::take(&mut *self.reports.lock());
        let capacity = before.device_blocks();
        self.forget_names(before);
        let mut state = self.placement.state.lock();
        state.index.cleared(self.server);
        state.expectations.unreported(self.server);
        state.estimates.add(self.server, capacity);
        drop(state);
        self.set(CacheReports::Faulty(fault));
    }

    /// With the last worker whose blocks are known, their size is open again.
    fn forget_names(&self, mut reports: Reports) {
        if reports.names_blocks() {
            let mut guard = self.placement.state.lock();
            let state = &mut *guard;
            reports.waiting.forget(self.server, &mut state.coming);
            state.naming.remove(&self.server);
            if state.naming.is_empty() {
                self.placement.block_tokens.store(0, Ordering::Relaxed);
            }
        }
    }

    fn set(&self, now: CacheReports) {
        let before = std::mem::replace(&mut *self.state.lock(), now);
        let heard = &self.placement.heard;
        match (
            before == CacheReports::Reporting,
            now == CacheReports::Reporting,
        ) {
            (false, true) => heard.fetch_add(1, Ordering::Relaxed),
            (true, false) => heard.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.set(CacheReports::Silent);
        self.begin();
        let mut state = self.placement.state.lock();
        state.index.cleared(self.server);
        state.expectations.remove(self.server);
        state.estimates.remove(self.server);
        if let Some(taken) = state.taken.get_mut(self.server as usize) {
            *taken = false;
        }
    }
}

/// Stores blocks, of which those that follow one another come one after another.
fn store(index: &mut Index, server: u32, changes: &BlockChanges, level: Level) {
    let stored = &changes.stored;
    let after = |place: usize| changes.after.get(place).copied().filter(|key| *key != 0);
    let mut from = 0;
    for place in 1..=stored.len() {
        let follows = stored.get(place - 1).copied();
        if place < stored.len() && after(place) == follows {
            continue;
        }
        index.stored(server, after(from), &stored[from..place], level);
        from = place;
    }
}
