//! Requests and cancels on their way to the submit thread. Bounded by the registry: every entry belongs
//! to a live request.

use parking_lot::{Condvar, Mutex};

use crate::executor::{ClientId, Request};

#[derive(Default)]
pub(super) struct SubmitQueue {
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Default)]
struct State {
    batch: Batch,
    closed: bool,
}

/// Everything that arrived while the executor took the last batch.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) requests: Vec<Request>,
    pub(super) cancels: Vec<ClientId>,
}

impl SubmitQueue {
    pub(super) fn push_requests(&self, requests: Vec<Request>) {
        self.state.lock().batch.requests.extend(requests);
        self.filled.notify_one();
    }

    pub(super) fn push_cancels(&self, client_ids: &[ClientId]) {
        self.state
            .lock()
            .batch
            .cancels
            .extend_from_slice(client_ids);
        self.filled.notify_one();
    }

    pub(super) fn pending(&self) -> usize {
        self.state.lock().batch.requests.len()
    }

    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_one();
    }

    /// What waits now, if anything does. The order of its parts is that of [`take`](Self::take).
    pub(super) fn take_waiting(&self) -> Option<Batch> {
        let mut state = self.state.lock();
        let is_empty = state.batch.requests.is_empty() && state.batch.cancels.is_empty();
        (!is_empty).then(|| std::mem::take(&mut state.batch))
    }

    /// Waits for a batch; `None` once the queue is closed and empty. Hand over its requests before its
    /// cancels, so that a cancel never overtakes its request.
    pub(super) fn take(&self) -> Option<Batch> {
        let mut state = self.state.lock();
        loop {
            if !state.batch.requests.is_empty() || !state.batch.cancels.is_empty() {
                return Some(std::mem::take(&mut state.batch));
            }
            if state.closed {
                return None;
            }
            self.filled.wait(&mut state);
        }
    }
}
