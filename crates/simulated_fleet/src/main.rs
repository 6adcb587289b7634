//! `make simulate`: fresh seeds until interrupted, or those that are named. Prints a line of progress each second, and
//! for a broken invariant one line that repeats it.

#![allow(clippy::print_stdout, reason = "a command")]

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use inflight_simulated_fleet::{Report, run};

/// Simulate a gateway, workers and clients with faults, one seed after another.
#[derive(Debug, Parser)]
struct Options {
    /// First seed. By default, one that the time decides
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Seeds to simulate. By default, until interrupted, or one if `--seed` is given
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,

    /// Print every event of a run
    #[arg(long)]
    events: bool,

    /// Print the hash of each run's events
    #[arg(long)]
    hashes: bool,
}

/// Sums over seeds.
#[derive(Default)]
struct Sums {
    seeds: u64,
    broken: u64,
    requests: u64,
    whole: u64,
    errors: u64,
    cut: u64,
    left: u64,
    faults: u64,
    virtual_time: Duration,
}

impl Sums {
    fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.broken += u64::from(!report.broken.is_empty());
        self.requests += report.requests;
        self.whole += report.whole;
        self.errors += report.errors;
        self.cut += report.cut;
        self.left += report.left;
        self.faults += report.faults;
        self.virtual_time += report.took;
    }

    fn print(&self, took: Duration) {
        println!(
            "seeds={} broken={} requests={} whole={} errors={} cut={} left={} faults={} virtual_s_per_s={:.0}",
            self.seeds,
            self.broken,
            self.requests,
            self.whole,
            self.errors,
            self.cut,
            self.left,
            self.faults,
            self.virtual_time.as_secs_f64() / took.as_secs_f64().max(0.001),
        );
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let fresh = SystemTime::now().duration_since(UNIX_EPOCH);
    let fresh = fresh.map_or(0, |since| since.as_micros() as u64);
    let first = options.seed.unwrap_or(fresh);
    let seeds = options.seeds.or(options.seed.map(|_| 1)).unwrap_or(u64::MAX);
    let began = Instant::now();
    let mut printed = began;
    let mut sums = Sums::default();
    for seed in (0..seeds).map(|place| first.wrapping_add(place)) {
        let report = run(seed, options.events);
        sums.add(&report);
        if let Some(broken) = report.broken.first() {
            println!("broken: make simulate SEED={seed} # {broken}");
        }
        if options.hashes {
            println!("seed={seed} history={:016x} events={}", report.history, report.events);
        }
        if printed.elapsed() >= Duration::from_secs(1) {
            printed = Instant::now();
            sums.print(began.elapsed());
        }
    }
    sums.print(began.elapsed());
    match sums.broken {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
