//! Which worker of a model gets a request, by what their caches hold and what is expected of them. Owns the numbers of
//! a model's workers, what is known of them, and the lock over it; how a choice is made is `inflight_routing`'s, and how
//! workers report is [`follow`]'s.
//!
//! A worker that reports nothing, or whose reports are in doubt, is estimated: it probably holds what was sent to it.
//! As long as none is heard, requests go by their number alone, and a pick costs nothing here. One lock covers all
//! that is known: a pick holds it for microseconds, a report for its blocks.

mod ask;
pub mod follow;
mod placed;
mod reports;
mod seat;
mod trust;
mod waiting;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use inflight_routing::choose::{self, Choice, Eligible};
use inflight_routing::coming::Coming;
use inflight_routing::estimate::Estimates;
use inflight_routing::expectation::{Expectations, Seconds, Ticket, Work};
use inflight_routing::index::{Held, Index};
use inflight_routing::split::{self, HandOvers};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

pub use self::ask::{BlockKeys, CacheQuery, FIRST_LEVEL, Prompts};
pub use self::placed::Placed;
pub use self::reports::CacheUsage;
pub use self::seat::{CacheReports, Next, Seat};
pub use self::trust::Fault;
use crate::metrics::{PlacedBy, Placements};

/// Blocks that are known of one model's workers together: some 100 MB at most. A thousand workers of 3,000 blocks fit.
const MOST_BLOCKS: usize = 1 << 20;
/// Workers of one model that have a place.
const MOST_SEATS: usize = 4096;

/// The workers of one model.
#[derive(Debug)]
pub struct Placement {
    state: Mutex<State>,
    /// Workers whose reports are heard.
    heard: AtomicUsize,
    /// Tokens of a block, of the first worker that said so; 0: none has. Those with blocks of another size are heard
    /// without them.
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
    hand_overs: HandOvers,
    /// What workers that report will hold: prompts that were sent to them, and those that they say wait.
    coming: Coming,
    /// Used again by each pick.
    held: Held,
    /// Whether a number is taken.
    taken: Vec<bool>,
    /// Workers whose blocks are known.
    naming: BTreeSet<u32>,
}

impl State {
    /// Counts a request as sent to a worker. Returns which blocks come there with it.
    fn sent(
        &mut self,
        server: u32,
        ask: &CacheQuery,
        work: &Work,
        now: Seconds,
    ) -> (Ticket, Arc<[u64]>) {
        let ticket = self.expectations.sent(server, work, now);
        self.estimates.sent(server, &ask.keys, &mut self.index);
        if !self.naming.contains(&server) {
            return (ticket, Arc::default());
        }
        self.coming.sent(server, &ask.keys);
        (ticket, Arc::clone(&ask.keys))
    }
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
                hand_overs: HandOvers::default(),
                coming: Coming::default(),
                held: Held::default(),
                taken: Vec::new(),
                naming: BTreeSet::new(),
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
        Some(Arc::new(Seat::new(Arc::clone(self), server)))
    }

    /// Tokens of a block, by which requests are named; `None`: no worker's reports are heard, and requests go by their
    /// number.
    pub fn block_tokens(&self) -> Option<u32> {
        let is_heard = self.heard.load(Ordering::Relaxed) > 0;
        is_heard.then(|| self.block_tokens.load(Ordering::Relaxed))
    }

    /// Chooses one of the seats for a request, and counts it as sent there. Returns which of them it is. `None`: none of
    /// them is known.
    pub fn assign<'a>(
        &self,
        ask: &CacheQuery,
        seats: impl Iterator<Item = &'a Arc<Seat>> + Clone,
    ) -> Option<(usize, Placed)> {
        let (mut state, request, now) = self.look_up(ask);
        let (held, expectations) = (&state.held, &state.expectations);
        let choice = choose::choose(&request, eligible(seats.clone()), held, expectations, now)?;
        let work = request.work(held.of(choice.server));
        let (ticket, coming) = state.sent(choice.server, ask, &work, now);
        let is_estimated = state.estimates.is_estimated(choice.server);
        drop(state);
        let mut seats = seats.enumerate();
        let (place, seat) = seats.find(|(_, seat)| seat.server() == choice.server)?;
        let by = match choice.cached_tokens {
            0 => PlacedBy::Load,
            _ => PlacedBy::Cache,
        };
        self.counts.requests.get_or_create(&by.into()).inc();
        let is_checked = ask.is_checked() && !is_estimated;
        let sent = ask.is_transferred.then_some(now);
        let seat = Arc::clone(seat);
        let placed = Placed::new(seat, ticket, coming, choice, is_checked, sent);
        Some((place, placed))
    }

    /// The seats that would be chosen for a request, at most so many, the best first: which of them, and what is expected.
    /// Sends nothing.
    pub(crate) fn rank(
        &self,
        ask: &CacheQuery,
        seats: &[Option<Arc<Seat>>],
        most: usize,
    ) -> Vec<(usize, Choice)> {
        let (state, request, now) = self.look_up(ask);
        let (held, expectations) = (&state.held, &state.expectations);
        let own = |seat: &&Arc<Seat>| std::ptr::eq(seat.placement(), self);
        let mut rest: Vec<(usize, &Arc<Seat>)> = seats
            .iter()
            .enumerate()
            .filter_map(|(place, seat)| Some((place, seat.as_ref().filter(own)?)))
            .collect();
        let mut ranked = Vec::new();
        while ranked.len() < most {
            let left = rest.iter().map(|(_, seat)| *seat);
            let Some(choice) = choose::choose(&request, eligible(left), held, expectations, now)
            else {
                break;
            };
            let at = rest
                .iter()
                .position(|(_, seat)| seat.server() == choice.server);
            let Some(at) = at else { break };
            ranked.push((rest.swap_remove(at).0, choice));
        }
        ranked
    }

    /// Counts a request at this seat, where somebody else has sent it; `expected`: what was when it was placed. Where that
    /// is not known, its answer says nothing of the worker's reports: they may include it by now. `None`: the seat is not
    /// one of these, or not known.
    pub(crate) fn sent_to(
        &self,
        seat: &Arc<Seat>,
        ask: &CacheQuery,
        expected: Option<Choice>,
    ) -> Option<Placed> {
        if !std::ptr::eq(seat.placement(), self) {
            return None;
        }
        let (mut state, request, now) = self.look_up(ask);
        let expected = expected.filter(|choice| choice.server == seat.server());
        let is_estimated = state.estimates.is_estimated(seat.server());
        let is_checked = expected.is_some() && ask.is_checked() && !is_estimated;
        let seats = eligible(std::iter::once(seat));
        let choice = match expected {
            Some(choice) => choice,
            None => choose::choose(&request, seats, &state.held, &state.expectations, now)?,
        };
        let work = request.work(state.held.of(seat.server()));
        let (ticket, coming) = state.sent(seat.server(), ask, &work, now);
        drop(state);
        let seat = Arc::clone(seat);
        Some(Placed::new(seat, ticket, coming, choice, is_checked, None))
    }

    /// Whether a request should be computed by one of `contexts` and continued by one of `others`, rather than be computed
    /// by one of those alone. Sends nothing. `None`: not all of them are known.
    pub fn split_pays<'a>(
        &self,
        ask: &CacheQuery,
        contexts: impl Iterator<Item = &'a Arc<Seat>> + Clone,
        others: impl Iterator<Item = &'a Arc<Seat>> + Clone,
    ) -> Option<bool> {
        let (state, request, now) = self.look_up(ask);
        let known = split::Known {
            held: &state.held,
            expectations: &state.expectations,
            hand_overs: &state.hand_overs,
            now,
        };
        known.split_pays(&request, eligible(contexts), eligible(others))
    }

    /// What is known, with what workers hold and will hold of a request's blocks in [`State::held`]; the request, as a choice sees it;
    /// and when that is.
    fn look_up(&self, ask: &CacheQuery) -> (MutexGuard<'_, State>, choose::Request, Seconds) {
        let now = self.now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.index.find(&ask.keys, &mut state.held);
        state.coming.find(&ask.keys, &mut state.held);
        let transfer = ask.is_transferred.then(|| state.hand_overs.token_s());
        let request = choose::Request {
            tokens: ask.tokens,
            block_tokens: self.block_tokens.load(Ordering::Relaxed),
            is_urgent: ask.is_urgent,
            spares_streams: ask.spares_streams,
            transfer,
        };
        (guard, request, now)
    }

    fn now(&self) -> Seconds {
        self.epoch.elapsed().as_secs_f64()
    }
}

fn eligible<'a>(
    seats: impl Iterator<Item = &'a Arc<Seat>> + Clone,
) -> impl Iterator<Item = Eligible> + Clone {
    seats.map(|seat| Eligible {
        server: seat.server(),
        delay: 0.0,
    })
}

#[cfg(test)]
mod tests;
