//! What is run: workers, gateways, and when requests come. Owns the values and what follows from them alone.

use crate::trace::Trace;
use crate::worker::Machine;

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

/// Workers for contexts, and the way from them to the others.
#[derive(Clone, Copy, Debug)]
pub struct Apart {
    pub context_workers: u32,
    pub disaggregate: Disaggregate,
    pub transfer_tokens_per_s: f64,
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
