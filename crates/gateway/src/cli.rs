//! The command: arguments in, exit code out. Owns signals and the runtime; used by the standalone binary
//! and the Python package.
//!
//! SIGTERM and SIGINT let open requests finish for the grace period. SIGUSR1 says that another gateway accepts on
//! the same sockets: this one stops accepting and ends with its last request, however long that takes.
//!
//! Exit codes: 0 after a requested shutdown, 1 for a failure, 2 for wrong usage, 128 + n when a second
//! signal n ended the draining early.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::FromArgMatches;
use inflight_http_server::Listeners;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::log::{flush_log, start_log, write_line};
use crate::option_layers::layered;
use crate::options::{self, GatewayOptions};
use crate::run::{self, ServeError};

/// Files in addition to the clients' connections: those to workers, logs, and what the runtime opens.
const OTHER_FILES: u64 = 256;

/// Runs the gateway with the process's own arguments. The word `gateway` may come first, as the Python
/// package's command has it, so that container files may name either.
pub fn main() -> ExitCode {
    let code = main_with_args(without_command(std::env::args_os()));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn without_command(arguments: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let is_command = |(place, word): &(usize, OsString)| *place == 1 && word == "gateway";
    let others = arguments.enumerate().filter(move |one| !is_command(one));
    others.map(|(_, word)| word)
}

/// Runs the gateway until a signal ends it; `arguments` starts with the program's name. Blocks; under
/// Python, call it with the GIL released. Returns the exit code.
pub fn main_with_args<I, T>(arguments: I) -> i32
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let command = options::command();
    let arguments = arguments.into_iter().map(Into::into).collect();
    let layered = match layered(&command, arguments, |name| std::env::var(name).ok()) {
        Ok(layered) => layered,
        Err(reason) => {
            report(&format!("error: {reason}"));
            return 2;
        }
    };
    let matches = command.try_get_matches_from(&layered.arguments);
    let options = match matches.and_then(|matches| GatewayOptions::from_arg_matches(&matches)) {
        Ok(options) => options,
        Err(error) => {
            // Help and version come as "errors" with exit code 0 and go to stdout.
            let _ = error.print();
            if let Some(origin) = layered.origin_of(&error.to_string()) {
                report(&format!("The value is from {origin}."));
            }
            return error.exit_code();
        }
    };
    if let Err(error) = start_log(&options.log, options.log_format) {
        report(&format!(
            "error: `--log {}` is not a valid filter: {error}",
            options.log
        ));
        return 2;
    }
    for notice in &layered.notices {
        tracing::warn!("{notice}");
    }
    if layered.has_public_key {
        tracing::warn!(
            "everyone on this machine can read the key of `--api-key`; use `INFLIGHT_API_KEY` or `--api-key-file`"
        );
    }
    raise_open_files(options.max_connections);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if options.threads > 0 {
        builder.worker_threads(options.threads);
    }
    let runtime = match builder.enable_all().thread_name("gateway").build() {
        Ok(runtime) => runtime,
        Err(error) => {
            report(&format!("error: cannot start the runtime: {error}"));
            flush_log();
            return 1;
        }
    };
    let code = runtime.block_on(run(&options));
    // A tokenizer at work on a huge prompt is not waited for.
    runtime.shutdown_background();
    flush_log();
    code
}

/// Allows this process as many open files as the system lets it have: the usual soft limit of 1,024 is fewer than the
/// connections that it may accept.
fn raise_open_files(max_connections: usize) {
    match rlimit::increase_nofile_limit(rlimit::INFINITY) {
        Ok(limit) if limit >= (max_connections as u64).saturating_add(OTHER_FILES) => {}
        Ok(limit) => tracing::warn!(
            limit,
            max_connections,
            "too few open files for `--max-connections`; raise the hard limit (`ulimit -Hn`, `LimitNOFILE=`)"
        ),
        Err(error) => tracing::warn!(%error, "cannot raise the limit of open files"),
    }
}

async fn run(options: &GatewayOptions) -> i32 {
    let signals = signal(SignalKind::interrupt()).and_then(|interrupt| {
        let terminate = signal(SignalKind::terminate())?;
        Ok((interrupt, terminate, signal(SignalKind::user_defined1())?))
    });
    let (mut interrupt, mut terminate, mut hand_over) = match signals {
        Ok(signals) => signals,
        Err(error) => {
            report(&format!("error: cannot handle signals: {error}"));
            return 1;
        }
    };
    let listeners = match Listeners::from_environment() {
        Ok(listeners) => listeners,
        Err(error) => {
            report(&format!("error: cannot take over the sockets: {error}"));
            return 1;
        }
    };
    let asked = CancellationToken::new();
    let scheme = match options.tls_certificate {
        Some(_) => "https",
        None => "http",
    };
    let on_bound = |address| {
        report(&format!(
            "inflight gateway: listening on {scheme}://{address}"
        ))
    };
    let handed_over = async {
        hand_over.recv().await;
        tracing::info!("another gateway has taken over; ending with the last request");
    };
    let shutdown = asked.cancelled();
    let serve = run::serve_on(listeners, options, on_bound, handed_over, shutdown);
    tokio::pin!(serve);
    loop {
        let number = tokio::select! {
            result = &mut serve => return match result {
                Ok(()) => 0,
                Err(error) => {
                    report(&format!("error: {}", inflight_base::error_chain(&error)));
                    match error {
                        ServeError::Kubernetes(_)
                        | ServeError::Tokenizer(_)
                        | ServeError::Tls(_)
                        | ServeError::Traces(_)
                        | ServeError::Batches(_)
                        | ServeError::UpstreamTls(_) => 2,
                        ServeError::Bind { .. } => 1,
                    }
                }
            },
            _ = interrupt.recv() => 2,
            _ = terminate.recv() => 15,
        };
        if asked.is_cancelled() {
            return 128 + number;
        }
        tracing::info!("shutting down; a second signal exits at once");
        asked.cancel();
    }
}

/// One line for people and supervisors, whatever the log filter says.
fn report(line: &str) {
    write_line(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_may_be_named_once() {
        let left = |words: &[&str]| -> Vec<OsString> {
            without_command(words.iter().map(OsString::from)).collect()
        };
        assert_eq!(left(&["x", "gateway", "--port=1"]), ["x", "--port=1"]);
        assert_eq!(
            left(&["x", "--host", "gateway"]),
            ["x", "--host", "gateway"]
        );
        assert_eq!(
            left(&["gateway", "gateway", "gateway"]),
            ["gateway", "gateway"]
        );
    }

    #[test]
    fn exit_codes_tell_help_from_mistakes_from_failures() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port().to_string();
        let with = |extra: &[&str]| {
            let fixed = ["gateway", "--worker", "127.0.0.1:9", "--port", &port];
            main_with_args(fixed.iter().chain(extra).map(|text| (*text).to_owned()))
        };
        assert_eq!(main_with_args(["gateway", "--version"]), 0);
        assert_eq!(main_with_args(["gateway"]), 2, "no worker");
        assert_eq!(with(&["--port", "x"]), 2);
        assert_eq!(with(&["--log", "=="]), 2);
        assert_eq!(with(&[]), 1, "the port is taken");
    }
}
