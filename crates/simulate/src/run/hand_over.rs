//! Requests whose prompt one worker computes and whose answer another one generates. Owns their way; whether one takes it is
//! the gateway's.
//!
//! ## The model
//!
//! - With its first token a split request moves. Its new worker fetches the blocks that it lacks, one request after
//!   another, which takes a while each and by tokens; its iterations are longer by 8% meanwhile. The request's next token
//!   needs an iteration more.
//! - Blocks that are fetched always come: no worker forgets them before.

use std::collections::VecDeque;
use std::ops::Range;

use super::{Event, Run, cache_of};
use crate::fleet::{Apart, Disaggregate};
use crate::gateway::Part;
use crate::trace::BLOCK_TOKENS;

/// What each transfer takes besides its tokens.
const TRANSFER_S: f64 = 0.012;
/// How much longer iterations are next to a transfer.
const NEXT_TO_TRANSFER: f64 = 1.08;

/// Requests whose blocks come, the first of them now.
#[derive(Debug, Default)]
pub(super) struct Fetching(VecDeque<u32>);

impl Fetching {
    /// How many times as long iterations take.
    pub(super) fn slows(&self) -> f64 {
        if self.0.is_empty() {
            1.0
        } else {
            NEXT_TO_TRANSFER
        }
    }
}

impl Run<'_> {
    /// Workers for contexts, and the others.
    pub(super) fn sides(&self, apart: &Apart) -> (Range<u32>, Range<u32>) {
        let contexts = match apart.disaggregate {
            Disaggregate::Both => 0,
            _ => apart.context_workers,
        };
        (0..contexts, contexts..self.fleet.workers)
    }

    pub(super) fn is_split(&mut self, apart: &Apart, request: u32, now: f64) -> bool {
        let (trace, (contexts, others)) = (self.trace, self.sides(apart));
        match apart.disaggregate {
            Disaggregate::Always => true,
            Disaggregate::Never | Disaggregate::Both => false,
            Disaggregate::Auto => {
                let gateway = self.gateway(request);
                gateway.split_pays(trace, request, contexts, others, now)
            }
        }
    }

    pub(super) fn hand_over(&mut self, apart: &Apart, request: u32, now: f64) {
        let (trace, (_, others)) = (self.trace, self.sides(apart));
        let part = Part {
            is_transferred: true,
            ..Part::default()
        };
        let gateway = self.gateway(request);
        let placed = gateway.place(trace, request, others, part, now);
        let Some((ticket, choice)) = placed else {
            return;
        };
        if let Some(state) = &mut self.requests[request as usize] {
            state.ticket = ticket;
            state.sent = (now, Some(choice));
        }
        self.change(ticket.server, now, |run, worker, now| {
            let place = &mut run.places[worker as usize];
            place.worker.expect(trace, request);
            place.fetching.0.push_back(request);
            if place.fetching.0.len() == 1 {
                run.fetch(worker, now);
            }
        });
    }

    /// Begins to fetch the blocks of the first request that waits for them.
    fn fetch(&mut self, worker: u32, now: f64) {
        let place = &self.places[worker as usize];
        let (Some(&request), Some(apart)) = (place.fetching.0.front(), self.apart) else {
            return;
        };
        let cache = cache_of(&mut self.caches, worker);
        let held = cache.leading(self.trace.blocks(request)) as u32 * BLOCK_TOKENS;
        let tokens = self.trace.requests[request as usize].input_tokens - held;
        let took = TRANSFER_S + f64::from(tokens) / apart.transfer_tokens_per_s;
        let event = Event::Fetched { worker, request };
        self.events.at(now + took, event);
    }

    pub(super) fn fetched(&mut self, worker: u32, request: u32, now: f64) {
        let cache = cache_of(&mut self.caches, worker);
        let place = &mut self.places[worker as usize];
        place.fetching.0.pop_front();
        place.worker.fetched(self.trace, request, cache);
        let iteration_s = place.streams.iteration_s();
        self.events
            .at(now + iteration_s, Event::Continued { worker, request });
        self.fetch(worker, now);
    }

    pub(super) fn continued(&mut self, worker: u32, request: u32, now: f64) {
        let Some(state) = self.requests[request as usize] else {
            return;
        };
        let gateway = self.gateway(request);
        gateway.started(state.ticket, now);
        if let (sent, Some(choice)) = state.sent {
            gateway.handed_over(&choice, now - sent);
        }
        let cache = cache_of(&mut self.caches, worker);
        let place = &mut self.places[worker as usize];
        place.streams.gaps.add(now - state.first, 1.0);
        place.worker.continues();
        match self.trace.requests[request as usize].output_tokens - 2 {
            0 => {
                place.worker.ended(self.trace, request, cache);
                self.end(request, now);
            }
            left => place.streams.join(request, left),
        }
    }
}
