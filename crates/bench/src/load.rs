//! One run of load: N streams in a closed loop, each starting its next request as the last one ends.
//! Owns what both wires share: how many requests, for how long, and what is measured around them.

mod connection;
mod http;
mod kserve;
mod models;
pub(crate) mod replay;
pub(crate) mod trace;

use std::time::{Duration, Instant};

use crate::measure::{Recorder, Report, Surroundings};
use crate::process;

pub(crate) use self::models::first_model;

/// Which protocol the target speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Wire {
    /// A gateway: chat completions as server-sent events over HTTP/1.1.
    Openai,
    /// A gateway, a worker's HTTP port or Triton: `generate_stream` as server-sent events over HTTP/1.1.
    Generate,
    /// A worker: one ModelStreamInfer call per request, as any KServe client makes.
    Kserve,
    /// A worker: every request on one step-batching stream, as the gateway makes them.
    KserveStep,
}

/// Where the load goes.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) wire: Wire,
    /// `HOST:PORT`.
    pub(crate) address: String,
    /// The OpenAI or KServe model name.
    pub(crate) model: String,
    pub(crate) api_key: Option<String>,
    /// Connections that the KServe wires share their streams over; over HTTP/1.1 each has its own.
    pub(crate) connections: usize,
    /// The server's process, where its cost is wanted.
    pub(crate) pid: Option<u32>,
}

/// Fields of a request's JSON object.
pub(crate) type Fields = serde_json::Map<String, serde_json::Value>;

/// How much load.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) streams: usize,
    /// Tokens that each request asks for.
    pub(crate) tokens: u32,
    pub(crate) prompt_tokens: u32,
    /// Added to each chat request.
    pub(crate) fields: Fields,
    /// Requests in all; a stream starts none beyond.
    pub(crate) requests: Option<u64>,
    /// No request starts after this much time.
    pub(crate) duration: Option<Duration>,
    /// Requests before the measured ones, run to their end.
    pub(crate) warmup: u64,
    /// The first requests of the streams start evenly spread over this time.
    pub(crate) ramp: Duration,
    /// The whole run is given up after this.
    pub(crate) timeout: Duration,
}

/// Why a run has no report.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("`{address}` is not an address; write it as HOST:PORT")]
    Address { address: String },
    #[error("no connection to `{address}`; is the server running there?")]
    Connect {
        address: String,
        source: std::io::Error,
    },
    #[error(transparent)]
    ConnectGrpc(#[from] inflight_kserve::client::ConnectError),
    #[error("the server at `{address}` lists no model (`{answer}`); name one with `--model`")]
    NoModel { address: String, answer: String },
    #[error("the client's own sockets failed")]
    Socket(#[from] std::io::Error),
    #[error("process `{pid}` cannot be read; is it running?")]
    Process { pid: u32, source: std::io::Error },
    #[error("the run exceeded its time limit: {ended} requests finished, {running} did not")]
    TimedOut { ended: u64, running: usize },
    #[error("the stream to `{address}` ended: {reason}")]
    StreamEnded { address: String, reason: String },
}

/// How many more requests may start.
#[derive(Debug)]
pub(crate) struct Budget {
    left: Option<u64>,
    until: Option<Instant>,
}

impl Budget {
    fn new(requests: Option<u64>, duration: Option<Duration>, now: Instant) -> Self {
        Self {
            left: requests,
            until: duration.map(|duration| now + duration),
        }
    }

    /// Whether one more request may start; if so it is taken.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        if self.until.is_some_and(|until| now >= until) {
            return false;
        }
        match &mut self.left {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }
}

/// What one phase of a run is driven by.
#[derive(Debug)]
pub(crate) struct Phase {
    pub(crate) budget: Budget,
    pub(crate) recorder: Recorder,
    pub(crate) ramp: Duration,
    pub(crate) deadline: Instant,
}

/// A wire's streams, ready to run phases over the same connections.
trait Streams {
    /// Runs until the budget is used up and every request has ended.
    fn run(&mut self, phase: &mut Phase) -> Result<(), LoadError>;
}

/// Warms up, then measures.
pub(crate) fn run(target: &Target, workload: &Workload) -> Result<Report, LoadError> {
    process::raise_open_files();
    let mut streams: Box<dyn Streams> = match target.wire {
        Wire::Openai | Wire::Generate => Box::new(http::HttpStreams::new(target, workload)?),
        Wire::Kserve => Box::new(kserve::RequestStreams::new(target, workload)?),
        Wire::KserveStep => Box::new(kserve::StepStreams::new(target, workload)?),
    };
    let deadline = Instant::now() + workload.timeout;
    if workload.warmup > 0 {
        let budget = Budget::new(Some(workload.warmup), None, Instant::now());
        let recorder = Recorder::default();
        streams.run(&mut Phase {
            budget,
            recorder,
            ramp: workload.ramp,
            deadline,
        })?;
    }
    let usage = || match target.pid {
        Some(pid) => process::usage(pid)
            .map(Some)
            .map_err(|source| LoadError::Process { pid, source }),
        None => Ok(None),
    };
    let before = usage()?;
    let client_before = process::own_usage();
    let started = Instant::now();
    let mut phase = Phase {
        budget: Budget::new(workload.requests, workload.duration, started),
        recorder: Recorder::default(),
        ramp: workload.ramp,
        deadline,
    };
    streams.run(&mut phase)?;
    let around = Surroundings {
        wall: started.elapsed(),
        client_cpu: process::own_usage().cpu_since(&client_before),
        server: before.zip(usage()?),
    };
    Ok(Report::new(workload.streams, &phase.recorder, &around))
}

/// When stream `index` of `count` starts.
fn ramp_start(now: Instant, ramp: Duration, index: usize, count: usize) -> Instant {
    now + ramp.mul_f64(index as f64 / count.max(1) as f64)
}

/// How a stream that reached the protocol's end came out.
fn ending(tokens: u64, expected: u64) -> crate::measure::Ending {
    use crate::measure::Ending;
    match tokens.cmp(&expected) {
        std::cmp::Ordering::Equal => Ending::Whole,
        std::cmp::Ordering::Less => Ending::Short,
        std::cmp::Ordering::Greater => Ending::Errored(format!(
            "a stream brought {tokens} tokens, {expected} were asked for"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_ends_by_count_or_by_time() {
        let now = Instant::now();
        let mut two = Budget::new(Some(2), None, now);
        assert_eq!(
            [two.take(now), two.take(now), two.take(now)],
            [true, true, false]
        );
        let mut second = Budget::new(None, Some(Duration::from_secs(1)), now);
        assert!(second.take(now) && second.take(now + Duration::from_millis(999)));
        assert!(!second.take(now + Duration::from_secs(1)));
    }

    #[test]
    fn a_ramp_spreads_the_streams_evenly() {
        let now = Instant::now();
        let starts: Vec<_> = (0..4)
            .map(|index| ramp_start(now, Duration::from_secs(1), index, 4) - now)
            .collect();
        assert_eq!(starts, [0, 250, 500, 750].map(Duration::from_millis));
    }
}
