//! What is run: workers, gateways, and when requests come. Owns the values and what follows from them alone.

use crate::events::Random;
use crate::trace::Trace;
use crate::worker::Machine;

/// When requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arrivals {
    /// At the times of the trace.
    Recorded,
    /// A conversation's next request comes its time to think after the answer before it.
    ThinkTime,
    /// At the times of the trace, each moved by a random share of the time to the next one: the clock of a trace may
    /// be coarse.
    Spread,
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
            let recorded = &trace.requests[one as usize];
            let at_ms = match self.arrivals {
                Arrivals::Spread => recorded.at_ms + self.later_ms(trace, one),
                Arrivals::Recorded | Arrivals::ThinkTime => recorded.at_ms,
            };
            (at_ms / 1e3 / self.rate, one)
        })
    }

    /// How much later than recorded a request comes, before the next recorded time.
    fn later_ms(&self, trace: &Trace, request: u32) -> f64 {
        let at_ms = trace.requests[request as usize].at_ms;
        let after = trace.requests.partition_point(|one| one.at_ms <= at_ms);
        let next = trace.requests.get(after);
        let share = Random(self.seed ^ u64::from(request)).share();
        next.map_or(0.0, |next| share * (next.at_ms - at_ms))
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

#[cfg(test)]
mod tests {
    use super::{Arrivals, Fleet};
    use crate::trace::Trace;
    use crate::worker::Machine;

    #[test]
    fn spread_requests_come_before_the_next_recorded_time() {
        let line = |at: u32| {
            format!(
                "{{\"timestamp\": {at}, \"input_length\": 5, \"output_length\": 2, \"hash_ids\": [1]}}\n"
            )
        };
        let recorded = [0, 0, 0, 3000, 3000, 9000];
        let text: String = recorded.map(line).concat();
        let trace = Trace::read(text.as_bytes()).expect("a trace");
        let fleet = Fleet {
            workers: 1,
            gateways: 1,
            rate: 2.0,
            arrivals: Arrivals::Spread,
            lost: 0.0,
            machine: Machine {
                blocks: 9,
                prompt_tokens_per_s: 1.0,
                token_s: 1.0,
            },
            seed: 3,
        };
        let found: Vec<f64> = fleet.first_arrivals(&trace).map(|(at, _)| at).collect();
        let (first, second) = (&found[..3], &found[3..5]);
        assert!(first.iter().all(|at| (0.0..1.5).contains(at)), "{found:?}");
        assert!(second.iter().all(|at| (1.5..4.5).contains(at)), "{found:?}");
        // The last recorded time has none after it.
        assert_eq!(found[5].to_bits(), 4.5_f64.to_bits());
        assert_ne!(first[0].to_bits(), first[1].to_bits());
        assert!(first.iter().any(|at| *at > 0.3), "{found:?}");
    }
}
