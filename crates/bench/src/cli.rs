//! The command line of `inflight bench`. Owns options, defaults and exit codes.

use std::ffi::OsString;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::floor::{Floor, FloorOptions};
use crate::load::replay::{self, Replay};
use crate::load::trace::{self, TraceOptions};
use crate::load::{self, Fields, LoadError, Target, Wire, Workload, first_model};
use crate::measure::Objective;
use crate::process;
use crate::suite::{self, SuiteOptions};

/// Everything measured, every stream whole.
const EXIT_OK: i32 = 0;
/// Streams were broken, or something could not be measured.
const EXIT_BROKEN: i32 = 1;
/// The command line makes no sense.
const EXIT_USAGE: i32 = 2;

/// The suite's OpenAI model where none is given: the embedded one.
const DEFAULT_OPENAI_MODEL: &str = "inflight-demo";
/// The KServe model that takes token ids.
const DEFAULT_KSERVE_MODEL: &str = "tensorrt_llm";

#[derive(Debug, Parser)]
#[command(about = "Measure a gateway or a worker under load.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Load one server with concurrent streams and report the results.
    Load(LoadArgs),
    /// Replay a trace against a gateway, each request when it is due, and report the results.
    Replay(ReplayArgs),
    /// Run a minimal server that writes one ready event per token, for comparison.
    Floor(FloorArgs),
    /// Start the servers one after another, each alone on a core, and compare them with the floor.
    Suite(SuiteArgs),
}

#[derive(Debug, Args)]
struct LoadArgs {
    /// The server.
    #[arg(value_name = "HOST:PORT")]
    address: String,
    /// What the server speaks.
    #[arg(long, value_name = "NAME", value_enum, default_value = "openai")]
    wire: Wire,
    /// Concurrent streams.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=16384))]
    streams: u32,
    /// Tokens that each request asks for.
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// Tokens (KServe) or words (OpenAI, text over `generate`) of each prompt.
    #[arg(long, value_name = "TOKENS", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    prompt_tokens: u32,
    /// Requests in all [default: four per stream, unless --duration-s is given].
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// Start no request after so many seconds; those that run are finished.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration_s: Option<Duration>,
    /// Requests before the measured ones.
    #[arg(long, value_name = "N", default_value_t = 0)]
    warmup: u64,
    /// Spread the streams' first requests over so many milliseconds.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0)]
    ramp_ms: u64,
    /// Stop the run after this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "300")]
    timeout_s: Duration,
    /// The model's name [default: the first that the server lists; tensorrt_llm over KServe].
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Sent as a bearer token to a gateway.
    #[arg(
        long,
        value_name = "KEY",
        env = "INFLIGHT_API_KEY",
        hide_env_values = true
    )]
    api_key: Option<String>,
    /// JSON object whose fields are added to each request of chat, such as `{"tools": []}`.
    #[arg(long, value_name = "JSON", value_parser = fields)]
    body: Option<Fields>,
    /// HTTP/2 connections that `--wire kserve` spreads its streams over.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    connections: u32,
    /// Process id of the server, for its CPU time per token and its memory.
    #[arg(long, value_name = "N")]
    pid: Option<u32>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ReplayArgs {
    /// The server, which takes token ids at `/v1/completions`.
    #[arg(value_name = "HOST:PORT")]
    address: String,
    /// JSON lines with `timestamp` in milliseconds, `input_length`, `output_length` and `hash_ids`, one for each
    /// 512 tokens; `group` and `model` are optional.
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Let the trace's time pass so many times as fast.
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = factor)]
    speed: f64,
    /// Multiply the lengths of prompts, answers and hashed blocks by this.
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = factor)]
    length_scale: f64,
    /// Send only so many requests of the trace, the first ones.
    #[arg(long, value_name = "N")]
    requests: Option<usize>,
    /// Run so many requests at a time instead, whenever they are due.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16384))]
    streams: Option<u32>,
    /// Token ids are below this.
    #[arg(long, value_name = "N", default_value_t = 32_000, value_parser = clap::value_parser!(u32).range(1..))]
    vocab_size: u32,
    /// Seed of the token ids; another one gives prompts that no cache has.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Milliseconds to the first token, at most, of a request that meets the objective.
    #[arg(long, value_name = "MILLISECONDS", default_value = "500", value_parser = factor)]
    first_token_ms: f64,
    /// Mean milliseconds between tokens, at most, of a request that meets the objective.
    #[arg(long, value_name = "MILLISECONDS", default_value = "25", value_parser = factor)]
    inter_token_ms: f64,
    /// Stop the run after this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "300")]
    timeout_s: Duration,
    /// The model's name [default: the first that the server lists].
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Sent as a bearer token to the gateway.
    #[arg(
        long,
        value_name = "KEY",
        env = "INFLIGHT_API_KEY",
        hide_env_values = true
    )]
    api_key: Option<String>,
    /// JSON object whose fields are added to each request, such as `{"temperature": 0}`.
    #[arg(long, value_name = "JSON", value_parser = fields)]
    body: Option<Fields>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct FloorArgs {
    /// Where to listen; port 0 takes any that is free. The address is printed.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Milliseconds between the tokens of a stream; 0: as fast as the client reads.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0)]
    pace_ms: u64,
}

#[derive(Debug, Args)]
struct SuiteArgs {
    /// Stream counts to measure.
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "1,64,1000"
    )]
    streams: Vec<u32>,
    /// Tokens that each request asks for.
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// Milliseconds between tokens in the paced runs.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pace_ms: u64,
    /// Seconds of each saturated run.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "3")]
    duration_s: Duration,
    /// Times that everything is measured; medians are reported.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Start no further run after so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1500")]
    limit_s: Duration,
    /// The core of the server that is measured.
    #[arg(long, value_name = "N", default_value_t = 0)]
    server_core: usize,
    /// The core of everything else.
    #[arg(long, value_name = "N", default_value_t = 1)]
    client_core: usize,
    /// Measure only these, by the names that the table shows.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// The `inflight` command, for the templates below [default: the one that runs this].
    #[arg(long, value_name = "PATH")]
    inflight: Option<String>,
    /// How the gateway is started. Templates are split at spaces, then {inflight}, {port},
    /// {metrics_port}, {worker_port}, {pace_ms} and {step_us} are filled in; an empty one leaves its
    /// server out.
    #[arg(long, value_name = "TEMPLATE", default_value = suite::GATEWAY_COMMAND)]
    gateway_command: String,
    /// How a worker with the simulated executor is started.
    #[arg(long, value_name = "TEMPLATE", default_value = suite::WORKER_COMMAND)]
    worker_command: String,
    /// How a worker with a scripted Python executor is started.
    #[arg(long, value_name = "TEMPLATE", default_value = suite::SCRIPTED_COMMAND)]
    scripted_command: String,
    /// How the floor is started.
    #[arg(long, value_name = "TEMPLATE", default_value = suite::FLOOR_COMMAND)]
    floor_command: String,
    /// The OpenAI model name that the gateway serves.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_OPENAI_MODEL)]
    model: String,
    /// Also write all figures there.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Also write the tables there.
    #[arg(long, value_name = "PATH")]
    markdown: Option<PathBuf>,
}

fn fields(text: &str) -> Result<Fields, String> {
    serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if (1e-6..=1e6).contains(&factor) => Ok(factor),
        Ok(_) => Err("must be from 0.000001 to 1000000".to_owned()),
        Err(_) => Err("not a number".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() && seconds <= 86_400.0 => Ok(duration),
        _ => Err("must be above 0 and at most a day".to_owned()),
    }
}

/// Runs `inflight bench`. `argv` begins with the program's name; the result is the exit code: 0 when
/// every stream came whole, 1 when not, 2 for a command line that makes no sense.
pub fn bench_main<I, T>(argv: I) -> i32
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    process::end_on_interrupt();
    let cli = match Cli::try_parse_from(argv) {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing is left to do where even the message cannot be printed.
            let _ = error.print();
            return if error.use_stderr() {
                EXIT_USAGE
            } else {
                EXIT_OK
            };
        }
    };
    match cli.command {
        Command::Load(args) => load_command(args),
        Command::Replay(args) => replay_command(args),
        Command::Floor(args) => floor_command(&args),
        Command::Suite(args) => suite_command(args),
    }
}

/// An address as users write it, without what a URL adds.
fn bare(address: &str) -> &str {
    address
        .strip_prefix("http://")
        .unwrap_or(address)
        .trim_end_matches('/')
}

fn load_command(args: LoadArgs) -> i32 {
    let address = bare(&args.address);
    let model = match (args.model, args.wire) {
        (Some(model), _) => Ok(model),
        (None, Wire::Openai) => first_model(address, args.api_key.as_deref()),
        (None, Wire::Generate | Wire::Kserve | Wire::KserveStep) => {
            Ok(DEFAULT_KSERVE_MODEL.to_owned())
        }
    };
    let model = match model {
        Ok(model) => model,
        Err(error) => return fail(&error),
    };
    let target = Target {
        wire: args.wire,
        address: address.to_owned(),
        model,
        api_key: args.api_key,
        connections: args.connections as usize,
        pid: args.pid,
    };
    let requests = args.requests.or_else(|| match args.duration_s {
        Some(_) => None,
        None => Some(4 * u64::from(args.streams)),
    });
    let workload = Workload {
        streams: args.streams as usize,
        tokens: args.tokens,
        prompt_tokens: args.prompt_tokens,
        fields: args.body.unwrap_or_default(),
        requests,
        duration: args.duration_s,
        warmup: args.warmup,
        ramp: Duration::from_millis(args.ramp_ms),
        timeout: args.timeout_s,
    };
    match load::run(&target, &workload) {
        Ok(report) => show(&report, report.table(), args.json, report.is_clean()),
        Err(error) => fail(&error),
    }
}

/// Prints what was measured; the exit code.
fn show(report: &impl serde::Serialize, table: String, as_json: bool, is_clean: bool) -> i32 {
    let text = if as_json {
        serde_json::to_string_pretty(report).unwrap_or_else(|error| error.to_string())
    } else {
        table
    };
    print(&text);
    if is_clean { EXIT_OK } else { EXIT_BROKEN }
}

fn replay_command(args: ReplayArgs) -> i32 {
    let options = TraceOptions {
        length_scale: args.length_scale,
        speed: args.speed,
        vocab_size: args.vocab_size,
        seed: args.seed,
        requests: args.requests,
    };
    let planned = match trace::read(&args.trace, &options) {
        Ok(planned) => planned,
        Err(error) => return fail(&error),
    };
    let address = bare(&args.address);
    let model = args.model.map_or_else(
        || first_model(address, args.api_key.as_deref()),
        Ok::<_, LoadError>,
    );
    let model = match model {
        Ok(model) => model,
        Err(error) => return fail(&error),
    };
    let target = Target {
        wire: Wire::Openai,
        address: address.to_owned(),
        model,
        api_key: args.api_key,
        connections: 1,
        pid: None,
    };
    let replay = Replay {
        planned,
        streams: args.streams.map(|streams| streams as usize),
        fields: args.body.unwrap_or_default(),
        objective: Objective {
            first_token: Duration::from_secs_f64(args.first_token_ms / 1e3),
            per_token: Duration::from_secs_f64(args.inter_token_ms / 1e3),
        },
        timeout: args.timeout_s,
    };
    match replay::run(&target, replay) {
        Ok(report) => show(&report, report.table(), args.json, report.is_clean()),
        Err(error) => fail(&error),
    }
}

fn floor_command(args: &FloorArgs) -> i32 {
    process::raise_open_files();
    let options = FloorOptions {
        pace: Duration::from_millis(args.pace_ms),
    };
    let served = Floor::bind(args.listen, options).and_then(|mut floor| {
        print(&format!("listening on {}", floor.address()?));
        floor.serve(|| false)
    });
    match served {
        Ok(()) => EXIT_OK,
        Err(error) => {
            print_error(&format!(
                "error: the floor on `{}` failed: {error}",
                args.listen
            ));
            EXIT_BROKEN
        }
    }
}

fn suite_command(args: SuiteArgs) -> i32 {
    let options = SuiteOptions {
        streams: args
            .streams
            .iter()
            .map(|streams| *streams as usize)
            .collect(),
        tokens: args.tokens,
        pace: Duration::from_millis(args.pace_ms),
        duration: args.duration_s,
        rounds: args.rounds,
        limit: args.limit_s,
        server_core: args.server_core,
        client_core: args.client_core,
        only: args.only,
        inflight: args.inflight.unwrap_or_else(suite::own_command),
        gateway_command: args.gateway_command,
        worker_command: args.worker_command,
        scripted_command: args.scripted_command,
        floor_command: args.floor_command,
        model: args.model,
        kserve_model: DEFAULT_KSERVE_MODEL.to_owned(),
    };
    let results = suite::run(&options, &mut |line| print_error(line));
    let markdown = results.markdown();
    print(&markdown);
    let json = serde_json::to_string_pretty(&results).unwrap_or_else(|error| error.to_string());
    let mut code = if results.is_clean() {
        EXIT_OK
    } else {
        EXIT_BROKEN
    };
    for (path, text) in [(args.json, json), (args.markdown, markdown)] {
        if let Some(path) = path
            && let Err(error) = std::fs::write(&path, text + "\n")
        {
            print_error(&format!(
                "error: cannot write `{}`: {error}",
                path.display()
            ));
            code = EXIT_BROKEN;
        }
    }
    code
}

/// Prints an error and all its causes.
fn fail(error: &dyn std::error::Error) -> i32 {
    print_error(&format!("error: {}", inflight_base::error_chain(error)));
    EXIT_BROKEN
}

fn print(text: &str) {
    // A reader that has gone, e.g. `| head`, must not make it fail.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

fn print_error(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn exit_codes_tell_help_from_misuse() {
        for (arguments, code) in [
            (&["bench", "--help"][..], EXIT_OK),
            (&["bench", "load", "--help"], EXIT_OK),
            (&["bench"], EXIT_USAGE),
            (&["bench", "load"], EXIT_USAGE),
            (
                &["bench", "load", "localhost:1", "--streams", "0"],
                EXIT_USAGE,
            ),
            (
                &["bench", "load", "localhost:1", "--duration-s", "-1"],
                EXIT_USAGE,
            ),
            (&["bench", "load", "no such address"], EXIT_BROKEN),
        ] {
            assert_eq!(bench_main(arguments.iter().copied()), code, "{arguments:?}");
        }
    }
}
