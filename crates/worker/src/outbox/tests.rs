use inflight_kserve::step::FinishReason;

use super::*;
use crate::respond;

/// A row of the request with this client id.
fn row(client_id: u64, is_final: bool) -> Row<'static> {
    Row {
        index: 0,
        handle: client_id,
        sequence_index: 0,
        tokens: &[5],
        finish_reason: if is_final {
            FinishReason::EndId
        } else {
            FinishReason::NotFinished
        },
        is_final,
        error: None,
        log_probs: None,
        top_log_probs: None,
        cached_tokens: None,
        prompt_log_probs: None,
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
    assert_eq!(outbox.find(7), Known::No);
    assert!(outbox.admit(&[1], Some(7)));
    outbox.put_step_row(&row(1, false), 7, moment());
    assert_eq!(outbox.find(7), Known::Live(1));
    outbox.put_step_row(&row(1, true), 7, moment());
    assert_eq!(outbox.find(7), Known::Ending);
    assert!(!outbox.forget_handle(7));
    assert_eq!(finals(&outbox), [0, 1]);
    assert_eq!(outbox.find(7), Known::No);
    outbox.refuse_handle(7, tonic::Code::InvalidArgument, String::new());
    assert_eq!(outbox.find(7), Known::Ending);
}

#[test]
fn the_final_row_of_a_forgotten_handle_goes_nowhere() {
    let outbox = Outbox::default();
    outbox.admit(&[1], Some(7));
    assert!(outbox.forget_handle(7));
    outbox.refuse_handle(7, tonic::Code::AlreadyExists, String::new());
    // As a failing executor's sweep gives it, which knows nothing of the handle's new use.
    outbox.put_step_row(&row(1, true), 7, moment());
    assert_eq!(finals(&outbox), [1]);
    outbox.admit(&[2], Some(7));
    outbox.put_step_row(&row(1, true), 7, moment());
    assert_eq!(finals(&outbox), [0; 0]);
    assert_eq!(outbox.find(7), Known::Live(2));
}

#[test]
fn nothing_is_admitted_to_a_stream_that_has_ended() {
    let outbox = Outbox::default();
    outbox.admit(&[1], Some(7));
    assert_eq!(outbox.close(), [1]);
    assert!(!outbox.admit(&[2], Some(8)));
    assert_eq!(outbox.find(8), Known::No);
}

#[test]
fn a_reply_that_was_read_does_not_hide_the_refusals_that_wait() {
    let outbox = Outbox::default();
    for handle in 0..MAX_WAITING_REFUSALS as u64 {
        outbox.refuse_handle(handle, tonic::Code::InvalidArgument, String::new());
    }
    let has_room = || futures_util::FutureExt::now_or_never(outbox.has_room()).is_some();
    assert!(!has_room());
    outbox.reply(respond::message(respond::empty("a", true)));
    assert!(matches!(outbox.take(), Taken::Reply(_)));
    assert!(!has_room());
    assert_eq!(finals(&outbox).len(), MAX_WAITING_REFUSALS);
    assert!(has_room());
}
