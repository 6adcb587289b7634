//! The line of requests that wait for a place in the executor's batch, and how long a new one would wait.
//!
//! Pure: time is a value. Knows nothing of requests, only tickets; the registry says whose they are. Assumes that
//! requests start in the executor's [`StartOrder`], unless priorities say otherwise.
//!
//! An executor may run fewer sequences than it has places, because its KV cache holds no more of this length.
//! It does not say so. It shows in requests that have a place and get no row while others end: then only those
//! with rows count as running, until nobody waits any more. One that a later request has passed shows nothing: the
//! executor had memory for that one, and its own prompt may be long.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::{Duration, Instant};

/// How far back the service rate looks, in seconds with every place taken, unless twice the limit on the
/// wait is longer. Long enough to hold several generations of usual length, short enough to follow a
/// change of the load.
const RATE_MEMORY_S: f64 = 10.0;
/// A request is refused above this part of the limit on its wait. The rest is for the estimate's error:
/// without it, half of the requests at the limit would be ended only after having waited.
const ADMITTED_PART: f64 = 0.75;

/// A request that has a place counts as held back by memory when it got no row for this part of the limit on
/// the wait, while sequences ended in so many iterations.
const HELD_BACK_PART: f64 = 0.25;
const HELD_BACK_ENDS: u64 = 2;

/// In which order an executor starts the requests of one priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StartOrder {
    #[default]
    Arrival,
    /// As the reference executor's queue: a request is due once twice the tokens of its prompt have come, with it and
    /// after it, and those due first start first.
    ShortFirst,
}

/// Of a prompt's tokens: the reference executor's `_DUE_AFTER_TIMES`.
const DUE_AFTER_TIMES: u64 = 2;

/// A request's position in the line: when it is due, and then in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    /// The same for all where the order is that of arrival.
    due: u64,
    number: u64,
}

/// Why a request may not join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong {
    /// How long it would wait.
    pub(super) wait: Duration,
    /// How long it may.
    pub(super) allowed: Duration,
}

/// A request that has a place and no row yet.
#[derive(Clone, Copy, Debug)]
struct Unstarted {
    sequences: u32,
    since: Instant,
    /// [`Line::ends`] at that time.
    ends: u64,
}

/// Sequences with a place and sequences that wait for one.
#[derive(Debug)]
pub(super) struct Line {
    /// Sequences that the executor runs at once.
    places: u32,
    limit: Duration,
    order: StartOrder,
    /// Tokens of the prompts that came so far.
    came: u64,
    /// Sequences that have shown to fit, where that is less than `places`.
    fits: Option<u32>,
    /// Sequences with a place.
    running: u32,
    /// Those of `running` that have no row yet, and their sequences.
    unstarted: BTreeMap<Ticket, Unstarted>,
    unstarted_sequences: u32,
    /// Sequences of each request that waits.
    waiting: BTreeMap<Ticket, u32>,
    waiting_sequences: u32,
    next: u64,
    /// The request with a row that came last.
    last_started: Option<u64>,
    rate: ServiceRate,
    /// Iterations in which sequences with rows ended, and the time of the latest.
    ends: u64,
    last_end: Option<Instant>,
    last_event: Option<Instant>,
    /// The latest event that found every place taken. The ends of one iteration carry one time, so all
    /// of them count when the first one does.
    full_at: Option<Instant>,
}

impl Line {
    /// `limit`: how long a request may wait.
    pub(super) fn new(places: u32, limit: Duration, order: StartOrder) -> Self {
        Self {
            places: places.max(1),
            limit,
            order,
            came: 0,
            fits: None,
            running: 0,
            unstarted: BTreeMap::new(),
            unstarted_sequences: 0,
            waiting: BTreeMap::new(),
            waiting_sequences: 0,
            next: 0,
            last_started: None,
            rate: ServiceRate::new(limit),
            ends: 0,
            last_end: None,
            last_event: None,
            full_at: None,
        }
    }

    /// Whether a request of `sequences` may join, of whose prompt so many `tokens` are to be computed. `patience`: how
    /// long it would wait at most by its own choice.
    ///
    /// # Errors
    /// Its expected wait is longer than the limit or than `patience`.
    pub(super) fn check(
        &mut self,
        now: Instant,
        sequences: u32,
        tokens: u32,
        patience: Option<Duration>,
    ) -> Result<(), TooLong> {
        self.pass(now);
        let places = self.usable_places();
        let waiting = self.waiting_sequences - self.passed_by(tokens);
        let taken = self.running.saturating_add(waiting);
        let needed = taken.saturating_add(sequences.clamp(1, places));
        let ahead = needed.saturating_sub(places);
        if ahead == 0 {
            return Ok(());
        }
        let limit = self.limit.mul_f64(ADMITTED_PART);
        let allowed = patience.map_or(limit, |patience| patience.min(limit));
        let Some(rate) = self.rate.per_second() else {
            // Nothing has ended yet, so nothing is known: one more batch may wait.
            return if ahead <= places {
                Ok(())
            } else {
                Err(TooLong {
                    wait: self.limit,
                    allowed,
                })
            };
        };
        let wait = Duration::try_from_secs_f64(f64::from(ahead) / rate).unwrap_or(Duration::MAX);
        if wait > allowed {
            return Err(TooLong { wait, allowed });
        }
        Ok(())
    }

    /// Joins the line, or takes a place at once.
    pub(super) fn join(&mut self, now: Instant, sequences: u32, tokens: u32) -> Ticket {
        self.pass(now);
        let ticket = Ticket {
            due: self.due(tokens),
            number: self.next,
        };
        self.next += 1;
        self.came += u64::from(tokens);
        self.waiting.insert(ticket, sequences.max(1));
        self.waiting_sequences += sequences.max(1);
        self.move_up(now);
        ticket
    }

    /// Its first row came, so it has a place, whatever its position.
    pub(super) fn start(&mut self, ticket: Ticket) {
        self.last_started = self.last_started.max(Some(ticket.number));
        if let Some(unstarted) = self.unstarted.remove(&ticket) {
            self.unstarted_sequences -= unstarted.sequences;
        } else if let Some(sequences) = self.waiting.remove(&ticket) {
            self.waiting_sequences -= sequences;
            self.running += sequences;
            // More fit than was thought.
            self.fits = self.fits.map(|fits| fits.max(self.running));
        }
    }

    /// Requests that wait for a place.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether it certainly has to wait. One that waits for memory may have begun: its first row takes as
    /// long as its prompt.
    pub(super) fn is_waiting(&self, ticket: Ticket) -> bool {
        self.waiting.contains_key(&ticket) && self.fits.is_none()
    }

    /// The executor is through with a request of `sequences`.
    pub(super) fn leave(&mut self, now: Instant, ticket: Ticket, sequences: u32) {
        self.pass(now);
        if let Some(sequences) = self.waiting.remove(&ticket) {
            self.waiting_sequences -= sequences;
        } else {
            let sequences = sequences.max(1);
            self.running = self.running.saturating_sub(sequences);
            if let Some(unstarted) = self.unstarted.remove(&ticket) {
                self.unstarted_sequences -= unstarted.sequences;
            } else if self.last_end != Some(now) {
                self.ends += 1;
                self.last_end = Some(now);
            }
            if self.full_at == Some(now) {
                self.rate.count(sequences);
            }
        }
        self.move_up(now);
    }

    /// Everything is over at once.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.waiting_sequences = 0;
        self.unstarted.clear();
        self.unstarted_sequences = 0;
        self.running = 0;
        self.fits = None;
    }

    /// When a request that comes now is due.
    fn due(&self, tokens: u32) -> u64 {
        match self.order {
            StartOrder::Arrival => 0,
            StartOrder::ShortFirst => self.came + DUE_AFTER_TIMES * u64::from(tokens),
        }
    }

    /// Sequences that wait and that a request which comes now passes.
    fn passed_by(&self, tokens: u32) -> u32 {
        let last = Ticket {
            due: self.due(tokens),
            number: u64::MAX,
        };
        let passed = self
            .waiting
            .range((Bound::Excluded(last), Bound::Unbounded));
        passed.map(|(_, sequences)| sequences).sum()
    }

    /// Sequences that run at once, as far as is known.
    fn usable_places(&self) -> u32 {
        self.fits.unwrap_or(self.places)
    }

    /// Gives free places to those who are the first to start.
    fn move_up(&mut self, now: Instant) {
        let places = self.usable_places();
        while let Some(first) = self.waiting.first_entry() {
            let sequences = *first.get();
            if self.running > 0 && self.running.saturating_add(sequences) > places {
                break;
            }
            let (ticket, _) = first.remove_entry();
            self.waiting_sequences -= sequences;
            self.running += sequences;
            self.unstarted_sequences += sequences;
            let unstarted = Unstarted {
                sequences,
                since: now,
                ends: self.ends,
            };
            self.unstarted.insert(ticket, unstarted);
        }
        if self.waiting.is_empty() {
            self.fits = None;
        }
    }

    /// Puts those back into the line who have a place and are held back by memory. The first one keeps its
    /// place: its prompt may be in work.
    fn hold_back(&mut self, now: Instant) {
        let has_started = self.running > self.unstarted_sequences;
        let patience = self.limit.mul_f64(HELD_BACK_PART);
        let is_held_back = |unstarted: &Unstarted| {
            self.ends >= unstarted.ends + HELD_BACK_ENDS
                && now.saturating_duration_since(unstarted.since) >= patience
        };
        let others = self.unstarted.iter().skip(1);
        let mut others = others.filter(|(ticket, _)| Some(ticket.number) > self.last_started);
        let Some((&second, _)) = others
            .next()
            .filter(|(_, unstarted)| has_started && is_held_back(unstarted))
        else {
            return;
        };
        let last_started = self.last_started;
        let held_back = self.unstarted.range(second..).map(|(ticket, _)| *ticket);
        let held_back = held_back.filter(|ticket| Some(ticket.number) > last_started);
        for ticket in held_back.collect::<Vec<_>>() {
            let Some(unstarted) = self.unstarted.remove(&ticket) else {
                continue;
            };
            self.unstarted_sequences -= unstarted.sequences;
            self.running -= unstarted.sequences;
            self.waiting.insert(ticket, unstarted.sequences);
            self.waiting_sequences += unstarted.sequences;
        }
        self.fits = Some(self.running);
    }

    fn pass(&mut self, now: Instant) {
        self.hold_back(now);
        let elapsed = self
            .last_event
            .map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        if self.running >= self.usable_places() || !self.waiting.is_empty() {
            self.rate.pass(elapsed);
            self.full_at = Some(now);
        }
        self.last_event = Some(now);
    }
}

/// Sequences that end per second while every place is taken, which is how fast places become free. Both
/// sums fade with a time constant of about [`RATE_MEMORY_S`], and only while every place is taken: what was
/// measured stays true while nothing can be measured.
#[derive(Clone, Copy, Debug)]
struct ServiceRate {
    ended: f64,
    seconds: f64,
    memory_s: f64,
    limit_s: f64,
}

impl ServiceRate {
    fn new(limit: Duration) -> Self {
        let limit_s = limit.as_secs_f64();
        Self {
            ended: 0.0,
            seconds: 0.0,
            memory_s: RATE_MEMORY_S.max(2.0 * limit_s),
            limit_s,
        }
    }

    fn pass(&mut self, elapsed: Duration) {
        let kept = (-elapsed.as_secs_f64() / self.memory_s).exp();
        self.ended *= kept;
        self.seconds = self.seconds * kept + self.memory_s * (1.0 - kept);
    }

    fn count(&mut self, sequences: u32) {
        self.ended += f64::from(sequences);
    }

    /// `None`: nothing has ended yet, in less time than the limit on the wait. One end more than seen is counted: it
    /// is on its way, and without it a slow executor would count as one that never ends.
    fn per_second(&self) -> Option<f64> {
        let known = self.ended > 0.0 || self.seconds >= self.limit_s;
        known.then(|| (self.ended + 1.0) / self.seconds.max(1e-3))
    }
}

#[cfg(test)]
mod tests;
