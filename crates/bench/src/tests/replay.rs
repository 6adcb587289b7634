//! Replays against the floor and against a server that is not there.

use std::time::Duration;

use super::{RunningFloor, canned, target};
use crate::load::LoadError;
use crate::load::replay::{self, Replay};
use crate::load::trace::Planned;
use crate::measure::Objective;

const OBJECTIVE: Objective = Objective {
    first_token: Duration::from_secs(10),
    per_token: Duration::from_millis(500),
};

fn planned(count: u32, apart: Duration) -> Vec<Planned> {
    (0..count)
        .map(|number| Planned {
            due: apart * number,
            prompt: vec![number; 20],
            tokens: 5 + number % 3,
            group: ["short", "long"][usize::from(number % 4 == 0)].to_owned(),
            model: None,
        })
        .collect()
}

fn replay(planned: Vec<Planned>) -> Replay {
    Replay {
        planned,
        streams: None,
        fields: serde_json::Map::new(),
        objective: OBJECTIVE,
        timeout: Duration::from_secs(30),
    }
}

#[test]
fn requests_are_sent_when_they_are_due() {
    let floor = RunningFloor::start(Duration::ZERO);
    let report = replay::run(
        &target(floor.address),
        replay(planned(40, Duration::from_millis(5))),
    )
    .unwrap();
    assert!(report.is_clean(), "{}", report.table());
    let counts: Vec<_> = report
        .groups
        .iter()
        .map(|(name, of)| (name.as_str(), of.whole, of.good))
        .collect();
    assert_eq!(counts, [("long", 10, Some(10)), ("short", 30, Some(30))]);
    let tokens: u64 = report.groups.values().map(|of| of.tokens).sum();
    assert_eq!(tokens, (0..40).map(|number| 5 + number % 3).sum::<u64>());
    // The last is due after 39 gaps.
    assert!(report.groups["short"].wall_seconds >= 0.195);
    assert!(report.most_running < 40);
}

#[test]
fn a_closed_loop_keeps_so_many_running() {
    let floor = RunningFloor::start(Duration::from_millis(1));
    let closed = Replay {
        streams: Some(3),
        ..replay(planned(12, Duration::from_secs(60)))
    };
    let report = replay::run(&target(floor.address), closed).unwrap();
    assert!(report.is_clean(), "{}", report.table());
    assert_eq!(report.most_running, 3);
}

#[test]
fn an_answer_that_comes_late_is_whole_but_not_good() {
    let floor = RunningFloor::start(Duration::from_millis(5));
    let strict = Replay {
        objective: Objective {
            per_token: Duration::from_millis(1),
            ..OBJECTIVE
        },
        ..replay(planned(4, Duration::ZERO))
    };
    let report = replay::run(&target(floor.address), strict).unwrap();
    assert!(report.is_clean(), "{}", report.table());
    assert!(report.groups.values().all(|of| of.good == Some(0)));
    assert!(report.table().contains("requests within the objective"));
}

#[test]
fn a_refusal_is_counted_and_a_server_that_is_not_there_ends_the_run() {
    let refusing = canned(
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 5\r\nconnection: close\r\n\r\nbusy!",
    );
    let report = replay::run(&target(refusing), replay(planned(3, Duration::ZERO))).unwrap();
    assert!(!report.is_clean());
    assert_eq!(report.groups["short"].errored, 2);
    let nobody = target(([127, 0, 0, 1], 1).into());
    let error = replay::run(&nobody, replay(planned(40, Duration::ZERO))).unwrap_err();
    assert!(matches!(error, LoadError::Connect { .. }), "{error}");
}
