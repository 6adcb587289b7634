//! Histories of an executor that is kept busy, with made-up times; and overload as a whole.

use super::*;

const LIMIT: Duration = Duration::from_secs(2);

/// A line whose executor runs 4 sequences for a second each, one ending every 250 ms, all places
/// in use for `seconds`. The time at its end, and the tickets of those who run.
fn busy(seconds: u32) -> (Line, Instant, Vec<Ticket>) {
    let mut line = Line::new(4, LIMIT, StartOrder::Arrival);
    let mut now = Instant::now();
    let mut running: Vec<Ticket> = (0..4).map(|_| line.join(now, 1, 10)).collect();
    for _ in 0..4 * seconds {
        now += Duration::from_millis(250);
        line.leave(now, running.remove(0), 1);
        running.push(line.join(now, 1, 10));
    }
    (line, now, running)
}

#[test]
fn whoever_finds_a_free_place_never_waits() {
    let mut line = Line::new(4, Duration::ZERO, StartOrder::Arrival);
    let now = Instant::now();
    for _ in 0..4 {
        assert_eq!(line.check(now, 1, 10, Some(Duration::ZERO)), Ok(()));
        let ticket = line.join(now, 1, 10);
        assert!(!line.is_waiting(ticket));
    }
    // With a limit of 0, nobody waits.
    assert!(line.check(now, 1, 10, None).is_err());
}

#[test]
fn the_expected_wait_is_the_work_ahead_over_the_measured_rate() {
    for seconds in [1, 5, 60] {
        let (mut line, now, _) = busy(seconds);
        let mut admitted = 0;
        let refused = loop {
            match line.check(now, 1, 10, None) {
                Ok(()) => line.join(now, 1, 10),
                Err(refused) => break refused,
            };
            admitted += 1;
        };
        // 4 sequences a second, and three quarters of 2 s.
        assert!((5..=7).contains(&admitted), "{admitted} after {seconds} s");
        let wait = refused.wait.as_secs_f64();
        assert!((1.5..2.0).contains(&wait), "{wait} after {seconds} s");
    }
}

#[test]
fn a_request_that_cannot_wait_is_refused_sooner() {
    let (mut line, now, _) = busy(10);
    assert_eq!(
        line.check(now, 1, 10, Some(Duration::from_millis(500))),
        Ok(())
    );
    assert!(
        line.check(now, 1, 10, Some(Duration::from_millis(100)))
            .is_err()
    );
    // Several sequences need several places.
    assert!(
        line.check(now, 4, 10, Some(Duration::from_millis(500)))
            .is_err()
    );
}

#[test]
fn one_batch_may_wait_while_nothing_is_known() {
    let mut line = Line::new(4, LIMIT, StartOrder::Arrival);
    let mut now = Instant::now();
    let mut admitted = 0;
    while line.check(now, 1, 10, None).is_ok() {
        line.join(now, 1, 10);
        admitted += 1;
    }
    assert_eq!(admitted, 8);
    // After the limit without an end, this is a slow executor and not an unknown one.
    for ticket in 4..8 {
        let ticket = Ticket {
            due: 0,
            number: ticket,
        };
        line.leave(now, ticket, 1);
    }
    assert_eq!(line.check(now, 1, 10, None), Ok(()));
    now += 2 * LIMIT;
    assert!(line.check(now, 1, 10, None).is_err());
}

#[test]
fn time_with_free_places_changes_no_estimate() {
    let (mut line, now, running) = busy(10);
    let before = line.check(now, 4, 10, Some(Duration::ZERO));
    for ticket in &running {
        line.leave(now, *ticket, 1);
    }
    let later = now + Duration::from_secs(3600);
    for _ in 0..4 {
        line.join(later, 1, 10);
    }
    let after = line.check(later, 4, 10, Some(Duration::ZERO));
    let (before, after) = (before.unwrap_err().wait, after.unwrap_err().wait);
    assert!(
        after <= before && before < after * 2,
        "{before:?}, {after:?}"
    );
}

#[test]
fn the_estimate_follows_a_change_of_the_rate() {
    let (mut line, mut now, mut running) = busy(30);
    // Ten times slower.
    for _ in 0..16 {
        now += Duration::from_millis(2500);
        line.leave(now, running.remove(0), 1);
        running.push(line.join(now, 1, 10));
    }
    let wait = line
        .check(now, 1, 10, Some(Duration::ZERO))
        .unwrap_err()
        .wait;
    assert!(wait > Duration::from_millis(1500), "{wait:?}");
}

#[test]
fn places_go_to_those_who_waited_longest_and_to_those_with_rows() {
    let mut line = Line::new(2, LIMIT, StartOrder::Arrival);
    let now = Instant::now();
    let tickets: Vec<Ticket> = (0..5).map(|_| line.join(now, 1, 10)).collect();
    let waiting = |line: &Line| -> Vec<bool> {
        tickets
            .iter()
            .map(|ticket| line.is_waiting(*ticket))
            .collect()
    };
    assert_eq!(waiting(&line), [false, false, true, true, true]);
    // An executor with priorities started the last one.
    line.start(tickets[4]);
    assert_eq!(waiting(&line), [false, false, true, true, false]);
    line.leave(now, tickets[0], 1);
    line.leave(now, tickets[1], 1);
    assert_eq!(waiting(&line), [false, false, false, true, false]);
    // Leaving the line frees no place.
    line.leave(now, tickets[3], 1);
    line.leave(now, tickets[2], 1);
    line.leave(now, tickets[4], 1);
    assert_eq!((line.running, line.waiting_sequences), (0, 0));
}

#[test]
fn a_request_larger_than_the_batch_runs_alone() {
    let mut line = Line::new(2, LIMIT, StartOrder::Arrival);
    let now = Instant::now();
    let large = line.join(now, 8, 10);
    assert!(!line.is_waiting(large));
    let next = line.join(now, 1, 10);
    assert!(line.is_waiting(next));
    line.leave(now, large, 8);
    assert!(!line.is_waiting(next));
}

/// A request of the simulation: when it came and its ticket.
struct Waiting {
    came: Instant,
    ticket: Ticket,
}

/// What became of the clients of an overload, per 5 seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    completed: u32,
    refused: u32,
    /// Refused only after having waited.
    expired: u32,
    /// Clients that gave up.
    left: u32,
}

/// Clients arrive evenly at `load` times what the executor can do: 16 sequences at once, each for 750 ms.
/// They wait at most 5 s. The executor says that it has `places`.
fn overload(load: f64, places: u32) -> Vec<Interval> {
    const PLACES: usize = 16;
    const SERVICE: Duration = Duration::from_millis(750);
    const PATIENCE: Duration = Duration::from_secs(5);
    let mut line = Line::new(places, LIMIT, StartOrder::Arrival);
    let start = Instant::now();
    let mut queue: std::collections::VecDeque<Waiting> = Default::default();
    let mut running: Vec<(Instant, Waiting)> = Vec::new();
    let mut intervals = vec![Interval::default(); 12];
    let mut due = 0.0;
    for millisecond in 0..60_000 {
        let now = start + Duration::from_millis(millisecond);
        let interval = &mut intervals[(millisecond / 5000) as usize];
        running.retain(|(end, request)| {
            if *end > now {
                return true;
            }
            line.leave(now, request.ticket, 1);
            interval.completed += u32::from(now - request.came <= PATIENCE);
            false
        });
        queue.retain(|request| {
            let left = now - request.came > PATIENCE - SERVICE;
            if left {
                line.leave(now, request.ticket, 1);
                interval.left += 1;
            }
            !left
        });
        queue.retain(|request| {
            let expired = now - request.came > LIMIT && line.is_waiting(request.ticket);
            if expired {
                line.leave(now, request.ticket, 1);
                interval.expired += 1;
            }
            !expired
        });
        due += load * PLACES as f64 / SERVICE.as_secs_f64() / 1000.0;
        while due >= 1.0 {
            due -= 1.0;
            if line.check(now, 1, 10, None).is_ok() {
                let ticket = line.join(now, 1, 10);
                queue.push_back(Waiting { came: now, ticket });
            } else {
                interval.refused += 1;
            }
        }
        while running.len() < PLACES {
            let Some(request) = queue.pop_front() else {
                break;
            };
            line.start(request.ticket);
            running.push((now + SERVICE, request));
        }
        let is_settled = places as usize == PLACES || millisecond > 10_000;
        assert!(
            !is_settled || queue.len() < 64,
            "the queue is bounded by its wait"
        );
    }
    intervals
}

#[test]
fn an_overload_keeps_the_executor_busy_and_nobody_waits_in_vain() {
    let peak = 16.0 / 0.75 * 5.0;
    for load in [1.0, 2.0, 10.0] {
        let intervals = overload(load, 16);
        let completed: u32 = intervals.iter().map(|interval| interval.completed).sum();
        assert!(
            f64::from(completed) >= 0.95 * peak * intervals.len() as f64,
            "{load}: {intervals:?}"
        );
        for interval in &intervals {
            // A generation of 16 that began together ends just inside or just outside.
            assert!(
                f64::from(interval.completed) >= 0.95 * (peak - 16.0),
                "{load}: {intervals:?}"
            );
            assert_eq!(interval.left, 0, "{load}: {intervals:?}");
            // Nearly all refusals are immediate.
            assert!(
                interval.expired * 20 <= interval.refused,
                "{load}: {intervals:?}"
            );
        }
    }
}

#[test]
fn an_executor_that_lacks_memory_for_its_places_keeps_busy_too() {
    let peak = 16.0 / 0.75 * 5.0;
    for load in [1.0, 2.0, 10.0] {
        let intervals = overload(load, 256);
        // What comes before anything has ended counts as what fits.
        for interval in intervals.iter().skip(2) {
            assert!(
                f64::from(interval.completed) >= 0.95 * (peak - 16.0),
                "{load}: {intervals:?}"
            );
            assert_eq!(interval.left, 0, "{load}: {intervals:?}");
        }
    }
}

#[test]
fn one_long_prompt_takes_no_places_from_others() {
    let mut line = Line::new(8, LIMIT, StartOrder::Arrival);
    let mut now = Instant::now();
    let mut others: Vec<Ticket> = (0..3).map(|_| line.join(now, 1, 10)).collect();
    for ticket in &others {
        line.start(*ticket);
    }
    let long = line.join(now, 1, 10);
    for _ in 0..40 {
        now += Duration::from_millis(250);
        line.leave(now, others.remove(0), 1);
        assert_eq!(line.check(now, 5, 10, Some(Duration::ZERO)), Ok(()));
        others.push(line.join(now, 1, 10));
        line.start(others[2]);
    }
    assert!(!line.is_waiting(long));
}

#[test]
fn places_that_memory_held_back_are_back_when_nobody_waits() {
    let mut line = Line::new(8, LIMIT, StartOrder::Arrival);
    let mut now = Instant::now();
    let started: Vec<Ticket> = (0..4).map(|_| line.join(now, 1, 10)).collect();
    for ticket in &started {
        line.start(*ticket);
    }
    let held: Vec<Ticket> = (0..3).map(|_| line.join(now, 1, 10)).collect();
    for ticket in &started[..2] {
        now += Duration::from_millis(400);
        line.leave(now, *ticket, 1);
    }
    // Two run, three got no row although two ended; the first of these may be in work.
    assert!(line.check(now, 3, 10, Some(Duration::ZERO)).is_err());
    assert_eq!((line.running, line.waiting_sequences), (3, 2));
    assert!(
        !line.is_waiting(held[2]),
        "whether it has begun is not known, so it is not ended"
    );
    for ticket in held {
        line.start(ticket);
    }
    line.leave(now, started[2], 1);
    assert_eq!(line.check(now, 4, 10, Some(Duration::ZERO)), Ok(()));
}

#[test]
fn a_short_prompt_does_not_wait_for_those_that_it_passes() {
    for (order, refuses) in [(StartOrder::Arrival, true), (StartOrder::ShortFirst, false)] {
        let mut line = Line::new(1, LIMIT, order);
        let mut now = Instant::now();
        let mut runs = line.join(now, 1, 10);
        // Each runs for a second.
        for _ in 0..20 {
            now += Duration::from_secs(1);
            line.leave(now, runs, 1);
            runs = line.join(now, 1, 10);
        }
        let long = line.join(now, 1, 10_000);
        let short = line.check(now, 1, 100, Some(Duration::from_millis(1500)));
        assert_eq!(short.is_err(), refuses, "{order:?}");
        // One that is as long waits for both.
        let patience = Some(Duration::from_millis(1500));
        assert!(line.check(now, 1, 10_000, patience).is_err(), "{order:?}");
        let short = line.join(now, 1, 100);
        now += Duration::from_secs(1);
        line.leave(now, runs, 1);
        let waits = [long, short].map(|ticket| line.is_waiting(ticket));
        assert_eq!(waits, [!refuses, refuses], "{order:?}");
        // Once as much as it computes has come, nobody passes the long one, but what came last.
        line.join(now, 1, 9_900);
        assert_eq!(line.passed_by(1), u32::from(!refuses), "{order:?}");
    }
}

#[test]
fn who_is_passed_is_not_held_back_by_memory() {
    let mut line = Line::new(8, LIMIT, StartOrder::ShortFirst);
    let mut now = Instant::now();
    let mut others: Vec<Ticket> = (0..3).map(|_| line.join(now, 1, 10)).collect();
    for ticket in &others {
        line.start(*ticket);
    }
    // Two compute for long, while short ones come, start and end.
    let long = [10_000, 10_000].map(|tokens| line.join(now, 1, tokens));
    for _ in 0..40 {
        now += Duration::from_millis(250);
        line.leave(now, others.remove(0), 1);
        let room = line.check(now, 4, 10, Some(Duration::ZERO));
        assert_eq!(room, Ok(()), "places that memory does not lack are lost");
        others.push(line.join(now, 1, 10));
        line.start(others[2]);
    }
    assert!(!line.is_waiting(long[1]));
    assert_eq!(line.fits, None);
    // Those that come later and get no row either wait for memory.
    for _ in 0..3 {
        line.join(now, 1, 10);
    }
    for _ in 0..2 {
        now += Duration::from_millis(400);
        line.leave(now, others.remove(0), 1);
    }
    assert!(line.check(now, 1, 10, Some(Duration::ZERO)).is_err());
    assert!(
        line.unstarted.contains_key(&long[1]),
        "it was passed, and keeps its place"
    );
}
