//! The command line of `inflight simulate`. Owns options, defaults, progress and exit codes.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::ErrorKind;

use crate::ceiling::ceiling;
use crate::fleet::{Apart, Arrivals, Disaggregate, Fleet};
use crate::goal::{Goal, workers_for};
use crate::plot::page;
use crate::policy::Policy;
use crate::run::{run, run_apart};
use crate::table::{Objective, Row, json, phases_json, phases_text, text};
use crate::trace::Trace;
use crate::worker::Machine;

const EXIT_OK: i32 = 0;
/// A file cannot be read or written.
const EXIT_FAILED: i32 = 1;
/// The command line makes no sense.
const EXIT_USAGE: i32 = 2;
/// Requests between two updates of the progress bar are the run's; this is its width.
const BAR: usize = 24;

/// Compare ways to choose a worker, over a trace in virtual time.
///
/// Runs Inflight's own routing code and formulas of the field over a recorded trace, without a server or a GPU. A
/// worker computes prompts next to its answers, caches their blocks and forgets the least recently used.
#[derive(Debug, Parser)]
struct Options {
    /// Trace in Mooncake's form: a JSON object per line with `timestamp`, `input_length`, `output_length` and
    /// `hash_ids`.
    trace: PathBuf,
    /// Workers.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    workers: u32,
    /// Gateways, each with what it hears itself.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    gateways: u32,
    /// How to choose a worker [default: every way].
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',')]
    policy: Vec<Policy>,
    /// How many times as fast as recorded requests come.
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0, value_parser = positive)]
    rate: f64,
    /// When requests come.
    #[arg(long, value_name = "NAME", value_enum, default_value = "recorded")]
    arrivals: Arrivals,
    /// Percentage of workers' reports that do not reach a gateway.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percentage)]
    lost: f64,
    /// Blocks of 512 tokens that a worker caches; the default is a 32B model on two H200.
    #[arg(long, value_name = "N", default_value_t = 1490, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    blocks: u32,
    /// Prompt tokens that a worker computes in a second; the default is of the same machine.
    #[arg(long, value_name = "TOKENS", default_value_t = 12_000.0, value_parser = positive)]
    prompt_tokens_per_s: f64,
    /// Milliseconds between the tokens of an answer that is alone; the default is of the same machine.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 10.0, value_parser = positive)]
    token_ms: f64,
    /// Find the fewest workers whose first tokens come within so many seconds, instead of `--workers`.
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    goal: Option<f64>,
    /// Percentage of requests that must meet `--goal`.
    #[arg(long, value_name = "PERCENT", default_value_t = 90.0, value_parser = percentage)]
    goal_percent: f64,
    /// Of the workers, those that compute prompts for the others; compares what is split with `--disaggregate` `auto`,
    /// `always` and `never`, and the same number of workers that are all for both phases.
    #[arg(long, value_name = "N", conflicts_with_all = ["policy", "goal"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    context_workers: Option<u32>,
    /// Tokens whose blocks a worker fetches from another one in a second; the default is a model of 8B on H200s of one
    /// host.
    #[arg(long, value_name = "TOKENS", default_value_t = 65_000.0, value_parser = positive)]
    #[arg(requires = "context_workers")]
    transfer_tokens_per_s: f64,
    /// Milliseconds to the first token, at most, of a request that meets the objective.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 2_000.0, value_parser = positive)]
    #[arg(requires = "context_workers")]
    first_token_ms: f64,
    /// Mean milliseconds between tokens, at most, of a request that meets the objective.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 25.0, value_parser = positive)]
    #[arg(requires = "context_workers")]
    inter_token_ms: f64,
    /// Seed of which reports are lost.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// File for an HTML page with the distribution of the time to the first token.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print no progress.
    #[arg(short, long)]
    quiet: bool,
}

/// Runs the command; `args` start with the program's name. Returns the exit code.
pub fn simulate_main<I, T>(args: I) -> i32
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    let name = args
        .first()
        .and_then(|name| name.to_str())
        .map(String::from);
    let mut command = <Options as clap::CommandFactory>::command();
    if let Some(name) = name.filter(|name| name.starts_with("inflight ")) {
        command = command.bin_name(name);
    }
    let parsed = command.try_get_matches_from_mut(args);
    let options =
        parsed.and_then(|found| <Options as clap::FromArgMatches>::from_arg_matches(&found));
    let options = options.and_then(|options| match options.problem() {
        Some(problem) => Err(command.error(ErrorKind::ValueValidation, problem)),
        None => Ok(options),
    });
    let options = match options {
        Ok(options) => options,
        Err(error) => {
            // What cannot be printed cannot be reported either.
            let _ = error.print();
            return if error.use_stderr() {
                EXIT_USAGE
            } else {
                EXIT_OK
            };
        }
    };
    match simulate(&options) {
        Ok(printed) => match std::io::stdout().write_all(printed.as_bytes()) {
            Ok(()) => EXIT_OK,
            Err(_) => EXIT_FAILED,
        },
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            EXIT_FAILED
        }
    }
}

fn simulate(options: &Options) -> Result<String, String> {
    let trace = read(&options.trace)?;
    let fleet = options.fleet();
    if let Some(context_workers) = options.context_workers {
        return compare_phases(options, &trace, &fleet, context_workers);
    }
    let policies = if options.policy.is_empty() {
        &Policy::ALL[..]
    } else {
        &options.policy
    };
    let ceiling = ceiling(&trace, fleet.machine.blocks * fleet.workers as usize);
    let mut rows = Vec::new();
    for (place, policy) in policies.iter().enumerate() {
        let mut bar = Bar::new(
            options,
            &format!("{}/{} {}", place + 1, policies.len(), policy.name()),
        );
        let (fleet, needed) = match options.goal {
            None => (fleet, None),
            Some(seconds) => {
                let goal = Goal {
                    seconds,
                    percent: options.goal_percent,
                };
                let needed = workers_for(&trace, &fleet, *policy, goal, &mut |_| bar.show(0, 0));
                let workers = needed.unwrap_or(fleet.workers);
                (Fleet { workers, ..fleet }, Some(needed))
            }
        };
        let total = trace.requests.len();
        let figures = run(&trace, &fleet, *policy, &mut |ended| bar.show(ended, total));
        bar.clear();
        rows.push(Row {
            name: policy.name(),
            figures,
            needed,
        });
    }
    plot(options, &trace, &rows)?;
    Ok(if options.json {
        json(ceiling, &rows)
    } else {
        text(&title(options, &trace), ceiling, &rows)
    })
}

fn compare_phases(
    options: &Options,
    trace: &Trace,
    fleet: &Fleet,
    context_workers: u32,
) -> Result<String, String> {
    let mut rows = Vec::new();
    for (place, disaggregate) in Disaggregate::ALL.into_iter().enumerate() {
        let name = disaggregate.name();
        let of = Disaggregate::ALL.len();
        let mut bar = Bar::new(options, &format!("{}/{of} {name}", place + 1));
        let apart = Apart {
            context_workers,
            disaggregate,
            transfer_tokens_per_s: options.transfer_tokens_per_s,
        };
        let total = trace.requests.len();
        let figures = run_apart(trace, fleet, &apart, &mut |ended| bar.show(ended, total));
        bar.clear();
        rows.push(Row {
            name,
            figures,
            needed: None,
        });
    }
    plot(options, trace, &rows)?;
    let objective = Objective {
        first_token_s: options.first_token_ms / 1e3,
        between_s: options.inter_token_ms / 1e3,
    };
    Ok(if options.json {
        phases_json(objective, &rows)
    } else {
        phases_text(&title(options, trace), objective, &rows)
    })
}

fn plot(options: &Options, trace: &Trace, rows: &[Row]) -> Result<(), String> {
    let Some(path) = &options.plot else {
        return Ok(());
    };
    std::fs::write(path, page(&title(options, trace), rows))
        .map_err(|error| format!("`{}` cannot be written: {error}", path.display()))
}

fn read(path: &Path) -> Result<Trace, String> {
    let shown = path.display();
    let file =
        File::open(path).map_err(|error| format!("the trace `{shown}` cannot be read: {error}"))?;
    Trace::read(BufReader::new(file))
        .map_err(|error| format!("the trace `{shown}` cannot be read: {error}"))
}

impl Options {
    /// Why the options do not fit one another.
    fn problem(&self) -> Option<String> {
        let contexts = self.context_workers?;
        let workers = self.workers;
        (contexts >= workers).then(|| {
            format!(
                "`--context-workers` must be below `--workers`, which is `{workers}`: others generate what \
                 follows; got `{contexts}`"
            )
        })
    }

    fn fleet(&self) -> Fleet {
        Fleet {
            workers: self.workers,
            gateways: self.gateways,
            rate: self.rate,
            arrivals: self.arrivals,
            lost: self.lost / 100.0,
            machine: Machine {
                blocks: self.blocks as usize,
                prompt_tokens_per_s: self.prompt_tokens_per_s,
                token_s: self.token_ms / 1e3,
            },
            seed: self.seed,
        }
    }
}

/// What was run, in a line.
fn title(options: &Options, trace: &Trace) -> String {
    let name = options
        .trace
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    let workers = match options.goal {
        None => match options.context_workers {
            None => format!("{} workers", options.workers),
            Some(contexts) => format!(
                "{} workers, {contexts} of them for contexts",
                options.workers
            ),
        },
        Some(goal) => format!("{}% within {goal} s", options.goal_percent),
    };
    let arrivals = match options.arrivals {
        Arrivals::Recorded => "as recorded",
        Arrivals::ThinkTime => "with think time",
        Arrivals::Spread => "as recorded, spread",
    };
    let requests = trace.requests.len();
    let (gateways, rate, lost) = (options.gateways, options.rate, options.lost);
    format!(
        "{name}: {requests} requests {arrivals} at rate {rate}, {workers}, {gateways} gateways, {lost}% lost"
    )
}

fn positive(text: &str) -> Result<f64, String> {
    let value: f64 = text
        .parse()
        .map_err(|_| String::from("it is not a number"))?;
    if value > 0.0 && value <= 1e9 {
        Ok(value)
    } else {
        Err(String::from("it must be above 0 and at most 1e9"))
    }
}

fn percentage(text: &str) -> Result<f64, String> {
    let value: f64 = text
        .parse()
        .map_err(|_| String::from("it is not a number"))?;
    if (0.0..=100.0).contains(&value) {
        Ok(value)
    } else {
        Err(String::from("it must be from 0 to 100"))
    }
}

/// One line in a terminal that shows how far a run is; nothing elsewhere.
struct Bar {
    label: String,
    is_shown: bool,
}

impl Bar {
    fn new(options: &Options, label: &str) -> Self {
        Self {
            label: label.to_owned(),
            is_shown: !options.quiet && std::io::stderr().is_terminal(),
        }
    }

    fn show(&self, ended: usize, total: usize) {
        if self.is_shown {
            let filled = BAR * ended / total.max(1);
            let (done, left) = ("█".repeat(filled), "░".repeat(BAR - filled));
            let _ = write!(
                std::io::stderr(),
                "\r\x1b[2K{} {done}{left} {ended} of {total}",
                self.label
            );
        }
    }

    fn clear(&mut self) {
        if self.is_shown {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}
