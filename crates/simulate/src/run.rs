//! One run: gateways and workers in virtual time. Owns the order of events; the same input gives the same output.

use inflight_routing::expectation::Ticket;

use crate::cache::Cache;
use crate::events::{Events, Random};
use crate::figures::Figures;
use crate::gateway::Gateway;
use crate::policy::Policy;
use crate::trace::{BLOCK_TOKENS, Trace};
use crate::worker::{Machine, Worker};

/// How long a worker gathers news before it reports, which includes the way.
pub(crate) const REPORT_S: f64 = 0.02;
/// Blocks that a gateway's index may hold.
pub(crate) const INDEX_BLOCKS: usize = 4 << 20;

/// When requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arrivals {
    /// At the times of the trace.
    Recorded,
    /// A conversation's next request comes its time to think after the answer before it.
    ThinkTime,
}

/// A fleet and its load.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    pub workers: u32,
    pub gateways: u32,
    /// How many times as fast as recorded requests come.
    pub rate: f64,
    pub arrivals: Arrivals,
    /// The share of reports that do not reach a gateway.
    pub lost: f64,
    pub machine: Machine,
    pub seed: u64,
}

impl Fleet {
    /// Requests that come at a time, and when.
    pub(crate) fn first_arrivals(&self, trace: &Trace) -> impl Iterator<Item = (f64, u32)> {
        let waits = |request: &u32| trace.requests[*request as usize].continues.is_some();
        let thinks = self.arrivals == Arrivals::ThinkTime;
        let requests = (0..trace.requests.len() as u32).filter(move |one| !(thinks && waits(one)));
        requests.map(|one| {
            let recorded_s = trace.requests[one as usize].at_ms / 1e3;
            (recorded_s / self.rate, one)
        })
    }

    /// Those that come after each request ended.
    pub(crate) fn next_arrivals(&self, trace: &Trace) -> Vec<Vec<u32>> {
        let mut next = vec![Vec::new(); trace.requests.len()];
        if self.arrivals == Arrivals::ThinkTime {
            for (request, recorded) in (0..).zip(&trace.requests) {
                if let Some(before) = recorded.continues {
                    next[before as usize].push(request);
                }
            }
        }
        next
    }

    /// The recorded time between two requests, less the time that an idle worker needs for the first.
    pub(crate) fn think_s(&self, trace: &Trace, before: u32, next: u32) -> f64 {
        let [before, next] = [before, next].map(|one| &trace.requests[one as usize]);
        let answered = f64::from(before.input_tokens) / self.machine.prompt_tokens_per_s
            + f64::from(before.output_tokens) * self.machine.token_s;
        ((next.at_ms - before.at_ms) / 1e3 / self.rate - answered).max(0.0)
    }

    /// The seed of a gateway, each another one.
    pub(crate) fn seed_of(&self, gateway: u32) -> u64 {
        (u64::from(gateway) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93) ^ self.seed
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Computed { worker: u32 },
    Ended { worker: u32, request: u32 },
    Report { worker: u32 },
    Arrive { request: u32 },
}

/// Runs a policy over a trace. `progress` is called now and then with the requests that have ended.
pub fn run(
    trace: &Trace,
    fleet: &Fleet,
    policy: Policy,
    progress: &mut dyn FnMut(usize),
) -> Figures {
    Run::new(trace, fleet, policy).run(progress)
}

struct Run<'a> {
    trace: &'a Trace,
    fleet: &'a Fleet,
    events: Events<Event>,
    gateways: Vec<Gateway>,
    workers: Vec<Worker>,
    /// One for each worker, or one for all.
    caches: Vec<Cache>,
    requests: Vec<State>,
    /// Those that come after a request ended.
    next: Vec<Vec<u32>>,
    random: Random,
}

#[derive(Clone, Copy, Debug)]
struct State {
    arrived: f64,
    ticket: Ticket,
}

impl<'a> Run<'a> {
    fn new(trace: &'a Trace, fleet: &'a Fleet, policy: Policy) -> Self {
        let is_pooled = policy == Policy::Pooled;
        let caches = if is_pooled {
            vec![Cache::new(fleet.machine.blocks * fleet.workers as usize)]
        } else {
            let cache = |_| Cache::new(fleet.machine.blocks);
            (0..fleet.workers).map(cache).collect()
        };
        let gateways = 0..fleet.gateways;
        Self {
            trace,
            fleet,
            events: Events::new(),
            gateways: gateways
                .map(|place| {
                    let seed = fleet.seed_of(place);
                    Gateway::new(policy, fleet.workers, INDEX_BLOCKS, seed)
                })
                .collect(),
            workers: (0..fleet.workers)
                .map(|_| Worker::new(fleet.gateways as usize))
                .collect(),
            caches,
            requests: vec![
                State {
                    arrived: 0.0,
                    ticket: Ticket {
                        server: 0,
                        number: 0
                    }
                };
                trace.requests.len()
            ],
            next: fleet.next_arrivals(trace),
            random: Random(fleet.seed),
        }
    }

    fn run(mut self, progress: &mut dyn FnMut(usize)) -> Figures {
        let mut figures = Figures::default();
        for (at, request) in self.fleet.first_arrivals(self.trace) {
            self.events.at(at, Event::Arrive { request });
        }
        let mut ended = 0;
        while let Some((now, event)) = self.events.next() {
            match event {
                Event::Arrive { request } => self.arrive(request, now, &mut figures),
                Event::Computed { worker } => self.computed(worker, now, &mut figures),
                Event::Ended { worker, request } => {
                    self.ended(worker, request, now);
                    ended += 1;
                    if ended % 512 == 0 {
                        progress(ended);
                    }
                }
                Event::Report { worker } => self.report(worker, now),
            }
            figures.end_s = now;
        }
        figures.first_token_s.sort_by(f64::total_cmp);
        figures.busy_s = self.workers.iter().map(|one| one.busy_s).collect();
        figures
    }

    fn cache(&self, worker: u32) -> usize {
        (worker as usize).min(self.caches.len() - 1)
    }

    fn arrive(&mut self, request: u32, now: f64, figures: &mut Figures) {
        let gateway = request as usize % self.gateways.len();
        let ticket = self.gateways[gateway].send(self.trace, request, &self.fleet.machine, now);
        self.requests[request as usize] = State {
            arrived: now,
            ticket,
        };
        let worker = ticket.server;
        let cache = self.cache(worker);
        let one = &mut self.workers[worker as usize];
        one.arrive(
            self.trace,
            request,
            gateway,
            ticket.number,
            &self.caches[cache],
        );
        if one.is_idle() {
            self.begin(worker, now, figures);
        }
        self.news(worker, now);
    }

    fn begin(&mut self, worker: u32, now: f64, figures: &mut Figures) {
        let cache = self.cache(worker);
        let one = &mut self.workers[worker as usize];
        let machine = &self.fleet.machine;
        let begun = one.begin(self.trace, &self.caches[cache], now, |tokens, running| {
            let seconds = machine.next_to(running, tokens);
            (seconds, seconds)
        });
        if let Some((until, request, cached)) = begun {
            let recorded = &self.trace.requests[request as usize];
            figures.input_tokens += u64::from(recorded.input_tokens);
            figures.cached_tokens += cached;
            self.events.at(until, Event::Computed { worker });
        }
    }

    fn computed(&mut self, worker: u32, now: f64, figures: &mut Figures) {
        let cache = self.cache(worker);
        let one = &mut self.workers[worker as usize];
        if let Some(request) = one.computed(self.trace, &mut self.caches[cache]) {
            let state = self.requests[request as usize];
            figures.first_token_s.push(now - state.arrived);
            let gateway = request as usize % self.gateways.len();
            self.gateways[gateway].started(state.ticket, now);
            self.workers[worker as usize].generates();
            let recorded = &self.trace.requests[request as usize];
            let answer = f64::from(recorded.output_tokens) * self.fleet.machine.token_s;
            self.events
                .at(now + answer, Event::Ended { worker, request });
        }
        self.begin(worker, now, figures);
        self.news(worker, now);
    }

    fn ended(&mut self, worker: u32, request: u32, now: f64) {
        self.workers[worker as usize].ended(self.trace, request);
        let gateway = request as usize % self.gateways.len();
        self.gateways[gateway].ended(self.requests[request as usize].ticket);
        for next in std::mem::take(&mut self.next[request as usize]) {
            let think = self.fleet.think_s(self.trace, request, next);
            self.events.at(now + think, Event::Arrive { request: next });
        }
        self.news(worker, now);
    }

    fn news(&mut self, worker: u32, now: f64) {
        if !self.workers[worker as usize].has_news {
            self.workers[worker as usize].has_news = true;
            self.events.at(now + REPORT_S, Event::Report { worker });
        }
    }

    fn report(&mut self, worker: u32, now: f64) {
        let cache = &self.caches[self.cache(worker)];
        let reported = self.workers[worker as usize].report(cache, now);
        for (place, gateway) in self.gateways.iter_mut().enumerate() {
            if self.fleet.lost == 0.0 || self.random.share() >= self.fleet.lost {
                gateway.hear(self.trace, place, worker, &reported);
            }
        }
    }
}

/// The share of prompt tokens that one cache of `blocks` blocks would serve, by the order of the trace.
pub fn ceiling(trace: &Trace, blocks: usize) -> f64 {
    let mut cache = Cache::new(blocks);
    let (mut input, mut cached) = (0, 0);
    for (place, recorded) in trace.requests.iter().enumerate() {
        let own = trace.blocks(place as u32);
        let found = cache.leading(own) as u64 * u64::from(BLOCK_TOKENS);
        input += u64::from(recorded.input_tokens);
        cached += found.min(u64::from(recorded.input_tokens) - 1);
        for block in own.iter().rev() {
            cache.use_block(*block);
        }
    }
    cached as f64 / (input as f64).max(1.0)
}
