//! One run: gateways and workers in virtual time. Owns the order of events, and where a request is at which time; the same
//! input gives the same output. Which worker a request gets is the gateway's.
//!
//! ## The model
//!
//! - A worker computes prompts in the order in which they come, as many as an iteration has room for: 8,192 tokens. Next to
//!   answers it has at most 50 ms of each prompt and 100 ms of all of them, and every answer waits for that. Besides, each
//!   iteration takes `token_s` of the machine, and twice that with 256 answers.
//! - Who comes during an iteration waits for its end. A prompt's first token comes with the end of its last iteration.
//! - A prompt's blocks are cached, and reported, once it is computed.
//! - Where workers compute prompts for others, [`hand_over`] says what follows.
//!
//! The figures are those of the reference executor with a model of 8B on an H200 (`docs/PERFORMANCE.md`).

mod hand_over;

use inflight_routing::choose::Choice;
use inflight_routing::expectation::Ticket;

use self::hand_over::Fetching;
use crate::cache::Cache;
use crate::events::{Events, Random};
use crate::figures::{Answered, Figures};
use crate::fleet::{Apart, Fleet};
use crate::gateway::{Gateway, Part};
use crate::policy::Policy;
use crate::streams::Streams;
use crate::trace::Trace;
use crate::worker::{Bounds, Worker};

/// How long a worker gathers news before it reports, which includes the way.
const REPORT_S: f64 = 0.02;
/// Blocks that a gateway's index may hold.
const INDEX_BLOCKS: usize = 4 << 20;
/// What a prompt may add to an iteration, as `max_prompt_ms` of the reference executor, and all of them together.
const PROMPT_S: f64 = 0.05;
const PROMPTS_S: f64 = 2.0 * PROMPT_S;
/// Tokens of an iteration.
const ITERATION_TOKENS: f64 = 8192.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// An iteration with prompts is over.
    Iterated {
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

/// Runs a policy over a trace. `progress` is called now and then with the requests that have ended.
pub fn run(
    trace: &Trace,
    fleet: &Fleet,
    policy: Policy,
    progress: &mut dyn FnMut(usize),
) -> Figures {
    Run::new(trace, fleet, policy, None).run(progress)
}

/// The same with workers of which some compute prompts for the others, by Inflight's own rule.
pub fn run_apart(
    trace: &Trace,
    fleet: &Fleet,
    apart: &Apart,
    progress: &mut dyn FnMut(usize),
) -> Figures {
    Run::new(trace, fleet, Policy::Inflight, Some(apart)).run(progress)
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

/// A worker and what it is at.
struct Place {
    worker: Worker,
    streams: Streams,
    /// Whether its iteration has prompts, which it ends with.
    has_prompts: bool,
    fetching: Fetching,
    /// Changes so far.
    number: u32,
}

struct Run<'a> {
    trace: &'a Trace,
    fleet: &'a Fleet,
    apart: Option<&'a Apart>,
    events: Events<Event>,
    gateways: Vec<Gateway>,
    places: Vec<Place>,
    /// One for each worker, or one for all.
    caches: Vec<Cache>,
    requests: Vec<Option<State>>,
    /// Those that come after a request ended.
    next: Vec<Vec<u32>>,
    random: Random,
    figures: Figures,
    ended: usize,
}

impl<'a> Run<'a> {
    fn new(trace: &'a Trace, fleet: &'a Fleet, policy: Policy, apart: Option<&'a Apart>) -> Self {
        let gateway = |place| {
            let seed = fleet.seed_of(place);
            Gateway::new(policy, fleet.workers, INDEX_BLOCKS, seed)
        };
        let place = |_| Place {
            worker: Worker::new(),
            streams: Streams::new(fleet.machine.token_s),
            has_prompts: false,
            fetching: Fetching::default(),
            number: 0,
        };
        let blocks = fleet.machine.blocks;
        let caches = match policy {
            Policy::Pooled => vec![Cache::new(blocks * fleet.workers as usize)],
            _ => (0..fleet.workers).map(|_| Cache::new(blocks)).collect(),
        };
        Self {
            trace,
            fleet,
            apart,
            events: Events::new(),
            gateways: (0..fleet.gateways).map(gateway).collect(),
            places: (0..fleet.workers).map(place).collect(),
            caches,
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
                Event::Iterated { worker } => self.change(worker, now, Self::iterated),
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

    /// Changes a worker: its answers advance until now, and may take another time from here on.
    fn change(&mut self, worker: u32, now: f64, change: impl FnOnce(&mut Self, u32, f64)) {
        let (trace, at) = (self.trace, worker as usize);
        self.places[at].streams.advance(now);
        while let Some(request) = self.places[at].streams.ended() {
            let cache = cache_of(&mut self.caches, worker);
            self.places[at].worker.ended(trace, request, cache);
            self.end(request, now);
        }
        change(self, worker, now);
        let iteration_s = match self.places[at].has_prompts {
            true => self.places[at].streams.iteration_s(),
            false => self.iterate(worker, now),
        };
        let place = &mut self.places[at];
        place.number += 1;
        if let Some(end) = place.streams.retime(iteration_s) {
            let number = place.number;
            self.events.at(end, Event::Ends { worker, number });
        }
        if !std::mem::replace(&mut place.worker.has_news, true) {
            self.events.at(now + REPORT_S, Event::Report { worker });
        }
    }

    /// Begins an iteration of a worker. Returns how long it takes.
    fn iterate(&mut self, worker: u32, now: f64) -> f64 {
        let machine = &self.fleet.machine;
        let pace = machine.prompt_tokens_per_s;
        let cache = cache_of(&mut self.caches, worker);
        let place = &mut self.places[worker as usize];
        let all_s = ITERATION_TOKENS / pace;
        let step_s = place.streams.step_s(machine.token_s) * place.fetching.slows();
        let bounds = match place.streams.count() {
            0 => Bounds {
                each_s: all_s,
                all_s,
            },
            _ => Bounds {
                each_s: PROMPT_S,
                all_s: PROMPTS_S.min(all_s),
            },
        };
        let (prompts_s, begun) = place.worker.iterate(self.trace, cache, pace, bounds);
        place.has_prompts = prompts_s > 0.0;
        let iteration_s = prompts_s + step_s;
        if place.has_prompts {
            let end = now + iteration_s;
            self.events.at(end, Event::Iterated { worker });
        }
        for (request, cached) in begun {
            let recorded = &self.trace.requests[request as usize];
            self.figures.input_tokens += u64::from(recorded.input_tokens);
            self.figures.cached_tokens += cached;
        }
        iteration_s
    }

    /// An iteration with prompts is over, and those that are computed have their first tokens.
    fn iterated(&mut self, worker: u32, now: f64) {
        let (trace, at) = (self.trace, worker as usize);
        self.places[at].has_prompts = false;
        self.places[at].worker.iterated();
        loop {
            let cache = cache_of(&mut self.caches, worker);
            let Some(request) = self.places[at].worker.computed(trace, cache) else {
                return;
            };
            self.started(worker, request, now);
        }
    }

    fn gateway(&mut self, request: u32) -> &mut Gateway {
        let place = request as usize % self.gateways.len();
        &mut self.gateways[place]
    }

    fn arrive(&mut self, request: u32, now: f64) {
        let (trace, fleet) = (self.trace, self.fleet);
        let (ticket, is_split) = match self.apart {
            Some(apart) => {
                let is_split = self.is_split(apart, request, now);
                let (contexts, others) = self.sides(apart);
                let part = Part {
                    spares_streams: !is_split && !contexts.is_empty(),
                    ..Part::default()
                };
                let workers = if is_split { contexts } else { others };
                let gateway = self.gateway(request);
                let placed = gateway.place(trace, request, workers, part, now);
                let Some((ticket, _)) = placed else { return };
                (ticket, is_split)
            }
            None => {
                let gateway = self.gateway(request);
                (gateway.send(trace, request, &fleet.machine, now), false)
            }
        };
        self.figures.split += u64::from(is_split);
        self.requests[request as usize] = Some(State {
            arrived: now,
            first: now,
            ticket,
            is_split,
            sent: (0.0, None),
        });
        self.change(ticket.server, now, |run, worker, _| {
            let cache = cache_of(&mut run.caches, worker);
            let one = &mut run.places[worker as usize].worker;
            one.arrive(trace, request, cache);
        });
    }

    /// The first token of a request came from the worker that computed its prompt.
    fn started(&mut self, worker: u32, request: u32, now: f64) {
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
        let cache = cache_of(&mut self.caches, worker);
        let place = &mut self.places[worker as usize];
        let left = self.trace.requests[request as usize].output_tokens - 1;
        if left == 0 {
            place.worker.left(self.trace, request, cache);
            self.end(request, now);
        } else if let (true, Some(apart)) = (is_split, self.apart) {
            place.worker.left(self.trace, request, cache);
            self.gateway(request).ended(ticket);
            self.hand_over(apart, request, now);
        } else {
            place.worker.generates();
            place.streams.join(request, left);
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
        let cache = cache_of(&mut self.caches, worker);
        let reported = self.places[worker as usize].worker.report(cache, now);
        for gateway in &mut self.gateways {
            if self.fleet.lost == 0.0 || self.random.share() >= self.fleet.lost {
                gateway.hear(self.trace, worker, &reported);
            } else {
                gateway.miss(worker, &reported);
            }
        }
    }
}

/// The cache of a worker: its own, or that of all.
fn cache_of(caches: &mut [Cache], worker: u32) -> &mut Cache {
    let last = caches.len() - 1;
    &mut caches[last.min(worker as usize)]
}
