//! The suite behind `make bench`: starts each server alone on one core, puts the load on it from
//! another, and compares the figures with those of the floor measured in the same round.
//!
//! Knows commands and addresses; nothing of what a gateway or a worker does.

mod results;
mod server;

use std::time::{Duration, Instant};

use crate::load::{self, LoadError, Target, Wire, Workload};
use crate::measure::Report;
use crate::process;
use results::Results;
pub(crate) use server::Ready;
use server::{Server, ServerError, Template};

pub(crate) const GATEWAY_COMMAND: &str =
    "{inflight} gateway --worker 127.0.0.1:{worker_port} --port {port}";
pub(crate) const WORKER_COMMAND: &str = "{inflight} worker --executor simulated --grpc-port {port} \
    --metrics-port {metrics_port} --step-us {step_us} --step-us-per-sequence 0 \
    --prefill-us-per-token 0 --max-batch-size 1024";
pub(crate) const SCRIPTED_COMMAND: &str = "{inflight} worker --executor scripted --grpc-port {port} \
    --metrics-port {metrics_port} --step-us {step_us}";
pub(crate) const FLOOR_COMMAND: &str =
    "{inflight} bench floor --listen 127.0.0.1:{port} --pace-ms {pace_ms}";

/// A run that is not over after its own time and this is given up.
const GRACE: Duration = Duration::from_secs(60);
/// Paced streams start spread over this time, so that their tokens do not fall together.
const RAMP: Duration = Duration::from_millis(500);
/// For the time to first token: requests, one after another, and tokens of each.
const FIRST_TOKEN_REQUESTS: u64 = 300;
const FIRST_TOKEN_TOKENS: u32 = 4;

#[derive(Clone, Debug)]
pub(crate) struct SuiteOptions {
    pub(crate) streams: Vec<usize>,
    pub(crate) tokens: u32,
    pub(crate) pace: Duration,
    pub(crate) duration: Duration,
    pub(crate) rounds: u32,
    pub(crate) limit: Duration,
    pub(crate) server_core: usize,
    pub(crate) client_core: usize,
    pub(crate) only: Vec<String>,
    pub(crate) inflight: String,
    pub(crate) gateway_command: String,
    pub(crate) worker_command: String,
    pub(crate) scripted_command: String,
    pub(crate) floor_command: String,
    pub(crate) model: String,
    pub(crate) kserve_model: String,
}

/// Whether tokens come as fast as they can, or one per stream and pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    Saturated,
    Paced,
}

/// What is measured: a server, and the wire that the load comes over.
struct Measured {
    name: &'static str,
    command: fn(&SuiteOptions) -> &str,
    /// Whether a worker runs behind it, on the client's core.
    needs_worker: bool,
    wire: Wire,
}

const MEASURED: [Measured; 6] = [
    Measured {
        name: "floor",
        command: |options| &options.floor_command,
        needs_worker: false,
        wire: Wire::Openai,
    },
    Measured {
        name: "gateway",
        command: |options| &options.gateway_command,
        needs_worker: true,
        wire: Wire::Openai,
    },
    Measured {
        name: "gateway, generate_stream",
        command: |options| &options.gateway_command,
        needs_worker: true,
        wire: Wire::Generate,
    },
    Measured {
        name: "worker, step batching",
        command: |options| &options.worker_command,
        needs_worker: false,
        wire: Wire::KserveStep,
    },
    Measured {
        name: "worker, a call per request",
        command: |options| &options.worker_command,
        needs_worker: false,
        wire: Wire::Kserve,
    },
    Measured {
        name: "worker, scripted Python executor",
        command: |options| &options.scripted_command,
        needs_worker: false,
        wire: Wire::KserveStep,
    },
];

/// Why a row was not measured.
#[derive(Debug, thiserror::Error)]
enum RowError {
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// Measures everything, `options.rounds` times. What cannot be measured is a problem of the results,
/// and the rest continues.
pub(crate) fn run(options: &SuiteOptions, tell: &mut dyn FnMut(&str)) -> Results {
    process::raise_open_files();
    let mut results = Results::new(options);
    if let Err(error) = process::pin_to_core(options.client_core) {
        results.problem(format!(
            "not pinned to core {}: {error}",
            options.client_core
        ));
    }
    let until = Instant::now() + options.limit;
    for round in 1..=options.rounds {
        for mode in [Mode::Saturated, Mode::Paced] {
            for measured in &MEASURED {
                let is_wanted = options.only.is_empty()
                    || options
                        .only
                        .iter()
                        .any(|name| measured.name.starts_with(name.as_str()));
                if (measured.command)(options).trim().is_empty() || !is_wanted {
                    continue;
                }
                if Instant::now() >= until {
                    results.problem(format!(
                        "round {round} of `{}` ({mode:?}) was left out: the time limit was reached",
                        measured.name
                    ));
                    continue;
                }
                tell(&format!(
                    "round {round}/{}: {}, {mode:?}",
                    options.rounds, measured.name
                ));
                if let Err(error) = one_server(options, measured, mode, &mut results, tell) {
                    let text = format!(
                        "`{}` ({mode:?}): {}",
                        measured.name,
                        inflight_base::error_chain(&error)
                    );
                    tell(&format!("  {text}"));
                    results.problem(text);
                }
            }
        }
    }
    results
}

/// Starts a server, measures it at every number of streams, and stops it.
fn one_server(
    options: &SuiteOptions,
    measured: &Measured,
    mode: Mode,
    results: &mut Results,
    tell: &mut dyn FnMut(&str),
) -> Result<(), RowError> {
    let pace = if mode == Mode::Paced {
        options.pace
    } else {
        Duration::ZERO
    };
    let mut template = Template {
        inflight: options.inflight.clone(),
        pace,
        worker_port: None,
        core: options.client_core,
        own_core: options.client_core,
    };
    // Dropped after the server in front of it.
    let worker = if measured.needs_worker {
        Some(Server::start(
            &options.worker_command,
            &template,
            Ready::Grpc,
        )?)
    } else {
        None
    };
    template.worker_port = worker.as_ref().map(|worker| worker.port);
    template.core = options.server_core;
    let ready = match measured.wire {
        Wire::Openai | Wire::Generate => Ready::Http,
        Wire::Kserve | Wire::KserveStep => Ready::Grpc,
    };
    let server = Server::start((measured.command)(options), &template, ready)?;
    let target = Target {
        wire: measured.wire,
        address: format!("127.0.0.1:{}", server.port),
        model: match measured.wire {
            Wire::Openai => options.model.clone(),
            Wire::Generate | Wire::Kserve | Wire::KserveStep => options.kserve_model.clone(),
        },
        api_key: None,
        connections: 1,
        pid: Some(server.pid()),
    };
    for streams in &options.streams {
        let report = load::run(&target, &workload(options, mode, *streams))?;
        tell(&format!("  {streams} streams: {}", brief(&report)));
        results.add(measured.name, mode, report);
    }
    if mode == Mode::Saturated {
        let workload = Workload {
            tokens: FIRST_TOKEN_TOKENS,
            requests: Some(FIRST_TOKEN_REQUESTS),
            duration: Some(GRACE),
            warmup: 20,
            ..workload(options, mode, 1)
        };
        results.add_first_token(measured.name, load::run(&target, &workload)?);
    }
    drop(server);
    drop(worker);
    Ok(())
}

fn workload(options: &SuiteOptions, mode: Mode, streams: usize) -> Workload {
    let per_stream = streams as u64;
    let paced_request = options.pace * options.tokens;
    let is_paced = mode == Mode::Paced;
    Workload {
        streams,
        tokens: options.tokens,
        prompt_tokens: 15,
        fields: load::Fields::new(),
        requests: is_paced.then_some(2 * per_stream),
        duration: (!is_paced).then_some(options.duration),
        warmup: per_stream,
        ramp: if is_paced { RAMP } else { Duration::ZERO },
        timeout: if is_paced {
            paced_request * 8 + GRACE
        } else {
            options.duration + GRACE
        },
    }
}

fn brief(report: &Report) -> String {
    let cost = report
        .cpu_us_per_token
        .map_or_else(String::new, |cost| format!(", {cost:.2} µs/token"));
    let problem = report
        .first_problem
        .as_ref()
        .map_or_else(String::new, |text| format!(" ({text})"));
    format!(
        "{:.0} tokens/s{cost}, client {:.2}{problem}",
        report.tokens_per_second, report.client_utilisation
    )
}

/// The `inflight` script that this process runs, or the one on the PATH.
pub(crate) fn own_command() -> String {
    let arguments = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    arguments
        .split(|byte| *byte == 0)
        .filter_map(|argument| std::str::from_utf8(argument).ok())
        .find(|argument| {
            std::path::Path::new(argument)
                .file_name()
                .is_some_and(|n| n == "inflight")
        })
        .unwrap_or("inflight")
        .to_owned()
}
