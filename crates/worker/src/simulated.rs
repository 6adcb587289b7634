//! The simulated executor: paces tokens by a timing model, without a model behind it.
//!
//! For load tests, capacity planning and measuring everything else. Owns the clock and the waiting; what
//! happens in an iteration is decided by [`scheduler`], which never reads a clock.

mod active;
mod answer;
mod blocks;
mod cache;
mod options;
mod phase;
mod scheduler;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::executor::{
    CacheReports, ClientId, Executor, ExecutorFailed, IterationStats, Level, ModelInfo, Parent,
    Request, ResponseBatch,
};

pub use options::SimulatedOptions;

use cache::{CacheChange, Holds};
use scheduler::{Next, Scheduler};

/// An [`Executor`] over the timing model of [`SimulatedOptions`].
pub struct SimulatedExecutor {
    info: ModelInfo,
    started: Instant,
    scheduler: Mutex<Scheduler>,
    /// Set before the first request, where blocks are reused.
    reports: OnceLock<CacheReports>,
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
            reports: OnceLock::new(),
            changed: Condvar::new(),
        }
    }

    /// Reports what has changed in the cache. Under the scheduler's lock, so that changes are reported in order.
    fn report(&self, scheduler: &mut Scheduler) {
        let Some(reports) = self.reports.get() else {
            return;
        };
        let changes = scheduler.take_cache_changes();
        if changes.is_empty() {
            return;
        }
        reports.report(|blocks| {
            for change in changes {
                match change {
                    CacheChange::Stored(key, after, Holds::Seed(seed)) => {
                        blocks.stored_key(key, after, seed, Level::Device);
                    }
                    CacheChange::Stored(key, after, Holds::Tokens(origin, tokens)) => {
                        let parent = match after {
                            0 => Parent::First(&origin),
                            after => Parent::Block(after),
                        };
                        blocks.stored(key, parent, &tokens, Level::Device);
                    }
                    CacheChange::Removed(key) => blocks.removed(key),
                }
            }
        });
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
            self.report(&mut scheduler);
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

    fn report_cache(&self, reports: CacheReports) -> Result<(), ExecutorFailed> {
        let mut scheduler = self.scheduler.lock();
        let blocks = scheduler.report_cache(reports.wants_tokens());
        reports.report(|held| held.set_capacity(blocks.into(), 0));
        // Once; a second call would find the first one's.
        let _ = self.reports.set(reports);
        Ok(())
    }

    fn stats(&self) -> Result<Vec<IterationStats>, ExecutorFailed> {
        Ok(self.scheduler.lock().drain_stats())
    }

    fn shutdown(&self) {
        self.scheduler.lock().shut_down();
        self.changed.notify_all();
    }
}
