//! What is chosen, case by case: two or three servers, and one thing that differs.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use inflight_routing::expectation::{Expectations, Report};
use inflight_routing::index::{Held, Index, Level};
use inflight_routing::split::{HandOvers, Known};
use inflight_routing::{Choice, Eligible, Request, choose};

const KEYS: [u64; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
const REQUEST: Request = Request {
    tokens: 8 * 512,
    block_tokens: 512,
    is_urgent: false,
    spares_streams: false,
    transfer: None,
};

struct Fleet {
    index: Index,
    expectations: Expectations,
}

impl Fleet {
    fn new(servers: u32) -> Self {
        let mut expectations = Expectations::new(1);
        (0..servers).for_each(|server| expectations.add(server));
        Self {
            index: Index::new(1000),
            expectations,
        }
    }

    fn report(&mut self, server: u32, change: impl FnOnce(&mut Report)) {
        let mut report = Report::default();
        change(&mut report);
        self.expectations.reported(server, &report);
    }

    fn choose(&self, request: &Request, now: f64) -> Option<Choice> {
        let mut held = Held::default();
        self.index.find(&KEYS, &mut held);
        let eligible = (0..3).map(|server| Eligible { server, delay: 0.0 });
        choose(request, eligible, &held, &self.expectations, now)
    }
}

#[test]
fn caches_count_until_the_queue_is_longer() {
    let mut fleet = Fleet::new(2);
    fleet.index.stored(1, None, &KEYS[..6], Level::Device);
    let choice = fleet.choose(&REQUEST, 0.0).unwrap();
    assert_eq!((choice.server, choice.cached_tokens), (1, 6 * 512));
    // A short queue is worth it, a long one is not.
    for (queued_tokens, expected) in [(2_000, 1), (100_000, 0)] {
        fleet.report(1, |report| report.queued_tokens = queued_tokens);
        assert_eq!(
            fleet.choose(&REQUEST, 0.0).unwrap().server,
            expected,
            "{queued_tokens}"
        );
    }
    // It is worked off while nobody reports.
    assert_eq!(fleet.choose(&REQUEST, 60.0).unwrap().server, 1);
}

#[test]
fn an_urgent_request_waits_for_urgent_ones_alone() {
    let mut fleet = Fleet::new(2);
    fleet.index.stored(1, None, &KEYS, Level::Device);
    fleet.report(1, |report| report.queued_tokens = 100_000);
    let urgent = Request {
        is_urgent: true,
        ..REQUEST
    };
    assert_eq!(fleet.choose(&REQUEST, 0.0).unwrap().server, 0);
    assert_eq!(fleet.choose(&urgent, 0.0).unwrap().server, 1);
}

#[test]
fn a_burst_spreads_before_anybody_reports() {
    let mut fleet = Fleet::new(3);
    let mut taken = [0; 3];
    for _ in 0..9 {
        let server = fleet.choose(&REQUEST, 0.0).unwrap().server;
        let work = REQUEST.work(Default::default());
        fleet.expectations.sent(server, &work, 0.0);
        taken[server as usize] += 1;
    }
    assert_eq!(taken, [3, 3, 3]);
}

#[test]
fn slow_drained_and_silent_servers_are_avoided() {
    let mut fleet = Fleet::new(2);
    for (server, seconds) in [(0, 8.0), (1, 0.8)] {
        fleet.report(server, |report| {
            report.computed_tokens = 8192;
            report.computed_seconds = seconds;
        });
    }
    assert_eq!(fleet.choose(&REQUEST, 600.0).unwrap().server, 1);
    fleet.expectations.set_drained(1, true);
    assert_eq!(fleet.choose(&REQUEST, 600.0).unwrap().server, 0);
    fleet.expectations.remove(0);
    assert_eq!(fleet.choose(&REQUEST, 600.0), None);
    // One that never starts what was sent to it.
    let mut fleet = Fleet::new(2);
    fleet.index.stored(1, None, &KEYS, Level::Device);
    let ticket = fleet
        .expectations
        .sent(1, &REQUEST.work(Default::default()), 0.0);
    assert_eq!(fleet.choose(&REQUEST, 0.5).unwrap().server, 1);
    assert_eq!(fleet.choose(&REQUEST, 60.0).unwrap().server, 0);
    fleet.expectations.ended(ticket);
    assert_eq!(fleet.choose(&REQUEST, 60.0).unwrap().server, 1);
}

#[test]
fn gateways_that_know_the_same_do_not_all_choose_the_same_server() {
    let of_gateway = |seed| {
        let mut expectations = Expectations::new(seed);
        (0..8).for_each(|server| expectations.add(server));
        for server in 0..8 {
            // What a request takes is known.
            let ticket = expectations.sent(server, &REQUEST.work(Default::default()), 0.0);
            expectations.ended(ticket);
            let report = Report {
                at: 1.0,
                // All of others. The third one is the least loaded, by as much as a lone gateway heeds.
                requests: 10 + u32::from(server != 2),
                ..Report::default()
            };
            expectations.reported(server, &report);
        }
        let eligible = (0..8).map(|server| Eligible { server, delay: 0.0 });
        let choice = choose(&REQUEST, eligible, &Held::default(), &expectations, 1.0);
        choice.unwrap().server
    };
    let chosen: BTreeSet<u32> = (0..32).map(of_gateway).collect();
    assert!(chosen.len() >= 6, "{chosen:?}");
}

#[test]
fn a_lone_gateway_guesses_nothing() {
    // Whatever the seed.
    for seed in 0..30 {
        let mut fleet = Fleet::new(3);
        fleet.expectations = Expectations::new(seed);
        (0..3).for_each(|server| fleet.expectations.add(server));
        for server in [0, 0, 1, 2, 2] {
            let work = REQUEST.work(Default::default());
            let ticket = fleet.expectations.sent(server, &work, 0.0);
            fleet.expectations.started(ticket, 0.5);
        }
        assert_eq!(fleet.choose(&REQUEST, 1.0).unwrap().server, 1, "{seed}");
    }
}

#[test]
fn what_streams_wait_counts_where_others_compute_prompts() {
    let mut fleet = Fleet::new(2);
    // One computed lately and has nothing to do, the other one generates.
    fleet.report(0, |report| {
        report.computed_tokens = 40_000;
        report.computed_seconds = 4.0;
    });
    fleet.report(1, |report| report.requests = 4);
    let sparing = Request {
        spares_streams: true,
        ..REQUEST
    };
    assert_eq!(fleet.choose(&REQUEST, 0.0).unwrap().server, 1);
    assert_eq!(fleet.choose(&sparing, 0.0).unwrap().server, 0);
    // What computes nothing disturbs nobody.
    let moved = Request {
        transfer: Some(1e-5),
        ..sparing
    };
    assert_eq!(fleet.choose(&moved, 0.0).unwrap().server, 0);
    // It goes where the least has to come from elsewhere.
    fleet.index.stored(1, None, &KEYS[..6], Level::Device);
    let choice = fleet.choose(&moved, 0.0).unwrap();
    assert_eq!((choice.server, choice.moved_tokens), (1, 2 * 512));
}

fn eligible(servers: std::ops::Range<u32>) -> impl Iterator<Item = Eligible> + Clone {
    servers.map(|server| Eligible { server, delay: 0.0 })
}

#[test]
fn a_request_is_split_where_streams_would_wait_for_it() {
    // The first one is for contexts.
    let splits = |change: &dyn Fn(&mut Fleet)| {
        let mut fleet = Fleet::new(2);
        change(&mut fleet);
        let (mut held, mut hand_overs) = (Held::default(), HandOvers::default());
        let moved = Request {
            transfer: Some(0.0),
            ..REQUEST
        };
        let then = choose(&moved, eligible(1..2), &held, &fleet.expectations, 0.0);
        if let Some(then) = then {
            hand_overs.learn(&then, 0.05);
        }
        fleet.index.find(&KEYS, &mut held);
        let known = Known {
            held: &held,
            expectations: &fleet.expectations,
            hand_overs: &hand_overs,
            now: 0.0,
        };
        known.split_pays(&REQUEST, eligible(0..1), eligible(1..2))
    };
    let running =
        |running| move |fleet: &mut Fleet| fleet.report(1, |report| report.requests = running);
    assert_eq!(splits(&|_| ()), Some(false));
    assert_eq!(splits(&running(8)), Some(true));
    assert_eq!(
        splits(&|fleet| {
            running(8)(fleet);
            fleet.index.stored(1, None, &KEYS, Level::Device);
        }),
        Some(false)
    );
    assert_eq!(splits(&|fleet| fleet.expectations.remove(0)), None);
}

#[test]
fn a_comparison_is_of_what_would_be_chosen() {
    let splits = |token_s: f64, servers, change: &dyn Fn(&mut Fleet)| {
        let mut fleet = Fleet::new(servers);
        change(&mut fleet);
        let (mut held, mut hand_overs) = (Held::default(), HandOvers::default());
        let moved = Request {
            transfer: Some(0.0),
            ..REQUEST
        };
        let then = choose(&moved, eligible(1..2), &held, &fleet.expectations, 0.0).unwrap();
        hand_overs.learn(&then, token_s * f64::from(REQUEST.tokens));
        fleet.index.find(&KEYS, &mut held);
        let known = Known {
            held: &held,
            expectations: &fleet.expectations,
            hand_overs: &hand_overs,
            now: 0.0,
        };
        known
            .split_pays(&REQUEST, eligible(0..1), eligible(1..servers))
            .unwrap()
    };
    let has_streams = |fleet: &mut Fleet| fleet.report(1, |report| report.requests = 8);
    // What would have to be moved takes long.
    assert!(splits(1e-5, 2, &has_streams));
    assert!(!splits(1e-3, 2, &has_streams));
    // A whole request would not go where it is half cached, next to streams, but to a server that has none.
    assert!(!splits(1e-5, 3, &|fleet| {
        has_streams(fleet);
        fleet.index.stored(1, None, &KEYS[..4], Level::Device);
    }));
}

#[test]
fn a_request_counts_once_from_the_moment_that_it_is_sent_until_it_ends() {
    let work = REQUEST.work(Default::default());
    let mut fleet = Fleet::new(1);
    let open = |fleet: &Fleet| fleet.choose(&REQUEST, 0.0).unwrap().open;
    let report = |fleet: &mut Fleet, at, requests| {
        fleet.report(0, |report| (report.at, report.requests) = (at, requests));
    };
    // Another gateway has three there. Without a report, only what was sent is known.
    let first = fleet.expectations.sent(0, &work, 0.0);
    assert_eq!(open(&fleet), 1);
    let second = fleet.expectations.sent(0, &work, 1.0);
    report(&mut fleet, 0.0, 3);
    assert_eq!(open(&fleet), 5);
    // The next report has the first one, which has no token yet; then it starts; then a report has both.
    report(&mut fleet, 1.0, 4);
    assert_eq!(open(&fleet), 5);
    fleet.expectations.started(first, 1.1);
    assert_eq!(open(&fleet), 5);
    report(&mut fleet, 2.0, 5);
    assert_eq!(open(&fleet), 5);
    // A third starts and ends between two reports.
    let third = fleet.expectations.sent(0, &work, 2.2);
    assert_eq!(open(&fleet), 6);
    fleet.expectations.started(third, 2.3);
    assert_eq!(open(&fleet), 6);
    for (ended, left) in [(third, 5), (second, 4), (first, 3)] {
        fleet.expectations.ended(ended);
        assert_eq!(open(&fleet), left);
    }
}
