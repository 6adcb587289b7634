//! What holds for every run, on a small trace: 40 conversations of 5 turns that begin with the same application prompt.

#![allow(clippy::unwrap_used)]

use inflight_simulate::{
    Apart, Arrivals, Disaggregate, Figures, Fleet, Machine, Policy, Trace, ceiling, run, run_apart,
    simulate_main,
};

const TRACE: &str = include_str!("conversations.jsonl");

fn fleet() -> Fleet {
    Fleet {
        workers: 4,
        gateways: 1,
        rate: 1.0,
        arrivals: Arrivals::Recorded,
        lost: 0.0,
        machine: Machine {
            blocks: 200,
            prompt_tokens_per_s: 4000.0,
            token_s: 0.025,
        },
        seed: 1,
    }
}

fn trace() -> Trace {
    Trace::read(TRACE.as_bytes()).unwrap()
}

fn figures(fleet: &Fleet, policy: Policy) -> Figures {
    run(&trace(), fleet, policy, &mut |_| {})
}

#[test]
fn every_request_gets_its_first_token_once_and_work_is_conserved() {
    let trace = trace();
    let input: u64 = trace
        .requests
        .iter()
        .map(|one| u64::from(one.input_tokens))
        .sum();
    for arrivals in [Arrivals::Recorded, Arrivals::ThinkTime, Arrivals::Spread] {
        for (gateways, lost) in [(1, 0.0), (3, 0.0), (3, 0.2)] {
            let fleet = Fleet {
                arrivals,
                gateways,
                lost,
                ..fleet()
            };
            for policy in Policy::ALL {
                let found = run(&trace, &fleet, policy, &mut |_| {});
                assert_eq!(
                    found.first_token_s.len(),
                    trace.requests.len(),
                    "{policy:?}"
                );
                assert!(found.first_token_s.is_sorted() && found.first_token_s[0] > 0.0);
                assert_eq!(found.input_tokens, input);
                let computed =
                    (input - found.cached_tokens) as f64 / fleet.machine.prompt_tokens_per_s;
                let busy: f64 = found.busy_s.iter().sum();
                assert!(
                    busy >= computed * 0.999 && busy < computed * 1.5,
                    "{policy:?} {busy} {computed}"
                );
            }
        }
    }
}

#[test]
fn a_run_repeats_and_no_policy_has_more_hits_than_one_cache_without_a_bound() {
    let most = ceiling(&trace(), usize::MAX);
    assert!(most > 0.5, "{most}");
    for policy in Policy::ALL {
        let fleet = Fleet {
            gateways: 2,
            lost: 0.1,
            ..fleet()
        };
        let (one, other) = (figures(&fleet, policy), figures(&fleet, policy));
        assert_eq!(one.first_token_s, other.first_token_s, "{policy:?}");
        assert!(one.hits() <= most + 1e-9, "{policy:?} {}", one.hits());
    }
}

#[test]
fn knowing_caches_pays() {
    let (ours, blind) = (
        figures(&fleet(), Policy::Inflight),
        figures(&fleet(), Policy::RoundRobin),
    );
    assert!(
        ours.hits() > blind.hits() + 0.2,
        "{} {}",
        ours.hits(),
        blind.hits()
    );
    assert!(ours.mean_s() < blind.mean_s());
}

fn apart(fleet: &Fleet, disaggregate: Disaggregate) -> Figures {
    let apart = Apart {
        context_workers: 1,
        disaggregate,
        transfer_tokens_per_s: 20_000.0,
    };
    run_apart(&trace(), fleet, &apart, &mut |_| {})
}

#[test]
fn every_token_comes_once_whoever_computes_the_prompt() {
    let trace = trace();
    let gaps: u32 = trace.requests.iter().map(|one| one.output_tokens - 1).sum();
    for arrivals in [Arrivals::Recorded, Arrivals::ThinkTime] {
        for (gateways, lost) in [(1, 0.0), (3, 0.2)] {
            let fleet = Fleet {
                arrivals,
                gateways,
                lost,
                ..fleet()
            };
            for which in Disaggregate::ALL {
                let found = apart(&fleet, which);
                let requests = trace.requests.len();
                assert_eq!(found.first_token_s.len(), requests, "{which:?}");
                assert_eq!(found.answered.len(), requests, "{which:?}");
                assert!(found.first_token_s[0] > 0.0);
                let tokens = found.gaps.tokens();
                assert!(
                    (tokens / f64::from(gaps) - 1.0).abs() < 1e-3,
                    "{which:?}: {tokens} of {gaps}"
                );
                // The two ways of counting the same waits.
                let between: f64 = (found.answered.iter().zip(&trace.requests))
                    .map(|(one, _)| one.answered_s - one.first_token_s)
                    .sum();
                let counted = found.gaps.mean_s() * tokens;
                assert!(
                    (between / counted - 1.0).abs() < 1e-2,
                    "{which:?}: {between} {counted}"
                );
                let split = match which {
                    Disaggregate::Both | Disaggregate::Never => 0.0..=0.0,
                    Disaggregate::Always => 1.0..=1.0,
                    Disaggregate::Auto => 0.01..=0.99,
                };
                assert!(split.contains(&found.split_share()), "{which:?}");
                assert_eq!(
                    apart(&fleet, which).first_token_s,
                    found.first_token_s,
                    "{which:?} repeats"
                );
            }
        }
    }
}

#[test]
fn prompts_elsewhere_leave_streams_alone_and_are_computed_there_only_where_that_pays() {
    let [both, never, always, auto] = Disaggregate::ALL.map(|which| apart(&fleet(), which));
    // An iteration of the busiest worker that only generates.
    let step = 0.025 * 1.5;
    assert!(always.gaps.percentile_s(99.0) < step);
    for disturbed in [&both, &never] {
        assert!(disturbed.gaps.percentile_s(99.0) > step);
    }
    assert!(auto.whole_s() < 1.02 * never.whole_s().min(always.whole_s()));
}

#[test]
fn a_crowd_does_not_teach_that_hand_overs_are_slow() {
    // As `tools/real_loads.py` sends: a crowd of short prompts, whose hand-overs wait for each other, a larger one, a long
    // prompt, and then the crowd that is looked at, with longer answers than all others.
    let mut lines = String::new();
    let mut add = |count: usize, at_ms: usize, input: usize, output: usize| {
        let names = vec!["0"; input / 512].join(",");
        for _ in 0..count {
            lines += &format!(
                "{{\"timestamp\": {at_ms}, \"input_length\": {input}, \"output_length\": {output}, \
                 \"hash_ids\": [{names}]}}\n"
            );
        }
    };
    add(64, 0, 128, 32);
    add(512, 5_000, 64, 16);
    add(1, 12_000, 32_768, 16);
    add(64, 20_000, 128, 200);
    let trace = Trace::read(lines.as_bytes()).unwrap();
    let fleet = Fleet {
        workers: 2,
        machine: Machine {
            blocks: 1600,
            prompt_tokens_per_s: 22_000.0,
            token_s: 0.0056,
        },
        ..fleet()
    };
    let [both, never, always, auto] = Disaggregate::ALL.map(|disaggregate| {
        let apart = Apart {
            context_workers: 1,
            disaggregate,
            transfer_tokens_per_s: 65_000.0,
        };
        let found = run_apart(&trace, &fleet, &apart, &mut |_| {});
        let last = found.answered.iter().filter(|one| one.tokens == 200);
        last.map(|one| one.first_token_s).sum::<f64>() / 64.0
    });
    // Both workers compute them.
    assert!(
        auto < 1.1 * both && 1.1 * both < 0.75 * never.min(always),
        "{auto} {both} {never} {always}"
    );
}

#[test]
fn lines_that_are_no_requests_are_named() {
    let good = r#"{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}"#;
    for (line, expected) in [
        ("{", "line 2: EOF while parsing an object"),
        (
            r#"{"timestamp": 0}"#,
            "line 2: missing field `input_length`",
        ),
        (
            r#"{"timestamp": -1, "input_length": 5, "output_length": 1, "hash_ids": []}"#,
            "line 2: `timestamp` must be from 0 to 1e13 milliseconds, got `-1`",
        ),
        (
            r#"{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}"#,
            "line 2: `input_length` must be from 1 to 100000000, got `0`",
        ),
        (
            r#"{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1]}"#,
            "line 2: `hash_ids` has `1` blocks, and `input_length` 1024 needs at least 2",
        ),
    ] {
        let error = Trace::read(format!("{good}\n{line}\n").as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    let long = format!("{good}\n{}", " ".repeat(2 << 20));
    assert!(
        Trace::read(long.as_bytes())
            .unwrap_err()
            .to_string()
            .contains("longer than")
    );
    assert_eq!(
        Trace::read(&b"\n"[..]).unwrap_err().to_string(),
        "it contains no request"
    );
}

#[test]
fn a_conversation_is_followed_from_turn_to_turn() {
    let trace = trace();
    let begun = trace
        .requests
        .iter()
        .filter(|one| one.continues.is_none())
        .count();
    assert_eq!(begun, 40);
    for one in &trace.requests {
        if let Some(before) = one.continues {
            assert_eq!(trace.requests[before as usize].session, one.session);
        }
    }
}

#[test]
fn the_command_says_what_is_wrong_by_its_exit_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conversations.jsonl");
    for (arguments, expected) in [
        (&[path, "--policy", "inflight,smg", "--json"][..], 0),
        (&[path, "--policy", "round-robin", "--goal", "30"], 0),
        (&["/nowhere.jsonl"], 1),
        (&[path, "--rate", "0"], 2),
        (&[path, "--lost", "101"], 2),
        (&[path, "--context-workers", "2", "--json"], 0),
        (&[path, "--context-workers", "2", "--gateways", "2"], 0),
        (&[path, "--context-workers", "8"], 2),
        (&[path, "--context-workers", "2", "--policy", "smg"], 2),
        (&[path, "--first-token-ms", "100"], 2),
        (&[], 2),
    ] {
        let arguments = ["inflight simulate"].iter().chain(arguments);
        assert_eq!(simulate_main(arguments), expected);
    }
}
