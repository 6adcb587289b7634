//! Which worker of a model gets a request, by what their caches hold and what is expected of them. Owns the numbers of
//! a model's workers, what is known of them, and the lock over it; how a choice is made is `inflight_routing`'s, and how
//! workers report is [`follow`]'s.
//!
//! A worker that reports nothing, or whose reports are in doubt, is estimated: it probably holds what was sent to it.
//! As long as none is heard, requests go by their number alone, and a pick costs nothing here. One lock
//! covers everything: a pick holds it for microseconds, a report for its blocks.

mod ask;
pub mod follow;
mod reports;
mod trust;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use inflight_kserve::cache_state::CacheUpdate;
use inflight_routing::choose::{self, Choice, Eligible};
use inflight_routing::estimate::Estimates;
use inflight_routing::expectation::{Expectations, Seconds, Ticket};
use inflight_routing::index::{Held, Index, Level};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::metrics::{FaultLabels, PlacedBy, Placements};

pub use self::ask::Ask;
use self::reports::Reports;
pub use self::trust::Fault;
use self::trust::Trust;

/// Blocks that are known of one model's workers together: some 100 MB at most. A thousand workers of 3,000 blocks fit.
const MOST_BLOCKS: usize = 1 << 20;
/// Workers of one model that have a place.
const MOST_SEATS: usize = 4096;

/// What is known of a worker's cache and load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hearing {
    /// It does not report.
    Untold,
    /// Its reports are heard.
    Heard,
    /// Its reports are not heard, or not believed.
    Faulty(Fault),
}

impl Hearing {
    /// For `/health`; `None`: nothing is wrong.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Self::Untold | Self::Heard => None,
            Self::Faulty(fault) => Some(fault.text()),
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::Untold => 0,
            Self::Heard => 1,
            Self::Faulty(fault) => 2 + fault as u8,
        }
    }

    fn of_code(code: u8) -> Self {
        match code {
            0 => Self::Untold,
            1 => Self::Heard,
            other => Fault::ALL
                .get(usize::from(other - 2))
                .map_or(Self::Untold, |fault| Self::Faulty(*fault)),
        }
    }
}

/// The workers of one model.
#[derive(Debug)]
pub struct Placement {
    state: Mutex<State>,
    /// Workers whose reports are heard.
    heard: AtomicUsize,
    /// Tokens of a block, of the first worker that said so; 0: none has. Others are heard without their blocks.
    block_tokens: AtomicU32,
    epoch: Instant,
    counts: Placements,
}

#[derive(Debug)]
struct State {
    index: Index,
    expectations: Expectations,
    /// What workers that report nothing may hold.
    estimates: Estimates,
    /// Used again by each pick.
    held: Held,
    /// Whether a number is taken.
    taken: Vec<bool>,
}

impl Placement {
    /// None of its workers is known.
    pub fn new(counts: Placements) -> Self {
        Self {
            counts,
            state: Mutex::new(State {
                index: Index::new(MOST_BLOCKS),
                expectations: Expectations::new(rand::random()),
                estimates: Estimates::default(),
                held: Held::default(),
                taken: Vec::new(),
            }),
            heard: AtomicUsize::new(0),
            block_tokens: AtomicU32::new(0),
            epoch: Instant::now(),
        }
    }

    /// A place for a worker that became ready. `None`: there are too many.
    pub fn join(self: &Arc<Self>) -> Option<Arc<Seat>> {
        let mut state = self.state.lock();
        let free = state.taken.iter().position(|taken| !taken);
        let place = free.unwrap_or(state.taken.len());
        if place >= MOST_SEATS {
            return None;
        }
        match free {
            Some(place) => state.taken[place] = true,
            None => state.taken.push(true),
        }
        let server = place as u32;
        state.expectations.add(server);
        state.estimates.add(server, None);
        drop(state);
        Some(Arc::new(Seat {
            placement: Arc::clone(self),
            server,
            hearing: AtomicU8::new(Hearing::Untold.code()),
            reports: Mutex::default(),
            trust: Mutex::default(),
        }))
    }

    /// Tokens of a block, by which requests are named; `None`: no worker's reports are heard, and requests go by their
    /// number.
    pub fn block_tokens(&self) -> Option<u32> {
        let is_heard = self.heard.load(Ordering::Relaxed) > 0;
        is_heard.then(|| self.block_tokens.load(Ordering::Relaxed))
    }

    /// Chooses the seat of a request, and counts it as sent there. `None`: none of them is known.
    pub fn place<'a>(
        &self,
        ask: &Ask,
        seats: impl Iterator<Item = &'a Arc<Seat>> + Clone,
    ) -> Option<Placed> {
        let now = self.now();
        let mut state = self.state.lock();
        let State {
            index,
            expectations,
            estimates,
            held,
            ..
        } = &mut *state;
        index.find(&ask.keys, held);
        let request = choose::Request {
            tokens: ask.tokens,
            block_tokens: self.block_tokens.load(Ordering::Relaxed),
            is_urgent: ask.is_urgent,
        };
        let eligible = seats.clone().map(|seat| Eligible {
            server: seat.server,
            delay: 0.0,
        });
        let choice = choose::choose(&request, eligible, held, expectations, now)?;
        let work = request.work(held.of(choice.server));
        let ticket = expectations.sent(choice.server, &work, now);
        let is_estimated = estimates.is_estimated(choice.server);
        estimates.sent(choice.server, &ask.keys, index);
        drop(state);
        let mut seats = seats;
        let seat = seats.find(|seat| seat.server == choice.server)?;
        let by = match choice.cached_tokens {
            0 => PlacedBy::Load,
            _ => PlacedBy::Cache,
        };
        self.counts.requests.get_or_create(&by.into()).inc();
        Some(Placed {
            seat: Arc::clone(seat),
            ticket,
            choice,
            has_started: false,
            is_checked: ask.is_checked() && !is_estimated,
        })
    }

    fn now(&self) -> Seconds {
        self.epoch.elapsed().as_secs_f64()
    }
}

/// A worker's place among those of its model; it is free again once this is dropped.
#[derive(Debug)]
pub struct Seat {
    placement: Arc<Placement>,
    server: u32,
    hearing: AtomicU8,
    reports: Mutex<Reports>,
    trust: Mutex<Trust>,
}

impl Seat {
    /// What is known of the worker.
    pub fn hearing(&self) -> Hearing {
        Hearing::of_code(self.hearing.load(Ordering::Relaxed))
    }

    /// Takes a message of the worker's stream.
    ///
    /// # Errors
    /// [`Fault`]: the stream is not to be believed, and its worker's blocks are forgotten.
    pub fn take(&self, update: &CacheUpdate) -> Result<(), Fault> {
        let now = self.placement.now();
        let taken = self.reports.lock().take(update, now)?;
        if self.trust.lock().is_withheld(now) {
            return Err(Fault::Lies);
        }
        let mut state = self.placement.state.lock();
        if let Some(shape) = taken.shape {
            let block_tokens = &self.placement.block_tokens;
            if block_tokens.load(Ordering::Relaxed) == 0 && shape.reports_blocks {
                block_tokens.store(shape.tokens_per_block, Ordering::Relaxed);
            }
            let is_same = shape.tokens_per_block == block_tokens.load(Ordering::Relaxed);
            let mut reports = self.reports.lock();
            reports.names_blocks(shape.reports_blocks && is_same);
        }
        if taken.forgets {
            state.estimates.remove(self.server);
            state.index.cleared(self.server);
        }
        if self.reports.lock().has_blocks() {
            for (changes, level) in [(&update.device, Level::Device), (&update.host, Level::Host)] {
                let Some(changes) = changes else { continue };
                state.index.removed(self.server, &changes.removed, level);
                store(&mut state.index, self.server, changes, level);
            }
        }
        if let Some(report) = &taken.report {
            state.expectations.reported(self.server, report);
        }
        drop(state);
        self.set(Hearing::Heard);
        Ok(())
    }

    /// The stream begins, or begins again.
    pub fn begin(&self) {
        *self.reports.lock() = Reports::default();
    }

    /// The worker's reports are not heard or not believed. What it held is unknown from here on.
    pub fn doubt(&self, fault: Fault) {
        if self.hearing() != Hearing::Faulty(fault) {
            let labels = FaultLabels {
                reason: fault.label(),
            };
            self.placement.counts.faults.get_or_create(&labels).inc();
        }
        let [capacity, _] = self.reports.lock().capacity();
        let capacity = usize::try_from(capacity).ok().filter(|blocks| *blocks > 0);
        let mut state = self.placement.state.lock();
        state.index.cleared(self.server);
        state.expectations.unreported(self.server);
        state.estimates.add(self.server, capacity);
        drop(state);
        self.set(Hearing::Faulty(fault));
    }

    fn set(&self, hearing: Hearing) {
        let before = Hearing::of_code(self.hearing.swap(hearing.code(), Ordering::Relaxed));
        let heard = &self.placement.heard;
        match (before == Hearing::Heard, hearing == Hearing::Heard) {
            (false, true) => {
                heard.fetch_add(1, Ordering::Relaxed);
            }
            (true, false) => {
                heard.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.set(Hearing::Untold);
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
fn store(
    index: &mut Index,
    server: u32,
    changes: &inflight_kserve::cache_state::BlockChanges,
    level: Level,
) {
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

/// A request that a worker got, for as long as it has it.
#[derive(Debug)]
pub struct Placed {
    seat: Arc<Seat>,
    ticket: Ticket,
    choice: Choice,
    has_started: bool,
    /// Whether the worker's count of cached tokens says whether its reports are right.
    is_checked: bool,
}

impl Placed {
    /// The seat that it has.
    pub fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    /// Tokens that were expected in the worker's cache.
    pub fn expected_cached(&self) -> u32 {
        self.choice.cached_tokens
    }

    /// How long the worker was expected to take until it begins.
    pub fn expected_wait(&self) -> Duration {
        Duration::try_from_secs_f64(self.choice.wait).unwrap_or_default()
    }

    /// The first output came.
    pub fn started(&mut self) {
        if !std::mem::replace(&mut self.has_started, true) {
            let placement = &self.seat.placement;
            let now = placement.now();
            placement
                .state
                .lock()
                .expectations
                .started(self.ticket, now);
        }
    }

    /// The worker says how many of the prompt's tokens were cached. Returns a fault if its reports have been wrong too
    /// often by now; the caller logs it.
    pub fn cached(&mut self, tokens: u32) -> Option<Fault> {
        if !std::mem::take(&mut self.is_checked) || self.seat.hearing() != Hearing::Heard {
            return None;
        }
        let placement = &self.seat.placement;
        let expected = self.choice.cached_tokens;
        placement.counts.expected_tokens.inc_by(expected.into());
        placement.counts.found_tokens.inc_by(tokens.into());
        let block = placement.block_tokens.load(Ordering::Relaxed);
        let now = placement.now();
        let fault = self.seat.trust.lock().note(expected, tokens, block, now)?;
        self.seat.doubt(fault);
        Some(fault)
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        let mut state = self.seat.placement.state.lock();
        state.expectations.ended(self.ticket);
    }
}

#[cfg(test)]
mod tests;
