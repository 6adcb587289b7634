//! Ends requests whose time has come: in the line beyond the limit on its wait, or past their deadline.
//! Each gets its final row at once, an error; what the executor still returns for it is dropped.

use std::sync::atomic::Ordering;
use std::time::Instant;

use inflight_kserve::step::RowError;
use tokio::time::sleep_until;
use tonic::Code;

use super::Engine;
use super::distribute::put_error;
use super::registry::Due;
use crate::outbox::Moment;

impl Engine {
    /// Ends requests when their time comes, inside the runtime; never ends.
    pub(crate) async fn run_expiry(&self) {
        loop {
            let changed = self.due_changed.notified();
            let next = self.registry.lock().next_due();
            match next {
                None => changed.await,
                Some(time) => {
                    tokio::select! {
                        () = changed => {}
                        () = sleep_until(time.into()) => self.expire(Instant::now()),
                    }
                }
            }
        }
    }

    fn expire(&self, now: Instant) {
        let moment = Moment {
            now,
            // No iteration has this number, so the rows count as those of another one.
            iteration: u64::MAX,
        };
        let mut cancelled = Vec::new();
        let mut outboxes = Vec::new();
        let mut registry = self.registry.lock();
        for (client_id, due) in registry.take_due(now) {
            let Some(request) = registry.get_mut(client_id) else {
                continue;
            };
            let (code, text) = match due {
                Due::QueueLimit => (
                    Code::ResourceExhausted,
                    format!(
                        "the worker is full: the request waited `{:.1}` s for its turn; retry later",
                        self.limits.max_queue_wait.as_secs_f64()
                    ),
                ),
                Due::Deadline => (
                    Code::DeadlineExceeded,
                    "the request's time has run out; allow more with `timeout`, or generate fewer \
                     tokens"
                        .to_owned(),
                ),
            };
            // Its client has left otherwise, and it is being cancelled.
            if let Some(outbox) = request.outbox.take() {
                request.error = Some((code, text.as_str().into()));
                let retry_after_ms = match due {
                    Due::QueueLimit => {
                        u32::try_from(self.limits.max_queue_wait.as_millis()).unwrap_or(u32::MAX)
                    }
                    Due::Deadline => 0,
                };
                let error = RowError {
                    row: 0,
                    code,
                    text,
                    retry_after_ms,
                };
                put_error(&outbox, request.handle, client_id, &error, moment);
                outboxes.push(outbox);
                cancelled.push(client_id);
            }
        }
        drop(registry);
        for outbox in outboxes {
            outbox.wake();
        }
        if !self.stopping.load(Ordering::Acquire) {
            self.cancel(&cancelled);
        }
    }
}
