use inflight_kserve::step::FinishReason;

use super::*;
use crate::respond;

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
    outbox.put_step_row(&row(ClientId(1), false), Handle(7), moment());
    assert_eq!(outbox.find(Handle(7)), Known::Live(ClientId(1)));
    outbox.put_step_row(&row(ClientId(1), true), Handle(7), moment());
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
    outbox.put_step_row(&row(ClientId(1), true), Handle(7), moment());
    assert_eq!(finals(&outbox), [1]);
    outbox.admit(&[ClientId(2)], Some(Handle(7)));
    outbox.put_step_row(&row(ClientId(1), true), Handle(7), moment());
    assert_eq!(finals(&outbox), [0; 0]);
    assert_eq!(outbox.find(Handle(7)), Known::Live(ClientId(2)));
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
    outbox.reply(respond::message(respond::empty("tensorrt_llm", "a", true)));
    assert!(matches!(outbox.take(), Taken::Reply(_)));
    assert!(!has_room());
    assert_eq!(finals(&outbox).len(), MAX_WAITING_REFUSALS);
    assert!(has_room());
}
