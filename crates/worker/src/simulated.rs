//! The simulated executor: tokens on a timing model with no model behind them.
//!
//! For load tests, capacity planning and measuring everything else. Owns the clock and the waiting;
//! what happens in an iteration is [`engine`]'s, which never reads a clock.

mod engine;
pub mod options;

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::executor::{
    Executor, ExecutorFailed, IterationStats, ModelInfo, Request, ResponseBatch,
};

pub use options::SimulatedOptions;

use engine::{Engine, Next};

/// An [`Executor`] over the timing model of [`SimulatedOptions`].
pub struct SimulatedExecutor {
    info: ModelInfo,
    started: Instant,
    engine: Mutex<Engine>,
    /// Work arrived, or the executor is ending.
    changed: Condvar,
}

impl SimulatedExecutor {
    /// Costs nothing until the first request: there is no thread behind it.
    pub fn new(options: SimulatedOptions) -> Self {
        Self {
            info: options.info(),
            started: Instant::now(),
            engine: Mutex::new(Engine::new(options)),
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
        let mut engine = self.engine.lock();
        for request in requests {
            engine.enqueue(request, now);
        }
        self.changed.notify_all();
        Ok(())
    }

    fn cancel(&self, client_ids: &[u64]) -> Result<(), ExecutorFailed> {
        let mut engine = self.engine.lock();
        for client_id in client_ids {
            engine.cancel(*client_id);
        }
        self.changed.notify_all();
        Ok(())
    }

    fn await_responses(&self, timeout: Duration) -> Result<ResponseBatch, ExecutorFailed> {
        let deadline = self.started.elapsed() + timeout;
        let mut batch = ResponseBatch::default();
        let mut engine = self.engine.lock();
        loop {
            let now = self.started.elapsed();
            let next = engine.advance(now, &mut batch.rows);
            if !batch.rows.handles.is_empty() || now >= deadline {
                // At a step cost of 0 the next await follows at once: new requests go first.
                MutexGuard::unlock_fair(engine);
                return Ok(batch);
            }
            let wake = match next {
                Next::At(time) => time.min(deadline),
                Next::Idle => deadline,
            };
            self.changed.wait_for(&mut engine, wake.saturating_sub(now));
            if engine.is_shut_down() {
                return Ok(batch);
            }
        }
    }

    fn stats(&self) -> Result<Vec<IterationStats>, ExecutorFailed> {
        Ok(self.engine.lock().drain_stats())
    }

    fn shutdown(&self) {
        self.engine.lock().shut_down();
        self.changed.notify_all();
    }
}
