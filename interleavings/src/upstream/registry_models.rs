//! What [`Registry`] promises.

use std::sync::Arc;
use std::time::Instant;

use loom::thread;

use super::handles::Handle;
use super::inbox::{ChoiceOutputs, Inbox, Notice};
use super::registry::{Registry, Sequences};
use crate::Status;
use crate::step::{self, StepBatch};

fn opened(registry: &Registry, max_tokens: u32) -> (Handle, Arc<Inbox>) {
    let inbox = Arc::new(Inbox::default());
    let sequences = Sequences {
        count: 1,
        max_tokens,
        ..Sequences::default()
    };
    let handle = registry.open(Arc::clone(&inbox), sequences).unwrap();
    (handle, inbox)
}

fn row(handle: Handle, token: i32, is_last: bool) -> StepBatch {
    StepBatch::of(step::Handle(handle.number()), token, is_last)
}

/// Reads to the request's end. Returns its tokens, and whether it failed.
fn read(inbox: &Inbox) -> (Vec<i32>, bool) {
    let mut tokens = Vec::new();
    loop {
        let mut outputs = ChoiceOutputs::default();
        crate::wait(|context| inbox.poll_take(context, &mut outputs));
        tokens.extend(&outputs.tokens);
        let mut last = outputs.list.iter().filter(|delta| delta.last_of_handle);
        if let Some(last) = last.next() {
            return (tokens, last.details.is_some());
        }
    }
}

/// The rows of a message reach every request, and wake each.
pub fn every_row_reaches_its_request() {
    let registry = Arc::new(Registry::default());
    let (first, of_first) = opened(&registry, 2);
    let (second, of_second) = opened(&registry, 1);
    let other = Arc::clone(&registry);
    let distributes = thread::spawn(move || {
        let mut message = row(first, 1, false);
        message.append(row(second, 3, true));
        let tokens = other.distribute(&message, Instant::now()).tokens;
        tokens
            + other
                .distribute(&row(first, 2, true), Instant::now())
                .tokens
    });
    assert_eq!(read(&of_first), (vec![1, 2], false));
    assert_eq!(read(&of_second), (vec![3], false));
    assert_eq!(distributes.join().unwrap(), 3);
    assert_eq!(registry.handles.active(), 0);
}

/// A request ends once, by its last row or with its connection, and what came before is there.
pub fn a_request_ends_once() {
    let registry = Arc::new(Registry::default());
    let (handle, inbox) = opened(&registry, 2);
    let other = Arc::clone(&registry);
    let distributes = thread::spawn(move || {
        other.distribute(&row(handle, 1, false), Instant::now());
        other.distribute(&row(handle, 2, true), Instant::now());
    });
    let other = Arc::clone(&registry);
    let why = Status::unavailable("gone");
    let ends = thread::spawn(move || other.handles.end(&why, Instant::now()));
    let (tokens, has_failed) = read(&inbox);
    distributes.join().unwrap();
    ends.join().unwrap();
    match has_failed {
        true => assert!(tokens.len() < 2 && [1, 2].starts_with(&tokens)),
        false => assert_eq!(tokens, [1, 2]),
    }
    let (_, waker) = crate::counting();
    let mut context = std::task::Context::from_waker(&waker);
    let more = inbox.poll_take(&mut context, &mut ChoiceOutputs::default());
    assert!(more.is_pending());
}

/// More tokens than were asked for end the request with an error, and only it.
pub fn who_gets_too_much_fails_alone() {
    let registry = Arc::new(Registry::default());
    let (first, of_first) = opened(&registry, 1);
    let (second, of_second) = opened(&registry, 1);
    let other = Arc::clone(&registry);
    let distributes = thread::spawn(move || {
        let mut message = row(first, 1, false);
        message.append(row(first, 2, false));
        message.append(row(second, 3, true));
        other.distribute(&message, Instant::now()).overrun
    });
    assert_eq!(read(&of_first), (vec![1], true));
    assert_eq!(read(&of_second), (vec![3], false));
    assert_eq!(distributes.join().unwrap(), [first]);
}

/// A notice reaches and wakes every request that is open; one that opens meanwhile may miss it.
pub fn a_notice_reaches_all_that_are_open() {
    let registry = Arc::new(Registry::default());
    let (_, inbox) = opened(&registry, 1);
    let other = Arc::clone(&registry);
    let notifies = thread::spawn(move || other.notify(Notice::Silent));
    let other = Arc::clone(&registry);
    let opens = thread::spawn(move || opened(&other, 1));
    let mut outputs = ChoiceOutputs::default();
    let arrived = crate::wait(|context| inbox.poll_take(context, &mut outputs));
    assert_eq!(arrived.notice, Some(Notice::Silent));
    notifies.join().unwrap();
    opens.join().unwrap();
    assert_eq!(registry.handles.active(), 2);
}
