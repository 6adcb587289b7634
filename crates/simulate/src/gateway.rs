//! What a gateway knows and does: its own index and expectations, fed by what it hears from workers. Owns the way from
//! a report to the routing crate, as a gateway would have it.

use std::collections::VecDeque;

use inflight_routing::choose::Request;
use inflight_routing::expectation::{Expectations, Report, Ticket};
use inflight_routing::index::{Held, Index, Level};

use crate::policy::{Policy, Sight, View};
use crate::trace::{BLOCK_TOKENS, Trace};
use crate::worker::{CacheChange, Machine, Reported};

/// Turns before this one are those of workers that were never used.
pub(crate) const FIRST_TURN: u64 = 1 << 32;

/// A request that a worker has not reported yet.
#[derive(Debug)]
struct Unreported {
    ticket: u64,
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
    expectations: Expectations,
    held: Held,
    known: Vec<Known>,
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
            expectations,
            held: Held::default(),
            known: (0..workers).map(|_| Known::default()).collect(),
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
        self.keys.clear();
        self.keys
            .extend(trace.blocks(request).iter().map(|block| key(*block)));
        self.index.find(&self.keys, &mut self.held);
        let recorded = &trace.requests[request as usize];
        let ask = Request {
            tokens: recorded.input_tokens,
            block_tokens: BLOCK_TOKENS,
            is_urgent: false,
            is_transferred: false,
        };
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
        let work = ask.work(self.held.of(server));
        let ticket = self.expectations.sent(server, &work, now);
        let place = server as usize;
        self.views[place].last_turn = self.turn;
        let held = self.held.of(server).device as usize;
        self.known[place].since.push_back(Unreported {
            ticket: ticket.number,
            uncached: f64::from(work.tokens - work.on_device),
            new_blocks: (self.keys.len() - held) as u32,
        });
        // It will hold them by the time that another request comes to its turn there.
        let after = held.checked_sub(1).map(|last| self.keys[last]);
        self.index
            .stored(server, after, &self.keys[held..], Level::Device);
        ticket
    }

    pub(crate) fn started(&mut self, ticket: Ticket, now: f64) {
        self.expectations.started(ticket, now);
    }

    pub(crate) fn ended(&mut self, ticket: Ticket) {
        self.expectations.ended(ticket);
    }

    /// Hears from a worker.
    pub(crate) fn hear(&mut self, trace: &Trace, gateway: usize, worker: u32, reported: &Reported) {
        let includes = reported.tickets[gateway];
        self.expectations.reported(
            worker,
            &Report {
                at: reported.at,
                includes: Some(includes),
                queued_tokens: reported.queued_tokens,
                urgent_tokens: 0,
                running: reported.running,
                is_full: reported.is_full,
                computed_tokens: reported.computed_tokens,
                computed_seconds: reported.computed_seconds,
            },
        );
        let known = &mut self.known[worker as usize];
        known.since.retain(|one| one.ticket > includes);
        known.reported = View {
            queued_tokens: reported.queued_tokens as f64,
            waiting: reported.waiting,
            running: reported.running,
            active_blocks: reported.active_blocks,
            last_turn: (reported.at * 1e6) as u64,
        };
        for change in &reported.changes {
            self.keys.clear();
            match change {
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

/// The chain key of a block.
fn key(block: u32) -> u64 {
    u64::from(block) + 1
}
