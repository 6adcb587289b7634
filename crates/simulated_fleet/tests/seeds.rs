//! Some seeds of the simulated fleet: nothing is broken, and the same seed is the same history.

#![allow(clippy::print_stdout, reason = "what CI shows of a failure")]

use std::path::Path;

use inflight_simulated_fleet::{Report, run_in_process};

/// The seeds that CI simulates.
const SEEDS: std::ops::Range<u64> = 0..24;
/// Those that are simulated twice.
const TWICE: std::ops::Range<u64> = 0..4;

fn simulated(seeds: std::ops::Range<u64>) -> Vec<(u64, Report)> {
    let program = Path::new(env!("CARGO_BIN_EXE_inflight-simulated-fleet"));
    let middle = seeds.start + (seeds.end - seeds.start) / 2;
    let run = |seeds: std::ops::Range<u64>| {
        let reports = seeds.map(|seed| (seed, run_in_process(program, seed)));
        reports.collect::<Vec<_>>()
    };
    // Two at once: each is a process of one thread.
    std::thread::scope(|scope| {
        let second = scope.spawn(|| run(middle..seeds.end));
        let mut reports = run(seeds.start..middle);
        reports.extend(second.join().expect("the seeds are simulated"));
        reports
    })
}

#[test]
fn no_invariant_breaks_and_the_same_seed_is_the_same_history() {
    let reports = simulated(SEEDS);
    let mut sums = Report::default();
    for (seed, report) in &reports {
        for broken in &report.broken {
            println!("make simulate SEED={seed}  # {broken}");
        }
        sums.add(report);
    }
    assert!(sums.broken.is_empty(), "{:#?}", sums.broken);
    // The seeds show something only if things go wrong in them, and right as well.
    assert!(sums.faults > 50 && sums.errors > 0, "{sums:?}");
    // Much is refused where nothing goes wrong, and many ask for few places.
    let mut faulty = Report::default();
    let with_faults = reports.iter().filter(|(_, report)| report.faults > 0);
    with_faults.for_each(|(_, report)| faulty.add(report));
    assert!(faulty.whole > 5 * faulty.errors, "{faulty:?}");
    for (seed, again) in simulated(TWICE) {
        let first = reports.iter().find(|(other, _)| *other == seed);
        assert_eq!(first.map(|(_, report)| report), Some(&again), "seed {seed}");
    }
}
