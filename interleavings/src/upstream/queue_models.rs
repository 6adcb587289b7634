//! What [`RequestQueue`] promises.

use std::pin::Pin;

use loom::thread;

use super::handles::Handle;
use super::request_queue::{NotSent, QueuedRequests, RequestQueue};
use crate::Stream;

type Arc<T> = std::sync::Arc<T>;

fn next(stream: &mut QueuedRequests<u32>) -> Option<u32> {
    crate::wait(|context| Pin::new(&mut *stream).poll_next(context))
}

/// The worker's stream gets every request of two senders, and is woken for each.
pub fn every_request_is_sent() {
    let queue = Arc::new(RequestQueue::new(4));
    let mut stream = queue.stream();
    let sends = [1, 2].map(|number| {
        let queue = Arc::clone(&queue);
        thread::spawn(move || queue.send(Handle::new(number), number as u32).unwrap())
    });
    let mut sent = [next(&mut stream), next(&mut stream)];
    sent.sort_unstable();
    assert_eq!(sent, [Some(1), Some(2)]);
    for send in sends {
        send.join().unwrap();
    }
}

/// A request that is stopped either never leaves, or its stop leaves after it. Its place is free again.
pub fn a_stop_takes_back_or_follows() {
    let queue = Arc::new(RequestQueue::new(1));
    let mut stream = queue.stream();
    let other = Arc::clone(&queue);
    let sends = thread::spawn(move || {
        other.send(Handle::new(1), 1).unwrap();
        other.stop(Handle::new(1), || 10);
        other.stop(Handle::new(9), || 90);
    });
    let mut sent = Vec::new();
    while sent.last() != Some(&90) {
        sent.extend(next(&mut stream));
    }
    assert!(sent == [90] || sent == [1, 10, 90], "{sent:?}");
    sends.join().unwrap();
    queue.send(Handle::new(2), 2).unwrap();
    assert_eq!(queue.send(Handle::new(3), 3), Err(NotSent::Full));
}

/// Of two that come to one place at once, one is refused, unless the first has left.
pub fn no_more_wait_than_fit() {
    let queue = Arc::new(RequestQueue::new(1));
    let mut stream = queue.stream();
    let sends = [1, 2].map(|number| {
        let queue = Arc::clone(&queue);
        thread::spawn(move || queue.send(Handle::new(number), number as u32))
    });
    let results = sends.map(|send| send.join().unwrap());
    let refused = results
        .iter()
        .filter(|result| **result == Err(NotSent::Full));
    assert_eq!(refused.count(), 1);
    assert!(next(&mut stream).is_some());
    queue.send(Handle::new(3), 3).unwrap();
}

/// A queue that closes ends its stream, and nothing is taken for sent that is dropped.
pub fn a_close_ends_the_stream() {
    let queue = Arc::new(RequestQueue::new(4));
    let mut stream = queue.stream();
    let other = Arc::clone(&queue);
    let closes = thread::spawn(move || other.close());
    let result = queue.send(Handle::new(1), 1);
    let mut sent = Vec::new();
    while let Some(request) = next(&mut stream) {
        sent.push(request);
    }
    if result.is_err() {
        assert_eq!((result, sent.len()), (Err(NotSent::Closed), 0));
    }
    closes.join().unwrap();
    assert_eq!(queue.send(Handle::new(2), 2), Err(NotSent::Closed));
    assert_eq!(next(&mut stream), None);
}
