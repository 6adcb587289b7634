//! `make simulate`: fresh seeds until interrupted, or those that are named. Prints a line of progress each second, and
//! for a broken invariant one line that repeats it.

#![allow(clippy::print_stdout, reason = "a command")]
#![allow(
    clippy::disallowed_methods,
    reason = "not simulated: it starts simulations"
)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use inflight_simulated_fleet::{Report, run, run_in_process};

/// Simulate a gateway, workers and clients with faults, one seed after another.
#[derive(Debug, Parser)]
struct Options {
    /// First seed. By default, one that the time decides
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Seeds to simulate. By default, one if `--seed` is given without
    /// `--seconds`, and else until interrupted
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,

    /// Begin no seed after so many seconds, and say what came of those before
    #[arg(long, value_name = "S")]
    seconds: Option<u64>,

    /// Seeds at once. By default, one per CPU
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,

    /// Stop at the first broken invariant
    #[arg(long)]
    until_broken: bool,

    /// Print the hash of each seed's events
    #[arg(long)]
    hashes: bool,

    /// Simulate this seed in this process, and print its report for the process that asked
    #[arg(long, value_name = "N")]
    only: Option<u64>,

    /// With `--only`, print every event and log line
    #[arg(long)]
    events: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(seed) = options.only {
        if options.events {
            let log = tracing_subscriber::fmt().with_writer(std::io::stderr);
            log.with_ansi(false).without_time().init();
        }
        println!("{}", run(seed, options.events).to_line());
        return ExitCode::SUCCESS;
    }
    let Ok(program) = std::env::current_exe() else {
        println!("error: the path of this program is unknown");
        return ExitCode::FAILURE;
    };
    simulate(&options, &program)
}

fn simulate(options: &Options, program: &Path) -> ExitCode {
    let fresh = SystemTime::now().duration_since(UNIX_EPOCH);
    let fresh = fresh.map_or(0, |since| since.as_micros() as u64);
    let first = options.seed.unwrap_or(fresh);
    let one = options
        .seed
        .filter(|_| options.seconds.is_none())
        .map(|_| 1);
    let seeds = options.seeds.or(one);
    let jobs = std::thread::available_parallelism().map_or(1, |count| count.get());
    let began = Instant::now();
    let mut printed = began;
    let (mut simulated, mut sums) = (0, Report::default());
    let mut lines = Vec::new();
    let until = options.seconds.map(|s| began + Duration::from_secs(s));
    let jobs = options.jobs.unwrap_or(jobs);
    for (seed, report) in reports(program, first, seeds, until, jobs) {
        simulated += 1;
        sums.add(&report);
        if let Some(broken) = report.broken.first() {
            let line = format!("broken: make simulate SEED={seed}  # {broken}");
            println!("{line}");
            lines.push(line);
        }
        if options.hashes {
            println!(
                "seed={seed} history={:016x} events={}",
                report.history, report.events
            );
        }
        if options.until_broken && !report.broken.is_empty() {
            break;
        }
        if printed.elapsed() >= Duration::from_secs(1) {
            printed = Instant::now();
            print(simulated, &sums, began.elapsed());
        }
    }
    // Once more and together, where there was much between.
    if simulated > 1 && !options.until_broken {
        lines.iter().for_each(|line| println!("{line}"));
    }
    print(simulated, &sums, began.elapsed());
    match sums.broken.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// The reports of `seeds` from `first` on, as they come.
fn reports(
    program: &Path,
    first: u64,
    seeds: Option<u64>,
    until: Option<Instant>,
    jobs: usize,
) -> impl Iterator<Item = (u64, Report)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (sender, reports) = channel();
    let one = |program: PathBuf, sender: Sender<(u64, Report)>| {
        std::thread::spawn(move || {
            loop {
                let place = NEXT.fetch_add(1, Ordering::Relaxed);
                let is_late = until.is_some_and(|until| until <= Instant::now());
                if is_late || seeds.is_some_and(|seeds| place >= seeds) {
                    return;
                }
                let seed = first.wrapping_add(place);
                if sender.send((seed, run_in_process(&program, seed))).is_err() {
                    return;
                }
            }
        });
    };
    for _ in 0..jobs.max(1) {
        one(program.to_owned(), sender.clone());
    }
    reports.into_iter()
}

fn print(seeds: u64, sums: &Report, took: Duration) {
    println!(
        "seeds={seeds} broken={} requests={} whole={} errors={} cut={} left={} faults={} hand_overs={:?} s={:.0} \
         virtual_s_per_s={:.0}",
        sums.broken.len(),
        sums.requests,
        sums.whole,
        sums.errors,
        sums.cut,
        sums.left,
        sums.faults,
        sums.steps,
        took.as_secs_f64(),
        sums.virtual_ms as f64 / 1e3 / took.as_secs_f64().max(0.001),
    );
}
