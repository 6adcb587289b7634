use inflight_kserve::step::FinishReason;

use super::*;
use crate::response;

/// A row of the request with this client id.
fn row(client_id: ClientId, is_final: bool) -> Row<'static, ClientId> {
    Row {
        finish_reason: if is_final {
            FinishReason::EndId
        } else {
            FinishReason::NotFinished
        },
        is_final,
        ..Row::new(client_id, &[5])
    }
}

fn moment() -> Moment {
    Moment {
        now: Instant::now(),
        iteration: 1,
    }
}

fn finals(outbox: &Outbox) -> Vec<u8> {
    match outbox.take() {
        Taken::Step(rows) => rows.finals,
        _ => Vec::new(),
    }
}

#[test]
fn a_handle_is_live_then_ending_then_unknown() {
    let outbox = Outbox::default();
    assert_eq!(outbox.find(Handle(7)), Known::No);
    assert!(outbox.admit(&[ClientId(1)], Some(Handle(7))));
    outbox.put_step_row(&row(ClientId(1), false), Handle(7), false, moment());
    assert_eq!(outbox.find(Handle(7)), Known::Live(ClientId(1)));
    outbox.put_step_row(&row(ClientId(1), true), Handle(7), false, moment());
    assert_eq!(outbox.find(Handle(7)), Known::Ending);
    assert!(!outbox.forget_handle(Handle(7)));
    assert_eq!(finals(&outbox), [0, 1]);
    assert_eq!(outbox.find(Handle(7)), Known::No);
    outbox.refuse_handle(Handle(7), Code::InvalidArgument, String::new(), 0);
    assert_eq!(outbox.find(Handle(7)), Known::Ending);
}

#[test]
fn the_final_row_of_a_forgotten_handle_goes_nowhere() {
    let outbox = Outbox::default();
    outbox.admit(&[ClientId(1)], Some(Handle(7)));
    assert!(outbox.forget_handle(Handle(7)));
    outbox.refuse_handle(Handle(7), Code::AlreadyExists, String::new(), 0);
    // As a failing executor's sweep gives it, which knows nothing of the handle's new use.
    outbox.put_step_row(&row(ClientId(1), true), Handle(7), false, moment());
    assert_eq!(finals(&outbox), [1]);
    outbox.admit(&[ClientId(2)], Some(Handle(7)));
    outbox.put_step_row(&row(ClientId(1), true), Handle(7), false, moment());
    assert_eq!(finals(&outbox), [0; 0]);
    assert_eq!(outbox.find(Handle(7)), Known::Live(ClientId(2)));
}

#[test]
fn rows_that_may_wait_wake_the_stream_with_others_or_after_some_iterations() {
    let outbox = Outbox::default();
    outbox.admit(&[ClientId(1), ClientId(2)], None);
    let put = |may_wait, iteration| {
        let moment = Moment {
            now: Instant::now(),
            iteration,
        };
        let one = row(ClientId(1), false);
        outbox.put_step_row(&one, Handle(7), may_wait, moment).wake
    };
    let tokens = || match outbox.take() {
        Taken::Step(rows) => rows.token_ids.len() as u64,
        _ => 0,
    };
    let woken: Vec<u64> = (1..=2 * HELD_ITERATIONS)
        .filter(|at| put(true, *at) && tokens() == HELD_ITERATIONS)
        .collect();
    assert_eq!(woken, [HELD_ITERATIONS, 2 * HELD_ITERATIONS]);
    assert!(!put(true, 40));
    assert!(put(false, 40), "somebody reads this one");
    assert!(!put(true, 41) && !put(false, 41), "it was woken already");
    assert_eq!(tokens(), 4);
    assert!(!put(true, 42), "what was taken is waited for no longer");
}

#[test]
fn nobody_is_slow_to_read_what_may_wait() {
    let outbox = Outbox::default();
    let begun = Instant::now();
    let put = |may_wait, second| {
        let moment = Moment {
            now: begun + Duration::from_secs(second),
            iteration: second,
        };
        let one = row(ClientId(1), false);
        outbox
            .put_step_row(&one, Handle(7), may_wait, moment)
            .waited
    };
    assert_eq!(
        [put(true, 1), put(true, 9), put(false, 10)],
        [Duration::ZERO; 3]
    );
    assert_eq!(put(true, 12), Duration::from_secs(2));
}

#[test]
fn nothing_is_admitted_to_a_stream_that_has_ended() {
    let outbox = Outbox::default();
    outbox.admit(&[ClientId(1)], Some(Handle(7)));
    assert_eq!(outbox.close(), [ClientId(1)]);
    assert!(!outbox.admit(&[ClientId(2)], Some(Handle(8))));
    assert_eq!(outbox.find(Handle(8)), Known::No);
}

#[test]
fn a_reply_that_was_read_does_not_hide_the_refusals_that_wait() {
    let outbox = Outbox::default();
    for handle in 0..MAX_WAITING_REFUSALS as u64 {
        outbox.refuse_handle(Handle(handle), Code::InvalidArgument, String::new(), 0);
    }
    let has_room = || futures_util::FutureExt::now_or_never(outbox.has_room()).is_some();
    assert!(!has_room());
    outbox.reply(response::message(response::empty(
        "tensorrt_llm",
        "a",
        true,
    )));
    assert!(matches!(outbox.take(), Taken::Reply(_)));
    assert!(!has_room());
    assert_eq!(finals(&outbox).len(), MAX_WAITING_REFUSALS);
    assert!(has_room());
}
