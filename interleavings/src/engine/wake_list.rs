//! What [`WakeList`] promises.

use std::future::Future;
use std::sync::Arc as StdArc;
use std::task::Poll;

use loom::sync::Arc;
use loom::thread;

use super::wake::WakeList;
use crate::outbox::Outbox;

/// Runs the list's task until all of these were woken.
fn run_until_woken(list: &WakeList, outboxes: &[StdArc<Outbox>]) {
    let mut run = Box::pin(list.run());
    crate::wait(|context| {
        assert!(run.as_mut().poll(context).is_pending());
        match outboxes.iter().all(|one| one.woken() > 0) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    });
}

fn some() -> Vec<StdArc<Outbox>> {
    vec![StdArc::default(), StdArc::default()]
}

/// Streams of two iterations are all woken, however the task that wakes them runs in between.
pub fn every_stream_is_woken() {
    let list = Arc::new(WakeList::default());
    let (first, second) = (some(), some());
    let all = [first.clone(), second.clone()].concat();
    let other = Arc::clone(&list);
    let wakes = thread::spawn(move || {
        for mut outboxes in [first, second] {
            other.wake(&mut outboxes);
        }
    });
    run_until_woken(&list, &all);
    wakes.join().unwrap();
}

/// Each is woken once an iteration, and the caller's list is empty again.
pub fn each_is_woken_once() {
    let list = Arc::new(WakeList::default());
    let all = some();
    let (other, mut outboxes) = (Arc::clone(&list), all.clone());
    let wakes = thread::spawn(move || {
        other.wake(&mut outboxes);
        assert!(outboxes.is_empty());
    });
    run_until_woken(&list, &all);
    wakes.join().unwrap();
    assert!(all.iter().all(|one| one.woken() == 1));
}

/// One alone is woken at once, also where the task does not run.
pub fn one_alone_is_woken_at_once() {
    let list = Arc::new(WakeList::default());
    let only = StdArc::<Outbox>::default();
    let (other, mut outboxes) = (Arc::clone(&list), vec![StdArc::clone(&only)]);
    thread::spawn(move || other.wake(&mut outboxes))
        .join()
        .unwrap();
    assert_eq!(only.woken(), 1);
}
