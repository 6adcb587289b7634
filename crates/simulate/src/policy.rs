//! How a server is chosen: Inflight's own rule, and formulas of the field to compare it with. Owns the formulas;
//! all of them see the same: what the workers reported, what this gateway sent since, and one index of blocks.
//!
//! They are formulas and not products. Queues, safety gates and replicas' exchange of others are not modeled, and none
//! of the others here has to do with less than our own rule sees.

use inflight_routing::choose::{Eligible, Request, choose};
use inflight_routing::expectation::Expectations;
use inflight_routing::index::Held;

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Policy {
    /// Inflight's own rule: the least expected work and what it costs others.
    Inflight,
    /// One worker after another.
    RoundRobin,
    /// The fewest requests.
    LeastRequests,
    /// Always the same worker for a conversation.
    Session,
    /// The soonest first token: queue plus uncached tokens.
    LeastWork,
    /// SMG's `cache_aware`: most overlap above 0.5 unless its load is 32 and 1.1 times above the mean.
    Smg,
    /// Dynamo's default cost: prefill blocks that are not cached, plus blocks in use.
    Dynamo,
    /// Dynamo's `lmetric`: their product.
    DynamoLmetric,
    /// llm-d's guide: prefix 2, free cache 1, queue 1.
    LlmD,
    /// All caches as one, and the least wait.
    Pooled,
}

/// What a gateway knows of a worker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct View {
    pub(crate) queued_tokens: f64,
    pub(crate) waiting: u32,
    pub(crate) running: u32,
    pub(crate) active_blocks: u32,
    pub(crate) last_turn: u64,
}

/// What a rule may look at.
pub(crate) struct Sight<'a> {
    pub(crate) request: Request,
    pub(crate) session: u32,
    pub(crate) views: &'a [View],
    pub(crate) held: &'a Held,
    pub(crate) expectations: &'a Expectations,
    /// Blocks that a worker's cache holds.
    pub(crate) capacity: f64,
    pub(crate) turn: u64,
    pub(crate) now: f64,
}

impl Policy {
    /// Every rule, in the order of tables.
    pub const ALL: [Self; 10] = [
        Self::RoundRobin,
        Self::LeastRequests,
        Self::Session,
        Self::Smg,
        Self::Dynamo,
        Self::DynamoLmetric,
        Self::LlmD,
        Self::LeastWork,
        Self::Inflight,
        Self::Pooled,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Inflight => "inflight",
            Self::RoundRobin => "round-robin",
            Self::LeastRequests => "least-requests",
            Self::Session => "session",
            Self::LeastWork => "least-work",
            Self::Smg => "smg",
            Self::Dynamo => "dynamo",
            Self::DynamoLmetric => "dynamo-lmetric",
            Self::LlmD => "llm-d",
            Self::Pooled => "pooled",
        }
    }

    /// The worker of a request.
    pub(crate) fn pick(self, sight: &Sight<'_>) -> u32 {
        let blocks = f64::from((sight.request.tokens / sight.request.block_tokens).max(1));
        let overlap = |server: u32| f64::from(sight.held.of(server).coming);
        match self {
            Self::Inflight => {
                let eligible =
                    (0..sight.views.len() as u32).map(|server| Eligible { server, delay: 0.0 });
                let chosen = choose(
                    &sight.request,
                    eligible,
                    sight.held,
                    sight.expectations,
                    sight.now,
                );
                chosen.map_or(0, |one| one.server)
            }
            Self::RoundRobin => (sight.turn % sight.views.len() as u64) as u32,
            Self::LeastRequests => sight.least(|_, view| view.requests()),
            Self::Session => spread(sight.session) % sight.views.len() as u32,
            Self::LeastWork | Self::Pooled => {
                let pooled = self == Self::Pooled;
                sight.least(|server, view| {
                    let cached = if pooled { 0.0 } else { overlap(server) };
                    view.queued_tokens / f64::from(sight.request.block_tokens) + blocks - cached
                })
            }
            Self::Smg => {
                let mean =
                    sight.views.iter().map(View::requests).sum::<f64>() / sight.views.len() as f64;
                let best = sight.least(|server, view| view.requests() - 1e6 * overlap(server));
                let load = sight.views[best as usize].requests();
                let is_overloaded = load > mean + 32.0 && load > mean * 1.1;
                if overlap(best) / blocks > 0.5 && !is_overloaded {
                    best
                } else {
                    sight.least(|_, view| view.requests())
                }
            }
            Self::Dynamo | Self::DynamoLmetric => {
                let is_linear = self == Self::Dynamo;
                sight.least(|server, view| {
                    let queued = view.queued_tokens / f64::from(sight.request.block_tokens);
                    let new = (blocks - overlap(server)).max(0.0);
                    let (prefill, decode) = (queued + new, f64::from(view.active_blocks));
                    if is_linear {
                        prefill + decode + new
                    } else {
                        prefill * (decode + 1.0)
                    }
                })
            }
            Self::LlmD => {
                let waiting = sight.views.iter().map(|view| view.waiting);
                let most = waiting.clone().max().unwrap_or(0);
                let least = waiting.min().unwrap_or(0);
                sight.least(|server, view| {
                    let prefix = overlap(server) / blocks;
                    let free = 1.0 - (f64::from(view.active_blocks) / sight.capacity).min(1.0);
                    let queue = if most == least {
                        1.0
                    } else {
                        f64::from(most - view.waiting) / f64::from(most - least)
                    };
                    -(2.0 * prefix + free + queue)
                })
            }
        }
    }
}

impl View {
    /// A worker that was never used. Each gateway has another order of those, or all would begin with the same one.
    pub(crate) fn unused(seed: u64, worker: u32) -> Self {
        let mut mixed = (seed ^ u64::from(worker)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Self {
            last_turn: mixed >> 32,
            ..Self::default()
        }
    }

    fn requests(&self) -> f64 {
        f64::from(self.waiting + self.running)
    }
}

impl Sight<'_> {
    /// The worker of the least cost; among equals, the one that was used the longest ago.
    fn least(&self, cost: impl Fn(u32, &View) -> f64) -> u32 {
        let mut best = (f64::INFINITY, u64::MAX, 0);
        for (server, view) in self.views.iter().enumerate() {
            let cost = cost(server as u32, view);
            if (cost, view.last_turn) < (best.0, best.1) {
                best = (cost, view.last_turn, server as u32);
            }
        }
        best.2
    }
}

/// A session's place on the line of workers.
fn spread(session: u32) -> u32 {
    (u64::from(session).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as u32
}
