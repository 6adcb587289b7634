//! One run of workers of which some compute prompts for the others. Owns the order of events, and where a request is at
//! which time; whether a request is split is the gateway's.
//!
//! ## The model
//!
//! - A worker computes one prompt after another. Next to answers, an iteration has at most 50 ms of each prompt that
//!   waits, and of 8,192 tokens in all, and every answer waits for that. Between prompts an iteration takes as long as the
//!   answers need: `token_s` of the machine, and twice that for 256 of them.
//! - With its first token a split request moves. Its new worker fetches the blocks that it lacks, one request after
//!   another, which takes a while each and by tokens; its iterations are longer by 8% meanwhile. The request's next token
//!   needs an iteration more.
//! - Blocks that are fetched always come: no worker forgets them before.
//!
//! The figures are those of the reference executor with a model of 8B on an H200 (`docs/PERFORMANCE.md`).

use std::collections::VecDeque;
use std::ops::Range;

use inflight_routing::choose::Choice;
use inflight_routing::expectation::Ticket;

use crate::cache::Cache;
use crate::events::{Events, Random};
use crate::figures::{Answered, Figures};
use crate::gateway::{Gateway, Part};
use crate::policy::Policy;
use crate::run::{Fleet, INDEX_BLOCKS, REPORT_S};
use crate::streams::Streams;
use crate::trace::{BLOCK_TOKENS, Trace};
use crate::worker::Worker;

/// What a prompt may add to an iteration, as `max_prompt_ms` of the reference executor.
const PROMPT_S: f64 = 0.05;
/// Tokens of an iteration.
const ITERATION_TOKENS: f64 = 8192.0;
/// What each transfer takes besides its tokens.
const TRANSFER_S: f64 = 0.012;
/// How much longer iterations are next to a transfer.
const NEXT_TO_TRANSFER: f64 = 1.08;

/// Which requests are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disaggregate {
    /// Those that the gateway's own decision says.
    Auto,
    Always,
    /// None: workers for contexts get nothing.
    Never,
    /// None, and every worker is for both phases.
    Both,
}

impl Disaggregate {
    /// In the order of tables.
    pub const ALL: [Self; 4] = [Self::Both, Self::Never, Self::Always, Self::Auto];

    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
            Self::Both => "both",
        }
    }
}

/// Workers for contexts, and the way from them to the others.
#[derive(Clone, Copy, Debug)]
pub struct Apart {
    pub context_workers: u32,
    pub disaggregate: Disaggregate,
    pub transfer_tokens_per_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Computed {
        worker: u32,
    },
    /// An answer ends, if nothing has changed since this number.
    Ends {
        worker: u32,
        number: u32,
    },
    Fetched {
        worker: u32,
        request: u32,
    },
    /// A request that moved has its second token.
    Continued {
        worker: u32,
        request: u32,
    },
    Report {
        worker: u32,
    },
    Arrive {
        request: u32,
    },
}

/// Runs a trace. `progress` is called now and then with the requests that have ended.
pub fn run_apart(
    trace: &Trace,
    fleet: &Fleet,
    apart: &Apart,
    progress: &mut dyn FnMut(usize),
) -> Figures {
    Run::new(trace, fleet, apart).run(progress)
}

#[derive(Clone, Copy, Debug)]
struct State {
    arrived: f64,
    first: f64,
    ticket: Ticket,
    is_split: bool,
    /// When it was sent to the second worker, and the choice of that.
    sent: (f64, Option<Choice>),
}

struct Place {
    worker: Worker,
    cache: Cache,
    streams: Streams,
    /// What an iteration has of prompts; 0: it has none.
    prompt_s: f64,
    /// Requests whose blocks come, the first of them now.
    fetching: VecDeque<u32>,
    /// Changes so far.
    number: u32,
}

struct Run<'a> {
    trace: &'a Trace,
    fleet: &'a Fleet,
    apart: &'a Apart,
    events: Events<Event>,
    gateways: Vec<Gateway>,
    places: Vec<Place>,
    requests: Vec<Option<State>>,
    next: Vec<Vec<u32>>,
    random: Random,
    figures: Figures,
    ended: usize,
}

impl<'a> Run<'a> {
    fn new(trace: &'a Trace, fleet: &'a Fleet, apart: &'a Apart) -> Self {
        let gateway = |place| {
            let seed = fleet.seed_of(place);
            Gateway::new(Policy::Inflight, fleet.workers, INDEX_BLOCKS, seed)
        };
        let place = |_| Place {
            worker: Worker::new(fleet.gateways as usize),
            cache: Cache::new(fleet.machine.blocks),
            streams: Streams::new(fleet.machine.token_s),
            prompt_s: 0.0,
            fetching: VecDeque::new(),
            number: 0,
        };
        Self {
            trace,
            fleet,
            apart,
            events: Events::new(),
            gateways: (0..fleet.gateways).map(gateway).collect(),
            places: (0..fleet.workers).map(place).collect(),
            requests: vec![None; trace.requests.len()],
            next: fleet.next_arrivals(trace),
            random: Random(fleet.seed),
            figures: Figures::default(),
            ended: 0,
        }
    }

    fn run(mut self, progress: &mut dyn FnMut(usize)) -> Figures {
        for (at, request) in self.fleet.first_arrivals(self.trace) {
            self.events.at(at, Event::Arrive { request });
        }
        let mut shown = 0;
        while let Some((now, event)) = self.events.next() {
            match event {
                Event::Arrive { request } => self.arrive(request, now),
                Event::Computed { worker } => self.change(worker, now, Self::computed),
                Event::Ends { worker, number } => {
                    if self.places[worker as usize].number == number {
                        self.change(worker, now, |_, _, _| ());
                    }
                }
                Event::Fetched { worker, request } => {
                    self.change(worker, now, |run, _, _| run.fetched(worker, request, now));
                }
                Event::Continued { worker, request } => {
                    self.change(worker, now, |run, _, _| run.continued(worker, request, now));
                }
                Event::Report { worker } => self.report(worker, now),
            }
            self.figures.end_s = now;
            if self.ended >= shown + 512 {
                shown = self.ended;
                progress(shown);
            }
        }
        self.figures.first_token_s.sort_by(f64::total_cmp);
        for place in &self.places {
            self.figures.gaps.merge(&place.streams.gaps);
            self.figures.busy_s.push(place.worker.busy_s);
        }
        self.figures
    }

    /// Changes a worker: its answers advance until now, and take another time from here on.
    fn change(&mut self, worker: u32, now: f64, change: impl FnOnce(&mut Self, u32, f64)) {
        let place = &mut self.places[worker as usize];
        place.streams.advance(now);
        while let Some(request) = self.places[worker as usize].streams.ended() {
            self.places[worker as usize]
                .worker
                .ended(self.trace, request);
            self.end(request, now);
        }
        change(self, worker, now);
        let place = &mut self.places[worker as usize];
        let mut step_s = place.streams.step_s(self.fleet.machine.token_s);
        if !place.fetching.is_empty() {
            step_s *= NEXT_TO_TRANSFER;
        }
        place.number += 1;
        if let Some(end) = place.streams.retime(step_s + place.prompt_s) {
            let number = place.number;
            self.events.at(end, Event::Ends { worker, number });
        }
        if !std::mem::replace(&mut place.worker.has_news, true) {
            self.events.at(now + REPORT_S, Event::Report { worker });
        }
    }

    fn gateway(&mut self, request: u32) -> &mut Gateway {
        let place = request as usize % self.gateways.len();
        &mut self.gateways[place]
    }

    /// Workers for contexts, and the others.
    fn sides(&self) -> (Range<u32>, Range<u32>) {
        let contexts = match self.apart.disaggregate {
            Disaggregate::Both => 0,
            _ => self.apart.context_workers,
        };
        (0..contexts, contexts..self.fleet.workers)
    }

    fn arrive(&mut self, request: u32, now: f64) {
        let (contexts, others) = self.sides();
        let trace = self.trace;
        let is_split = match self.apart.disaggregate {
            Disaggregate::Always => true,
            Disaggregate::Never | Disaggregate::Both => false,
            Disaggregate::Auto => {
                let (contexts, others) = (contexts.clone(), others.clone());
                self.gateway(request)
                    .split_pays(trace, request, contexts, others, now)
            }
        };
        self.figures.split += u64::from(is_split);
        let part = Part {
            spares_streams: !is_split && !contexts.is_empty(),
            ..Part::default()
        };
        let workers = if is_split { contexts } else { others };
        let placed = self
            .gateway(request)
            .place(trace, request, workers, part, now);
        let Some((ticket, _)) = placed else { return };
        self.requests[request as usize] = Some(State {
            arrived: now,
            first: now,
            ticket,
            is_split,
            sent: (0.0, None),
        });
        let gateway = request as usize % self.gateways.len();
        self.change(ticket.server, now, |run, worker, now| {
            let Place {
                worker: one, cache, ..
            } = &mut run.places[worker as usize];
            one.arrive(trace, request, gateway, ticket.number, cache);
            if one.is_idle() {
                run.begin(worker, now);
            }
        });
    }

    fn begin(&mut self, worker: u32, now: f64) {
        let pace = self.fleet.machine.prompt_tokens_per_s;
        let place = &mut self.places[worker as usize];
        let step_s = match place.streams.count() {
            0 => 0.0,
            _ => place.streams.step_s(self.fleet.machine.token_s),
        };
        let behind_s = place.worker.behind_s(pace, PROMPT_S);
        let mut prompt_s = 0.0;
        let begun = place
            .worker
            .begin(self.trace, &place.cache, now, |tokens, _| {
                let seconds = tokens as f64 / pace;
                let own_s = seconds / (seconds / PROMPT_S).ceil();
                prompt_s = own_s + behind_s.min(ITERATION_TOKENS / pace - own_s);
                // Prompts that share an iteration share its step.
                (seconds * (1.0 + step_s / prompt_s), seconds)
            });
        place.prompt_s = prompt_s;
        if let Some((until, request, cached)) = begun {
            self.figures.input_tokens +=
                u64::from(self.trace.requests[request as usize].input_tokens);
            self.figures.cached_tokens += cached;
            self.events.at(until, Event::Computed { worker });
        }
    }

    fn computed(&mut self, worker: u32, now: f64) {
        let trace = self.trace;
        let Place {
            worker: one, cache, ..
        } = &mut self.places[worker as usize];
        let request = one.computed(trace, cache);
        self.begin(worker, now);
        let Some(request) = request else { return };
        let Some(state) = &mut self.requests[request as usize] else {
            return;
        };
        state.first = now;
        let State {
            arrived,
            ticket,
            is_split,
            ..
        } = *state;
        self.figures.first_token_s.push(now - arrived);
        self.gateway(request).started(ticket, now);
        let place = &mut self.places[worker as usize];
        let left = trace.requests[request as usize].output_tokens - 1;
        if left == 0 {
            place.worker.left(trace, request);
            self.end(request, now);
        } else if is_split {
            place.worker.left(trace, request);
            self.gateway(request).ended(ticket);
            self.hand_over(request, now);
        } else {
            place.worker.generates();
            place.streams.join(request, left);
        }
    }

    fn hand_over(&mut self, request: u32, now: f64) {
        let (trace, (_, others)) = (self.trace, self.sides());
        let part = Part {
            is_transferred: true,
            ..Part::default()
        };
        let placed = self
            .gateway(request)
            .place(trace, request, others, part, now);
        let Some((ticket, choice)) = placed else {
            return;
        };
        if let Some(state) = &mut self.requests[request as usize] {
            state.ticket = ticket;
            state.sent = (now, Some(choice));
        }
        let gateway = request as usize % self.gateways.len();
        self.change(ticket.server, now, |run, worker, now| {
            let place = &mut run.places[worker as usize];
            place.worker.expect(trace, request, gateway, ticket.number);
            place.fetching.push_back(request);
            if place.fetching.len() == 1 {
                run.fetch(worker, now);
            }
        });
    }

    /// Begins to fetch the blocks of the first request that waits for them.
    fn fetch(&mut self, worker: u32, now: f64) {
        let place = &self.places[worker as usize];
        let Some(&request) = place.fetching.front() else {
            return;
        };
        let held = place.cache.leading(self.trace.blocks(request)) as u32 * BLOCK_TOKENS;
        let tokens = self.trace.requests[request as usize].input_tokens - held;
        let took = TRANSFER_S + f64::from(tokens) / self.apart.transfer_tokens_per_s;
        let event = Event::Fetched { worker, request };
        self.events.at(now + took, event);
    }

    fn fetched(&mut self, worker: u32, request: u32, now: f64) {
        let place = &mut self.places[worker as usize];
        place.fetching.pop_front();
        place.worker.fetched(self.trace, request, &mut place.cache);
        let iteration_s = place.streams.iteration_s();
        self.events
            .at(now + iteration_s, Event::Continued { worker, request });
        self.fetch(worker, now);
    }

    fn continued(&mut self, worker: u32, request: u32, now: f64) {
        let Some(state) = self.requests[request as usize] else {
            return;
        };
        let recorded = &self.trace.requests[request as usize];
        let gateway = self.gateway(request);
        gateway.started(state.ticket, now);
        if let (sent, Some(choice)) = state.sent {
            gateway.handed_over(&choice, now - sent);
        }
        let place = &mut self.places[worker as usize];
        place.streams.gaps.add(now - state.first, 1.0);
        place.worker.continues();
        match recorded.output_tokens - 2 {
            0 => {
                place.worker.ended(self.trace, request);
                self.end(request, now);
            }
            left => place.streams.join(request, left),
        }
    }

    /// A request is answered.
    fn end(&mut self, request: u32, now: f64) {
        let Some(state) = self.requests[request as usize] else {
            return;
        };
        self.gateway(request).ended(state.ticket);
        let tokens = self.trace.requests[request as usize].output_tokens;
        self.figures.answered.push(Answered {
            first_token_s: state.first - state.arrived,
            answered_s: now - state.arrived,
            tokens,
        });
        self.ended += 1;
        for next in std::mem::take(&mut self.next[request as usize]) {
            let think = self.fleet.think_s(self.trace, request, next);
            self.events.at(now + think, Event::Arrive { request: next });
        }
    }

    fn report(&mut self, worker: u32, now: f64) {
        let place = &mut self.places[worker as usize];
        let reported = place.worker.report(&place.cache, now);
        for (number, gateway) in self.gateways.iter_mut().enumerate() {
            if self.fleet.lost == 0.0 || self.random.share() >= self.fleet.lost {
                gateway.hear(self.trace, number, worker, &reported);
            }
        }
    }
}
