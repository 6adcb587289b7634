//! What [`Mailbox`] promises.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use loom::thread;

use super::mailbox::{Batch, Mailbox};
use crate::Status;
use crate::streamed::EncodedResponse;

fn put(mailbox: &Mailbox, number: u32, is_final: bool) {
    let waker = mailbox.put(EncodedResponse(number), is_final, Instant::now());
    waker.unwrap().into_iter().for_each(std::task::Waker::wake);
}

/// Takes until nothing more comes.
fn read(mailbox: &Mailbox) -> (Vec<u32>, Result<(), Status>) {
    let mut numbers = Vec::new();
    loop {
        let mut taken = Batch::default();
        let result = crate::wait(|context| mailbox.poll_take(context, &mut taken));
        let before = numbers.len();
        numbers.extend(std::iter::from_fn(|| taken.next()).map(|one| one.0));
        if result.is_err() || numbers.len() == before {
            return (numbers, result);
        }
    }
}

/// Every response comes once and in order, and then the end.
pub fn every_response_comes_once() {
    let mailbox = Arc::new(Mailbox::new(Arc::default()));
    let other = Arc::clone(&mailbox);
    let puts = thread::spawn(move || {
        for number in 1..=3 {
            put(&other, number, number == 3);
        }
    });
    assert_eq!(read(&mailbox), (vec![1, 2, 3], Ok(())));
    puts.join().unwrap();
    assert_eq!(mailbox.unread_since(), None);
}

/// A failure wakes who waits, after what came before it.
pub fn a_failure_comes_last() {
    let mailbox = Arc::new(Mailbox::new(Arc::default()));
    let other = Arc::clone(&mailbox);
    let fails = thread::spawn(move || {
        put(&other, 1, false);
        let waker = other.fail(Status::unavailable("gone"));
        waker.into_iter().for_each(std::task::Waker::wake);
    });
    assert_eq!(read(&mailbox), (vec![1], Err(Status::unavailable("gone"))));
    fails.join().unwrap();
    assert_eq!(read(&mailbox), (vec![], Ok(())));
}

/// What slow clients share is free again once all is taken or dropped, whoever did it.
pub fn the_backlog_is_given_back() {
    let backlog = Arc::new(AtomicUsize::new(0));
    let mailbox = Arc::new(Mailbox::new(Arc::clone(&backlog)));
    // Those that wait as they came.
    for number in 0..64 {
        put(&mailbox, number, false);
    }
    let other = Arc::clone(&mailbox);
    let puts = thread::spawn(move || {
        put(&other, 64, false);
        put(&other, 65, true);
    });
    let other = Arc::clone(&mailbox);
    let drops = thread::spawn(move || other.discard());
    let (numbers, result) = read(&mailbox);
    assert!(result.is_ok() && numbers.is_sorted());
    puts.join().unwrap();
    drops.join().unwrap();
    assert_eq!(backlog.load(Ordering::SeqCst), 0);
}
