//! What is expected of a server, figure by figure.

#![allow(clippy::unwrap_used)]

use inflight_routing::expectation::{Expectations, Expected, Report, Work};
use inflight_routing::index::{Depth, Held};
use inflight_routing::{Choice, Eligible, Request, choose};

/// At the pace before anything was learned, 10,000 tokens a second, it takes 0.4 s.
const REQUEST: Request = Request {
    tokens: 4_000,
    block_tokens: 500,
    is_urgent: false,
    spares_streams: false,
    transfer: None,
};
const COMPUTE: f64 = 0.4;

fn work() -> Work {
    REQUEST.work(Depth::default())
}

fn servers(count: u32) -> Expectations {
    let mut expectations = Expectations::new(1);
    (0..count).for_each(|server| expectations.add(server));
    expectations
}

fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-6, "{found} {expected}");
}

/// What a second of computing costs at a server that has nothing to do.
fn price(expectations: &Expectations, server: u32) -> f64 {
    let Expected {
        wait,
        compute,
        cost,
        busy,
    } = expectations.expected(server, &work(), 0.0).unwrap();
    assert_eq!((wait, busy), (0.0, 0.0));
    near(compute, COMPUTE);
    (cost - compute * compute / 2.0) / compute
}

#[test]
fn work_costs_more_the_more_caches_are_full() {
    let mut servers = servers(4);
    let report = |servers: &mut Expectations, server, is_full| {
        let report = Report {
            is_full,
            ..Report::default()
        };
        servers.reported(server, &report);
    };
    near(price(&servers, 0), 5.0);
    // Those that reported nothing do not count.
    for (server, is_full, expected) in [
        (0, false, 5.0),
        (1, true, 7.5),
        (1, true, 7.5),
        (2, true, 5.0 + 5.0 * 2.0 / 3.0),
        (1, false, 5.0 + 5.0 / 3.0),
        (1, true, 5.0 + 5.0 * 2.0 / 3.0),
    ] {
        report(&mut servers, server, is_full);
        near(price(&servers, 3), expected);
    }
    // Nor do those that are not believed any more, or are gone; and one that is replaced begins anew.
    servers.unreported(0);
    near(price(&servers, 3), 10.0);
    servers.remove(1);
    near(price(&servers, 3), 10.0);
    servers.add(2);
    near(price(&servers, 3), 5.0);
    report(&mut servers, 2, true);
    near(price(&servers, 3), 10.0);
    servers.unreported(2);
    near(price(&servers, 3), 5.0);
}

#[test]
fn a_server_that_reports_nothing_works_on_what_was_sent_until_it_starts() {
    let mut servers = servers(1);
    let wait = |servers: &Expectations, now| servers.expected(0, &work(), now).unwrap().wait;
    let first = servers.sent(0, &work(), 1.0);
    let second = servers.sent(0, &work(), 1.0);
    near(wait(&servers, 1.0), 2.0 * COMPUTE);
    near(wait(&servers, 1.1), 2.0 * COMPUTE - 0.1);
    servers.started(first, 1.5);
    near(wait(&servers, 1.5), COMPUTE * (1.0 + 1.0 / 256.0));
    servers.started(second, 1.9);
    near(wait(&servers, 1.9), 0.0);
}

#[test]
fn a_server_is_as_expensive_as_its_oldest_request_is_late() {
    let mut servers = servers(1);
    let wait = |servers: &Expectations, now| servers.expected(0, &work(), now).unwrap().wait;
    let first = servers.sent(0, &work(), 0.0);
    servers.sent(0, &work(), 0.0);
    // Twice what it should take, and a second; the second one is behind.
    near(wait(&servers, 1.8), COMPUTE);
    near(wait(&servers, 2.3), COMPUTE + 0.5);
    // Of the second one as well: it waits for the first.
    servers.ended(first);
    near(wait(&servers, 2.6), 0.0);
    near(wait(&servers, 3.1), 0.5);
}

#[test]
fn what_comes_first_and_what_has_to_be_moved_is_in_the_cost() {
    let chosen = |request: &Request, delays: [f64; 2]| -> Choice {
        let eligible = [0, 1].map(|server| Eligible {
            server,
            delay: delays[server as usize],
        });
        let (held, servers) = (Held::default(), servers(2));
        choose(request, eligible, &held, &servers, 0.0).unwrap()
    };
    let plain = chosen(&REQUEST, [0.0, 0.0]);
    assert_eq!((plain.wait, plain.moved_tokens), (0.0, 0));
    for delays in [[0.25, 0.5], [0.5, 0.25]] {
        let late = chosen(&REQUEST, delays);
        assert_eq!(late.server, u32::from(delays[1] < delays[0]));
        near(late.wait, 0.25);
        near(late.cost - plain.cost, 0.25);
    }
    let moved = |token_s| Request {
        transfer: Some(token_s),
        ..REQUEST
    };
    let (free, slow) = (
        chosen(&moved(0.0), [0.0; 2]),
        chosen(&moved(1e-4), [0.0; 2]),
    );
    assert_eq!((free.moved_tokens, slow.moved_tokens), (4_000, 4_000));
    near(slow.cost - free.cost, 0.4);
    // Its last token is computed there.
    near(free.compute, 1e-4);
}

#[test]
fn every_part_of_the_cost_is_in_seconds_of_waiting() {
    // 8 requests, 5,000 tokens in front, and half of the last minute busy.
    let mut servers = servers(1);
    let report = Report {
        requests: 8,
        queued_tokens: 5_000,
        computed_seconds: 30.0,
        ..Report::default()
    };
    servers.reported(0, &report);
    let token_s = 1e-4 * (1.0 + 8.0 / 256.0);
    let (wait, busy) = (5_000.0 * token_s, 0.5);
    let of = |tokens: f64, streams: f64, recent: f64| {
        let compute = tokens * token_s;
        let cost = wait + 5.0 * compute + compute * (wait + compute / 2.0) + compute * streams;
        (compute, cost + 3.0 * recent + 0.005 * 8.0)
    };
    let on = |device, host| {
        let coming = device;
        REQUEST.work(Depth {
            device,
            host,
            coming,
        })
    };
    let spares = Work {
        spares_streams: true,
        ..work()
    };
    let moved = Request {
        transfer: Some(0.0),
        ..REQUEST
    };
    for (work, (compute, cost)) in [
        (work(), of(4_000.0, 0.0, busy)),
        (spares, of(4_000.0, 8.0, busy)),
        // A token from the host's memory takes a tenth.
        (on(2, 6), of(1_000.0 + 200.0, 0.0, busy)),
        (on(8, 8), of(1.0, 0.0, busy)),
        (moved.work(Depth::default()), of(1.0, 0.0, 0.0)),
    ] {
        let found = servers.expected(0, &work, 0.0).unwrap();
        near(found.wait, wait);
        near(found.compute, compute);
        near(found.cost, cost);
        near(found.busy, busy);
    }
}

#[test]
fn what_was_computed_lately_counts_less_with_time() {
    let mut servers = servers(1);
    let report = |servers: &mut Expectations, at, computed_seconds| {
        let report = Report {
            at,
            computed_seconds,
            ..Report::default()
        };
        servers.reported(0, &report);
    };
    let busy = |servers: &Expectations, now| servers.expected(0, &work(), now).unwrap().busy;
    report(&mut servers, 0.0, 30.0);
    for (now, expected) in [
        (0.0, 0.5),
        (30.0, 0.5 * 0.75 * 0.75),
        (120.0, 0.0),
        (200.0, 0.0),
    ] {
        near(busy(&servers, now), expected);
    }
    report(&mut servers, 60.0, 15.0);
    near(busy(&servers, 60.0), 0.5 * 0.25 + 0.25);
}

#[test]
fn a_queue_is_what_was_reported_and_what_was_sent_since() {
    let mut servers = servers(1);
    let wait = |servers: &Expectations, now| servers.expected(0, &work(), now).unwrap().wait;
    let report = |at, queued_tokens| Report {
        at,
        queued_tokens,
        ..Report::default()
    };
    servers.reported(0, &report(1.0, 5_000));
    near(wait(&servers, 1.0), 0.5);
    near(wait(&servers, 1.2), 0.3);
    near(wait(&servers, 9.0), 0.0);
    // An older one counts for nothing.
    servers.reported(0, &report(0.5, 90_000));
    near(wait(&servers, 1.0), 0.5);
    // It has worked on them for a while.
    let worked = Report {
        working_seconds: 0.4,
        ..report(1.5, 5_000)
    };
    servers.reported(0, &worked);
    near(wait(&servers, 1.5), 0.1);
    near(wait(&servers, 1.7), 0.0);
    // What was sent 20 ms before is in it, and what was sent then is not.
    servers.sent(0, &work(), 1.97);
    near(wait(&servers, 1.97), COMPUTE);
    servers.sent(0, &work(), 1.99);
    servers.reported(0, &report(2.0, 5_000));
    near(wait(&servers, 2.0), 0.5 + COMPUTE);
    // Nothing of a server that is not believed: what was sent and has not started.
    servers.unreported(0);
    near(wait(&servers, 1.97), 2.0 * COMPUTE);
}

#[test]
fn a_pace_is_learned_without_what_streams_take() {
    let mut servers = servers(2);
    let report = Report {
        requests: 128,
        computed_tokens: 8_192,
        computed_seconds: 8_192.0 * 2e-4 * 1.5,
        ..Report::default()
    };
    servers.reported(0, &report);
    let compute = |server| servers.expected(server, &work(), 0.0).unwrap().compute;
    near(compute(0), 4_000.0 * 2e-4 * 1.5);
    // Of a server that says nothing, what all others need; it has no streams.
    near(compute(1), 4_000.0 * 2e-4);
}

#[test]
fn urgent_requests_wait_for_those_that_are_urgent() {
    let mut servers = servers(1);
    let urgent = Work {
        is_urgent: true,
        ..work()
    };
    let report = Report {
        queued_tokens: 5_000,
        urgent_tokens: 2_000,
        ..Report::default()
    };
    servers.reported(0, &report);
    servers.sent(0, &work(), 0.0);
    for sent in 0..3 {
        let wait = |work| servers.expected(0, work, 0.0).unwrap().wait;
        near(wait(&urgent), 0.2 + f64::from(sent) * COMPUTE);
        near(wait(&work()), 0.5 + f64::from(sent + 1) * COMPUTE);
        servers.sent(0, &urgent, 0.0);
    }
}

#[test]
fn requests_of_a_server_that_reports_nothing_are_those_that_have_not_ended() {
    let mut servers = servers(1);
    let eligible = [Eligible {
        server: 0,
        delay: 0.0,
    }];
    let open = |servers: &Expectations| {
        let choice = choose(&REQUEST, eligible, &Held::default(), servers, 0.0);
        choice.unwrap().open
    };
    let tickets = [(); 3].map(|()| servers.sent(0, &work(), 0.0));
    for ticket in &tickets[..2] {
        servers.started(*ticket, 0.1);
    }
    assert_eq!(open(&servers), 3);
    for (ticket, left) in tickets.into_iter().zip([2, 1, 0]) {
        servers.ended(ticket);
        assert_eq!(open(&servers), left);
    }
    // None ends twice.
    servers.ended(tickets[0]);
    assert_eq!(open(&servers), 0);
}

#[test]
fn a_short_prompt_does_not_wait_for_long_ones_that_it_passes() {
    let work = |tokens, is_urgent| Work {
        tokens,
        is_urgent,
        ..work()
    };
    // Each has 20,000 tokens to compute for another gateway, and then a long prompt of ours, a short and an urgent one.
    let wait = |short_first: bool, tokens: u32, is_urgent: bool| {
        let mut servers = servers(1);
        let report = Report {
            queued_tokens: 20_000,
            urgent_tokens: 2_000,
            short_first,
            ..Report::default()
        };
        servers.reported(0, &report);
        for sent in [work(30_000, false), work(100, false), work(1_000, true)] {
            servers.sent(0, &sent, 0.0);
        }
        servers
            .expected(0, &work(tokens, is_urgent), 0.0)
            .unwrap()
            .wait
    };
    for (short_first, tokens, is_urgent, expected) in [
        (false, 100, false, 5.11),
        (true, 100, false, 2.11),
        // Half of it is not more than twice as short.
        (true, 16_000, false, 5.11),
        (true, 100, true, 0.3),
    ] {
        near(wait(short_first, tokens, is_urgent), expected);
    }
    // Once it has its first token, nothing is left of it.
    let mut servers = servers(1);
    let report = Report {
        short_first: true,
        ..Report::default()
    };
    servers.reported(0, &report);
    let ticket = servers.sent(0, &work(30_000, false), 0.0);
    servers.sent(0, &work(4_000, false), 0.0);
    let waits = |servers: &Expectations, tokens| {
        let expected = servers.expected(0, &work(tokens, false), 0.0).unwrap();
        (10.0 * expected.wait).round()
    };
    assert_eq!((waits(&servers, 3_000), waits(&servers, 100)), (4.0, 0.0));
    servers.started(ticket, 0.1);
    assert_eq!((waits(&servers, 3_000), waits(&servers, 100)), (4.0, 0.0));
}
