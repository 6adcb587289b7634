//! The simulated executor: paces tokens by a timing model, without a model behind it.
//!
//! For load tests, capacity planning and measuring everything else. Owns the clock and the waiting; what
//! happens in an iteration is decided by [`scheduler`], which never reads a clock.

mod options;
mod scheduler;

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::executor::{
    ClientId, Executor, ExecutorFailed, IterationStats, ModelInfo, Request, ResponseBatch,
};

pub use options::SimulatedOptions;

use scheduler::{Next, Scheduler};

/// An [`Executor`] over the timing model of [`SimulatedOptions`].
pub struct SimulatedExecutor {
    info: ModelInfo,
    started: Instant,
    scheduler: Mutex<Scheduler>,
    /// Notified when work arrives and at shutdown.
    changed: Condvar,
}

impl SimulatedExecutor {
    /// Starts no thread: an idle executor costs nothing.
    pub fn new(options: SimulatedOptions) -> Self {
        Self {
            info: options.info(),
            started: Instant::now(),
            scheduler: Mutex::new(Scheduler::new(options)),
            changed: Condvar::new(),
        }
    }
}

impl Executor for SimulatedExecutor {
    fn info(&self) -> ModelInfo {
        self.info.clone()
    }

    fn enqueue(&self, requests: Vec<Request>) -> Result<(), ExecutorFailed> {
        let now = self.started.elapsed();
        let mut scheduler = self.scheduler.lock();
        for request in requests {
            scheduler.enqueue(request, now);
        }
        self.changed.notify_all();
        Ok(())
    }

    fn cancel(&self, client_ids: &[ClientId]) -> Result<(), ExecutorFailed> {
        let mut scheduler = self.scheduler.lock();
        for client_id in client_ids {
            scheduler.cancel(*client_id);
        }
        self.changed.notify_all();
        Ok(())
    }

    fn await_responses(&self, timeout: Duration) -> Result<ResponseBatch, ExecutorFailed> {
        let deadline = self.started.elapsed() + timeout;
        let mut batch = ResponseBatch::default();
        let mut scheduler = self.scheduler.lock();
        loop {
            let now = self.started.elapsed();
            let next = scheduler.advance(now, &mut batch.rows);
            if !batch.rows.ids.is_empty() || now >= deadline {
                // At no cost per iteration the next await follows at once; new requests go first.
                MutexGuard::unlock_fair(scheduler);
                return Ok(batch);
            }
            let wake = match next {
                Next::At(time) => time.min(deadline),
                Next::Idle => deadline,
            };
            self.changed
                .wait_for(&mut scheduler, wake.saturating_sub(now));
            if scheduler.is_shut_down() {
                return Ok(batch);
            }
        }
    }

    fn stats(&self) -> Result<Vec<IterationStats>, ExecutorFailed> {
        Ok(self.scheduler.lock().drain_stats())
    }

    fn shutdown(&self) {
        self.scheduler.lock().shut_down();
        self.changed.notify_all();
    }
}
