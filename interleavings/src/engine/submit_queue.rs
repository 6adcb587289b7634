//! What [`SubmitQueue`] promises.

use loom::sync::Arc;
use loom::thread;

use super::queue::{Batch, SubmitQueue};
use crate::executor::Request;

/// Takes until the queue is closed, as the submit thread does: requests before cancels.
fn take_all(queue: &SubmitQueue) -> Vec<String> {
    std::iter::from_fn(|| queue.take())
        .flat_map(words)
        .collect()
}

fn words(batch: Batch) -> Vec<String> {
    let requests = batch
        .requests
        .iter()
        .map(|request| format!("request {}", request.0));
    let cancels = batch.cancels.iter().map(|id| format!("cancel {id}"));
    requests.chain(cancels).collect()
}

/// What two threads push, and close behind, is all taken, and the submit thread ends.
pub fn what_is_pushed_is_taken() {
    let queue = Arc::new(SubmitQueue::default());
    let pushes = [1, 2].map(|id| {
        let queue = Arc::clone(&queue);
        thread::spawn(move || queue.push_requests(vec![Request(id)]))
    });
    let closes = {
        let queue = Arc::clone(&queue);
        thread::spawn(move || {
            for push in pushes {
                push.join().unwrap();
            }
            queue.close();
        })
    };
    let mut taken = take_all(&queue);
    taken.sort();
    assert_eq!(taken, ["request 1", "request 2"]);
    closes.join().unwrap();
}

/// A cancel alone wakes the submit thread.
pub fn a_cancel_wakes() {
    let queue = Arc::new(SubmitQueue::default());
    let other = Arc::clone(&queue);
    let cancels = thread::spawn(move || other.push_cancels(&[1]));
    assert_eq!(words(queue.take().unwrap()), ["cancel 1"]);
    cancels.join().unwrap();
}

/// A cancel never overtakes its request, whoever takes them.
pub fn a_cancel_comes_after_its_request() {
    let queue = Arc::new(SubmitQueue::default());
    let other = Arc::clone(&queue);
    let pushes = thread::spawn(move || {
        other.push_requests(vec![Request(1)]);
        other.push_cancels(&[1]);
        other.close();
    });
    let mut taken = queue.take_waiting().map(words).unwrap_or_default();
    taken.extend(take_all(&queue));
    assert_eq!(taken, ["request 1", "cancel 1"]);
    pushes.join().unwrap();
}

/// Two who take at once share what waits, and nobody gets what another has.
pub fn nothing_is_taken_twice() {
    let queue = Arc::new(SubmitQueue::default());
    let other = Arc::clone(&queue);
    let pushes = thread::spawn(move || {
        other.push_requests(vec![Request(1)]);
        other.push_requests(vec![Request(2)]);
        other.close();
    });
    let other = Arc::clone(&queue);
    let takes = thread::spawn(move || other.take_waiting().map(words).unwrap_or_default());
    let mut taken = take_all(&queue);
    taken.extend(takes.join().unwrap());
    taken.sort();
    assert_eq!(taken, ["request 1", "request 2"]);
    pushes.join().unwrap();
}
