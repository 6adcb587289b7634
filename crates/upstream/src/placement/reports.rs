//! The messages of a worker's stream, checked before anything is believed. Pure: a message in, what it says out.

use inflight_kserve::cache_state::{CacheShape, CacheUpdate, WorkerLoad};
use inflight_routing::expectation::{Report, Seconds};

use super::trust::Fault;
use super::waiting::Waiting;

/// Blocks of a level beyond what the worker says it can hold that are still believed: what is stored and what is
/// removed of one iteration may come in two messages.
const SLACK: u64 = 1024;

/// What was read of a stream so far.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// The number of the last message.
    sequence: u64,
    shape: Option<CacheShape>,
    /// Blocks that were stored and not removed, by level.
    held: [u64; 2],
    last: Option<WorkerLoad>,
    names_blocks: bool,
    /// Of prompts whose blocks are named as those of the others.
    pub(super) waiting: Waiting,
}

/// How full a worker's KV cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheUsage {
    /// Blocks that it can hold.
    pub blocks: u64,
    /// Those of them that requests hold. What is only kept for later prompts does not count.
    pub used: u64,
}

/// What a message says, apart from its blocks.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// Everything that was said of blocks before is to be forgotten.
    pub(super) forgets: bool,
    /// A snapshot begins.
    pub(super) begins: bool,
    pub(super) report: Option<Report>,
}

impl Reports {
    /// Tokens of the blocks that it reports; 0: it reports none.
    pub(super) fn block_tokens(&self) -> u32 {
        let shape = self.shape.unwrap_or_default();
        if shape.reports_blocks {
            shape.tokens_per_block
        } else {
            0
        }
    }

    /// Tokens of the blocks that it has, whether it reports them or not; 0: it does not say.
    pub(super) fn assumed_block_tokens(&self) -> u32 {
        self.shape.unwrap_or_default().tokens_per_block
    }

    /// Blocks that the device can hold; `None`: it does not say.
    pub(super) fn device_blocks(&self) -> Option<usize> {
        let [blocks, _] = self.capacity();
        usize::try_from(blocks).ok().filter(|blocks| *blocks > 0)
    }

    /// Whether its blocks are named as those of the others.
    pub(super) fn names_blocks(&self) -> bool {
        self.names_blocks
    }

    /// Its blocks are named as those of the others from now on.
    pub(super) fn begin_naming(&mut self) {
        self.names_blocks = true;
    }

    /// Takes the next message.
    ///
    /// # Errors
    /// [`Fault`]: no worker sends this.
    pub(super) fn take(&mut self, update: &CacheUpdate, now: Seconds) -> Result<Applied, Fault> {
        if update.sequence != self.sequence + 1 {
            return Err(Fault::Gap);
        }
        self.sequence = update.sequence;
        let forgets = update.snapshot_begin || update.cleared;
        if forgets {
            self.held = [0; 2];
        }
        if update.snapshot_begin && update.shape.is_some() {
            self.shape = update.shape;
        }
        if self.shape.is_none() {
            return Err(Fault::Impossible);
        }
        let capacity = self.capacity();
        for ((held, changes), capacity) in self
            .held
            .iter_mut()
            .zip([&update.device, &update.host])
            .zip(capacity)
        {
            let Some(changes) = changes else { continue };
            if changes.after.len() != changes.stored.len() {
                return Err(Fault::Impossible);
            }
            *held = held.saturating_add(changes.stored.len() as u64);
            let removed = changes.removed.len() as u64;
            *held = held.checked_sub(removed).ok_or(Fault::Impossible)?;
            if capacity > 0 && *held > capacity.saturating_add(SLACK) {
                return Err(Fault::Impossible);
            }
        }
        let report = match update.load {
            Some(load) => Some(self.report(&load, now)?),
            None => None,
        };
        Ok(Applied {
            forgets,
            begins: update.snapshot_begin,
            report,
        })
    }

    /// Blocks of each level that the worker says it can hold; 0: it does not say.
    pub(super) fn capacity(&self) -> [u64; 2] {
        let shape = self.shape.unwrap_or_default();
        [shape.device_blocks, shape.host_blocks]
    }

    /// What of the memory that attention reads requests hold; `None`: the worker has not said.
    pub(super) fn usage(&self) -> Option<CacheUsage> {
        let load = self.last?;
        let blocks = load.total_blocks;
        (blocks > 0).then(|| CacheUsage {
            blocks,
            used: blocks.saturating_sub(load.free_blocks),
        })
    }

    /// Whether new blocks push others out.
    fn is_full(&self) -> bool {
        let [capacity, _] = self.capacity();
        capacity > 0 && self.held[0] >= capacity - capacity / 20
    }

    fn report(&mut self, load: &WorkerLoad, now: Seconds) -> Result<Report, Fault> {
        let before = self.last.replace(*load).unwrap_or(*load);
        let computed_tokens = load
            .prefill_tokens_total
            .checked_sub(before.prefill_tokens_total)
            .ok_or(Fault::Impossible)?;
        let computed_seconds = load.prefill_seconds_total - before.prefill_seconds_total;
        let is_time = |seconds: f64| seconds.is_finite() && seconds >= 0.0;
        if !is_time(computed_seconds) || !is_time(load.computing_seconds) {
            return Err(Fault::Impossible);
        }
        Ok(Report {
            at: now,
            queued_tokens: load.queued_prompt_tokens,
            urgent_tokens: 0,
            working_seconds: load.computing_seconds,
            requests: load.running_requests.saturating_add(load.queued_requests),
            is_full: self.is_full(),
            short_first: self.shape.unwrap_or_default().short_prompts_first,
            computed_tokens,
            computed_seconds,
        })
    }
}
