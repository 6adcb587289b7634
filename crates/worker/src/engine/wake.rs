//! Wakes the streams of one iteration from inside the runtime.
//!
//! Woken from the await thread, each stream's task would run as soon as its wake arrives, and its
//! connection would write between any two of them: a system call per stream. Woken together by one
//! task, on a runtime of one thread, all streams of a connection are ready before it writes once.

use std::sync::Arc;
use std::task::Poll;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use crate::outbox::Outbox;

#[derive(Default)]
pub(super) struct WakeList {
    outboxes: Mutex<Vec<Arc<Outbox>>>,
    waker: AtomicWaker,
}

impl WakeList {
    /// Empties `outboxes`, keeping its capacity.
    pub(super) fn wake(&self, outboxes: &mut Vec<Arc<Outbox>>) {
        if outboxes.len() > 1 {
            self.outboxes.lock().append(outboxes);
            self.waker.wake();
        } else if let Some(only) = outboxes.pop() {
            only.wake();
        }
    }

    /// Never ends.
    pub(super) async fn run(&self) {
        let mut batch = Vec::new();
        std::future::poll_fn(|context| {
            self.waker.register(context.waker());
            std::mem::swap(&mut batch, &mut *self.outboxes.lock());
            for outbox in batch.drain(..) {
                outbox.wake();
            }
            Poll::<()>::Pending
        })
        .await;
    }
}
