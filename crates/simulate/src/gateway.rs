//! What a gateway knows and does: its own index and expectations, fed by what it hears from workers. Owns the way from
//! a report to the routing crate, as a gateway would have it.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use inflight_routing::choose::{Choice, Eligible, Request, choose};
use inflight_routing::coming::Coming;
use inflight_routing::expectation::{Expectations, Report, Ticket};
use inflight_routing::index::{Held, Index, Level};
use inflight_routing::split::{HandOvers, Known as Sides};

use crate::policy::{Policy, Sight, View};
use crate::trace::{BLOCK_TOKENS, Trace};
use crate::worker::{CacheChange, Machine, Reported};

/// Turns before this one are those of workers that were never used.
pub(crate) const FIRST_TURN: u64 = 1 << 32;

/// What a worker is to do of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    /// All of it, where there are workers for contexts.
    pub(crate) spares_streams: bool,
    /// What follows its prompt, whose blocks come from another worker.
    pub(crate) is_transferred: bool,
}

/// A request that a worker has not reported yet.
#[derive(Debug)]
struct Unreported {
    at: f64,
    uncached: f64,
    new_blocks: u32,
}

/// The last report of a worker, and what was sent since.
#[derive(Debug, Default)]
struct Known {
    reported: View,
    since: VecDeque<Unreported>,
}

/// See the module.
pub(crate) struct Gateway {
    policy: Policy,
    index: Index,
    coming: Coming,
    /// Those of open requests, by the number of their ticket.
    open: HashMap<u64, Arc<[u64]>>,
    expectations: Expectations,
    held: Held,
    hand_overs: HandOvers,
    known: Vec<Known>,
    /// Changes of each worker's cache whose report was lost.
    missed: Vec<Vec<CacheChange>>,
    views: Vec<View>,
    keys: Vec<u64>,
    turn: u64,
}

impl Gateway {
    pub(crate) fn new(policy: Policy, workers: u32, most_blocks: usize, seed: u64) -> Self {
        let mut expectations = Expectations::new(seed);
        for worker in 0..workers {
            expectations.add(worker);
        }
        Self {
            policy,
            index: Index::new(most_blocks),
            coming: Coming::default(),
            open: HashMap::new(),
            expectations,
            held: Held::default(),
            hand_overs: HandOvers::default(),
            known: (0..workers).map(|_| Known::default()).collect(),
            missed: vec![Vec::new(); workers as usize],
            views: (0..workers)
                .map(|worker| View::unused(seed, worker))
                .collect(),
            keys: Vec::new(),
            turn: FIRST_TURN + seed % u64::from(workers),
        }
    }

    /// Chooses a worker and counts the request as sent there.
    pub(crate) fn send(
        &mut self,
        trace: &Trace,
        request: u32,
        machine: &Machine,
        now: f64,
    ) -> Ticket {
        let ask = self.look_up(trace, request, Part::default());
        let recorded = &trace.requests[request as usize];
        if self.policy != Policy::Inflight {
            for (view, known) in self.views.iter_mut().zip(&self.known) {
                let last_turn = view.last_turn;
                *view = known.now(now, machine);
                view.last_turn = last_turn;
            }
        }
        let sight = Sight {
            request: ask,
            session: recorded.session,
            views: &self.views,
            held: &self.held,
            expectations: &self.expectations,
            capacity: machine.blocks as f64,
            turn: self.turn,
            now,
        };
        let server = self.policy.pick(&sight);
        self.turn += 1;
        self.count(&ask, server, now)
    }

    /// Whether one of the workers for contexts should compute a request that one of the others continues.
    pub(crate) fn split_pays(
        &mut self,
        trace: &Trace,
        request: u32,
        contexts: Range<u32>,
        others: Range<u32>,
        now: f64,
    ) -> bool {
        let ask = self.look_up(trace, request, Part::default());
        let sides = Sides {
            held: &self.held,
            expectations: &self.expectations,
            hand_overs: &self.hand_overs,
            now,
        };
        let found = sides.split_pays(&ask, eligible(contexts), eligible(others));
        found.unwrap_or(true)
    }

    /// Chooses one of these workers and counts the request as sent there. `None`: there are none.
    pub(crate) fn place(
        &mut self,
        trace: &Trace,
        request: u32,
        workers: Range<u32>,
        part: Part,
        now: f64,
    ) -> Option<(Ticket, Choice)> {
        let ask = self.look_up(trace, request, part);
        let (held, expectations) = (&self.held, &self.expectations);
        let choice = choose(&ask, eligible(workers), held, expectations, now)?;
        Some((self.count(&ask, choice.server, now), choice))
    }

    /// A hand-over to where it was sent by this choice took so long.
    pub(crate) fn handed_over(&mut self, then: &Choice, took: f64) {
        self.hand_overs.learn(then, took);
    }

    fn look_up(&mut self, trace: &Trace, request: u32, part: Part) -> Request {
        self.keys.clear();
        self.keys.extend(keys(trace, request));
        self.index.find(&self.keys, &mut self.held);
        self.coming.find(&self.keys, &mut self.held);
        Request {
            tokens: trace.requests[request as usize].input_tokens,
            block_tokens: BLOCK_TOKENS,
            is_urgent: false,
            spares_streams: part.spares_streams,
            transfer: part.is_transferred.then(|| self.hand_overs.token_s()),
        }
    }

    /// Counts the request that was looked up as sent to a worker.
    fn count(&mut self, ask: &Request, server: u32, now: f64) -> Ticket {
        let work = ask.work(self.held.of(server));
        let ticket = self.expectations.sent(server, &work, now);
        let place = server as usize;
        self.views[place].last_turn = self.turn;
        let held = self.held.of(server).coming as usize;
        self.known[place].since.push_back(Unreported {
            at: now,
            uncached: f64::from(work.tokens - work.on_device),
            new_blocks: (self.keys.len() - held) as u32,
        });
        let keys: Arc<[u64]> = self.keys.as_slice().into();
        self.coming.sent(server, &keys);
        self.open.insert(ticket.number, keys);
        ticket
    }

    pub(crate) fn started(&mut self, ticket: Ticket, now: f64) {
        self.expectations.started(ticket, now);
    }

    pub(crate) fn ended(&mut self, ticket: Ticket) {
        self.expectations.ended(ticket);
        if let Some(keys) = self.open.remove(&ticket.number) {
            self.coming.ended(ticket.server, &keys);
        }
    }

    /// A report is lost. The next one shows the gap, and a snapshot closes it.
    pub(crate) fn miss(&mut self, worker: u32, reported: &Reported) {
        self.missed[worker as usize].extend_from_slice(&reported.changes);
    }

    /// Hears from a worker.
    pub(crate) fn hear(&mut self, trace: &Trace, worker: u32, reported: &Reported) {
        self.expectations.reported(
            worker,
            &Report {
                at: reported.at,
                queued_tokens: reported.queued_tokens,
                urgent_tokens: 0,
                working_seconds: 0.0,
                requests: reported.running + reported.waiting,
                is_full: reported.is_full,
                short_first: false,
                computed_tokens: reported.computed_tokens,
                computed_seconds: reported.computed_seconds,
            },
        );
        let known = &mut self.known[worker as usize];
        known.since.retain(|one| one.at >= reported.at);
        known.reported = View {
            queued_tokens: reported.queued_tokens as f64,
            waiting: reported.waiting,
            running: reported.running,
            active_blocks: reported.active_blocks,
            last_turn: (reported.at * 1e6) as u64,
        };
        let missed = std::mem::take(&mut self.missed[worker as usize]);
        for change in missed.iter().chain(&reported.changes) {
            self.keys.clear();
            match change {
                CacheChange::Waits(request) => {
                    let keys: Arc<[u64]> = keys(trace, *request).collect();
                    self.coming.sent(worker, &keys);
                }
                CacheChange::NoLongerWaits(request) => {
                    self.keys.extend(keys(trace, *request));
                    self.coming.ended(worker, &self.keys);
                }
                CacheChange::Stored { request, from } => {
                    let blocks = trace.blocks(*request);
                    let after = from.checked_sub(1).map(|last| key(blocks[last]));
                    self.keys
                        .extend(blocks[*from..].iter().map(|block| key(*block)));
                    self.index.stored(worker, after, &self.keys, Level::Device);
                }
                CacheChange::Removed(blocks) => {
                    self.keys.extend(blocks.iter().map(|block| key(*block)));
                    self.index.removed(worker, &self.keys, Level::Device);
                }
            }
        }
    }
}

impl Known {
    /// What is known now: the report, less what was computed since, plus what was sent since.
    fn now(&self, now: f64, machine: &Machine) -> View {
        let mut view = self.reported;
        let reported_at = view.last_turn as f64 / 1e6;
        let computed = (now - reported_at).max(0.0) * machine.prompt_tokens_per_s;
        view.queued_tokens = (view.queued_tokens - computed).max(0.0);
        for one in &self.since {
            view.queued_tokens += one.uncached;
            view.waiting += 1;
            view.active_blocks += one.new_blocks;
        }
        view
    }
}

fn eligible(workers: Range<u32>) -> impl Iterator<Item = Eligible> + Clone {
    workers.map(|server| Eligible { server, delay: 0.0 })
}

/// The chain keys of a prompt's blocks.
fn keys(trace: &Trace, request: u32) -> impl Iterator<Item = u64> {
    trace.blocks(request).iter().map(|block| key(*block))
}

/// The chain key of a block.
fn key(block: u32) -> u64 {
    u64::from(block) + 1
}
