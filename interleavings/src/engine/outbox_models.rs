//! What [`Outbox`] promises.

use std::collections::HashSet;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use loom::thread;

use super::stream_outbox::{Known, Moment, Outbox, Taken};
use crate::step::{Handle, Row, StepBatch};
use crate::streamed::SentResponse;
use crate::{Code, Status};

const HANDLE: Handle = Handle(7);

fn at(iteration: u64) -> Moment {
    Moment {
        now: Instant::now(),
        iteration,
    }
}

/// As a stream polls it: once more after registering.
fn poll(outbox: &Outbox, context: &mut Context<'_>) -> Poll<Taken> {
    let mut taken = outbox.take();
    if matches!(taken, Taken::Nothing) {
        outbox.register(context.waker());
        taken = outbox.take();
    }
    match taken {
        Taken::Nothing => Poll::Pending,
        taken => Poll::Ready(taken),
    }
}

/// The tokens of step rows, until the stream ends; and how it ended.
fn read(outbox: &Outbox) -> (Vec<i32>, Result<(), Status>) {
    let mut tokens = Vec::new();
    loop {
        match crate::wait(|context| poll(outbox, context)) {
            Taken::Step(rows) => tokens.extend(rows.rows().flat_map(|row| row.tokens.to_vec())),
            Taken::Failed(status) => return (tokens, Err(status)),
            Taken::End => return (tokens, Ok(())),
            _ => {}
        }
    }
}

fn put(outbox: &Outbox, token: i32, is_last: bool, may_wait: bool) {
    let ended: &[Handle] = if is_last { &[HANDLE] } else { &[] };
    let rows = StepBatch::of(HANDLE, token, is_last);
    let delivery = outbox.put_step(rows, ended, may_wait, at(token as u64));
    if delivery.wake {
        outbox.wake();
    }
}

fn admitted() -> Arc<Outbox> {
    let outbox = Arc::new(Outbox::default());
    assert!(outbox.admit(&[1], Some(HANDLE)));
    outbox
}

/// Every row is taken once and in order, and the stream ends once it was finished and all is taken.
pub fn every_row_is_taken() {
    let outbox = admitted();
    let other = Arc::clone(&outbox);
    let puts = thread::spawn(move || {
        put(&other, 1, false, false);
        put(&other, 2, true, false);
    });
    let other = Arc::clone(&outbox);
    let finishes = thread::spawn(move || other.finish());
    assert_eq!(read(&outbox), (vec![1, 2], Ok(())));
    puts.join().unwrap();
    finishes.join().unwrap();
    assert_eq!(outbox.find(HANDLE), Known::No);
}

/// Rows that nobody reads yet wait, and the one that is read wakes for all.
pub fn rows_that_may_wait_come_with_the_next() {
    let outbox = admitted();
    let other = Arc::clone(&outbox);
    let puts = thread::spawn(move || {
        put(&other, 1, false, true);
        put(&other, 2, true, false);
    });
    outbox.finish();
    assert_eq!(read(&outbox), (vec![1, 2], Ok(())));
    puts.join().unwrap();
}

/// A reply wakes, and keeps its place before the end.
pub fn a_reply_comes_before_the_end() {
    let outbox = Arc::new(Outbox::default());
    outbox.hold();
    outbox.finish();
    let other = Arc::clone(&outbox);
    let replies = thread::spawn(move || {
        other.reply(SentResponse(1));
        other.release();
    });
    let first = crate::wait(|context| poll(&outbox, context));
    assert!(matches!(first, Taken::Reply(reply) if reply.0 == 1));
    assert_eq!(read(&outbox), (vec![], Ok(())));
    replies.join().unwrap();
}

/// A request that comes while its stream ends is refused, or its end reports it: none runs on unknown.
pub fn no_request_outlives_its_stream() {
    let outbox = Arc::new(Outbox::default());
    let other = Arc::clone(&outbox);
    let closes = thread::spawn(move || other.close());
    let was_admitted = outbox.admit(&[1], Some(HANDLE));
    let ended: HashSet<u64> = closes.join().unwrap().into_iter().collect();
    assert_eq!(ended.contains(&1), was_admitted);
    assert!(!outbox.admit(&[2], None));
}

/// A stop and the last row: one of them ends the request, and the row is sent only if it does.
pub fn a_request_ends_once() {
    let outbox = admitted();
    let other = Arc::clone(&outbox);
    let puts = thread::spawn(move || {
        let row = Row::new(1, &[5], true);
        let delivery = other.put_step_row(&row, HANDLE, false, at(1));
        if delivery.wake {
            other.wake();
        }
    });
    let was_live = outbox.forget_handle(HANDLE);
    outbox.finish();
    let expected = if was_live { vec![] } else { vec![5] };
    puts.join().unwrap();
    assert_eq!(read(&outbox), (expected, Ok(())));
}

/// Who waits until the stream is gone is woken when it fails, and so is its reader.
pub fn a_failure_wakes_all() {
    let outbox = admitted();
    let other = Arc::clone(&outbox);
    let fails = thread::spawn(move || other.fail(Status::unavailable("gone")));
    let other = Arc::clone(&outbox);
    let waits = thread::spawn(move || loom::future::block_on(other.closed()));
    let (tokens, ended) = read(&outbox);
    assert_eq!((tokens, ended), (vec![], Err(Status::unavailable("gone"))));
    waits.join().unwrap();
    assert_eq!(fails.join().unwrap(), [1]);
}

/// Who waits with a request, because many refusals wait, is woken once they are taken.
pub fn room_is_noticed() {
    let outbox = Arc::new(Outbox::default());
    for number in 0..1024 {
        outbox.refuse_handle(Handle(number), Code::Unavailable, String::new(), 0);
    }
    let other = Arc::clone(&outbox);
    let waits = thread::spawn(move || loom::future::block_on(other.has_room()));
    assert!(matches!(outbox.take(), Taken::Step(rows) if rows.ids.len() == 1024));
    waits.join().unwrap();
}
