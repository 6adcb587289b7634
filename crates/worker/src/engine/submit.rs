//! The submit thread: gives the executor what has gathered. Also how a thread of the engine is started.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use inflight_base::thread;
use tokio::sync::oneshot;

use super::Engine;
use super::queue::Batch;
use crate::options::WorkerError;

/// Runs until the queue is closed or the executor fails.
pub(super) fn run(engine: &Engine) {
    while let Some(batch) = engine.queue.take() {
        if !engine.hand_over(batch) {
            return;
        }
    }
}

impl Engine {
    /// Gives the executor what has gathered. Returns whether it takes more.
    pub(super) fn hand_over(&self, batch: Batch) -> bool {
        if !batch.requests.is_empty() {
            let now = Instant::now();
            let mut registry = self.registry.lock();
            for request in &batch.requests {
                if let Some(live) = registry.get_mut(request.client_id) {
                    live.handed_over = Some(now);
                }
            }
            drop(registry);
            if let Err(failed) = self.executor.enqueue(batch.requests) {
                self.fail(&failed.to_string());
                return false;
            }
        }
        if !batch.cancels.is_empty()
            && let Err(failed) = self.executor.cancel(&batch.cancels)
        {
            self.fail(&failed.to_string());
            return false;
        }
        true
    }
}

/// Runs `body` on a separate thread. A panic there fails the engine instead of ending it silently.
pub(super) fn spawn(
    name: &'static str,
    engine: &Arc<Engine>,
    body: impl FnOnce(&Engine) + Send + 'static,
) -> Result<oneshot::Receiver<()>, WorkerError> {
    let engine = Arc::clone(engine);
    let (done, receiver) = oneshot::channel();
    let work = move || {
        if catch_unwind(AssertUnwindSafe(|| body(&engine))).is_err() {
            engine.fail(&format!("the worker's {name} panicked"));
        }
        // Nobody waits for it once the worker has given up.
        let _ = done.send(());
    };
    thread::start(&format!("inflight {name}"), work)
        .map_err(|source| WorkerError::Thread { name, source })?;
    Ok(receiver)
}
