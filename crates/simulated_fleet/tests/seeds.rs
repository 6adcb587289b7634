//! Some seeds of the simulated fleet: nothing is broken, and the same seed is the same history.

#![allow(clippy::print_stdout, reason = "what CI shows of a failure")]
#![allow(
    clippy::disallowed_methods,
    reason = "not simulated: it starts simulations"
)]

use std::path::Path;

use inflight_simulated_fleet::{Report, run_in_process};

/// The seeds that CI simulates.
const SEEDS: std::ops::Range<u64> = 0..24;
/// Seeds that have shown something: all is mended, or was a promise of the simulator's that nobody can keep, or its look.
const KEPT: [u64; 26] = [
    120, // A silence of 20 s and more: a stream of several KServe sequences left it after 20 s, and not 9 s, ...
    152, // ... as this one.
    1_000_167, // One connection of a worker had lost messages, and another one said that the worker was well.
    1_000_791, // A client's `timeout` began only once the gateway had asked a silent worker about the model.
    2_001_095, // A look at a worker that took until its next fault began.
    2_001_415, // An answer that a stop string had ended, and whose worker was lost with it, never ended.
    2_001_664, // A connection that broke by a protocol error was an internal error, over KServe.
    2_002_026, // A slowly read answer that is repeated came no further between losses.
    2_002_032, // The end of a worker on a connection that had lost messages: it shows as silence.
    2_002_509, // A request left a connection that had lost messages, 15 s later.
    2_002_829, // A reset on such a connection.
    2_003_462, // As 2,001,415, in one piece.
    2_004_239, // A KServe stream waited 10 s for a process that was over: its machine vanished and came back.
    20_000_077, // A question about a model waited for a machine that had vanished and was back, beyond a client's `timeout`.
    2_004_951, // A worker that was asked to end while a gateway met it: its KServe models were unknown.
    30_000_421, // An answer moved to a worker that had no room for it for 9 s.
    30_000_639, // What held a client back also held who looks whether workers are ready, ...
    30_001_871, // ... as here.
    40_000_845, // A client's `timeout` was not kept while its only worker, which was silent, was asked about the model.
    40_000_024, // All attempts to connect to a silent worker arrived at once.
    40_002_413, // Connections that lost messages while a worker wrote to them never ended there.
    40_011_840, // A KServe stream's connection lost messages for 80 ms: only HTTP/2's probes noticed, after 20 s.
    40_016_875, // A worker with four places refused the second prompt of a request that had begun, for 10 s.
    40_017_918, // What a lost worker had begun, and nobody had seen, waited 9 s at a silent one.
    40_026_246, // A client's `timeout` was not kept while the connection to its only worker was being opened.
    40_026_296, // What a slow reader took out of the gateway's memory was a sign of life of a worker that was lost.
];
/// Some of those that have all clients on one host.
const GATHERED: std::ops::Range<u64> = 10_000_000..10_000_008;
/// Some of those whose workers are for prompts or for what follows them.
const APART: std::ops::Range<u64> = 50_000_000..50_000_016;
/// Those that are simulated twice.
const TWICE: [u64; 7] = [0, 1, 2, 3, 10_000_000, 10_000_005, 50_000_000];

fn simulated(seeds: impl Iterator<Item = u64>) -> Vec<(u64, Report)> {
    let program = Path::new(env!("CARGO_BIN_EXE_inflight-simulated-fleet"));
    let seeds: Vec<u64> = seeds.collect();
    let run = |seeds: &[u64]| {
        let reports = seeds
            .iter()
            .map(|seed| (*seed, run_in_process(program, *seed)));
        reports.collect::<Vec<_>>()
    };
    let (first, second) = seeds.split_at(seeds.len() / 2);
    // Two at once: each is a process of one thread.
    std::thread::scope(|scope| {
        let second = scope.spawn(|| run(second));
        let mut reports = run(first);
        reports.extend(second.join().expect("the seeds are simulated"));
        reports
    })
}

#[test]
fn no_invariant_breaks_and_the_same_seed_is_the_same_history() {
    let reports = simulated(SEEDS.chain(KEPT).chain(GATHERED).chain(APART));
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
    // A worker was lost at each step from one worker to another.
    assert!(sums.steps.iter().all(|lost| *lost > 0), "{sums:?}");
    // Much is refused where nothing goes wrong, and many ask for few places.
    let mut faulty = Report::default();
    let with_faults = reports.iter();
    let with_faults = with_faults.filter(|(seed, it)| SEEDS.contains(seed) && it.faults > 0);
    with_faults.for_each(|(_, report)| faulty.add(report));
    assert!(faulty.whole > 5 * faulty.errors, "{faulty:?}");
    for (seed, again) in simulated(TWICE.into_iter()) {
        let first = reports.iter().find(|(other, _)| *other == seed);
        assert_eq!(first.map(|(_, report)| report), Some(&again), "seed {seed}");
    }
}
