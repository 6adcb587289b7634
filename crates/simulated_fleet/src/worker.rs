//! Workers: the real service over the simulated executor, which is watched. Owns a worker's place in the fleet, and the
//! processes that run there.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use inflight_testkit::model::{VOCABULARY, byte_model_files};
use inflight_worker::{SimulatedExecutor, SimulatedOptions, WorkerOptions, serve_on_network};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::executor::{LeftBlocks, Moves, Room, Said, Watched};
use crate::history::note;
use crate::network::{Cuts, SimulatedListener};
use crate::plan::WorkerPlan;
use crate::question::MODEL;

/// Connections of a worker at once: some for each time that a gateway lost it and it did not notice.
pub(crate) const CONNECTIONS: usize = 16;

/// Where workers listen.
pub(crate) const PORT: u16 = 8001;

/// A worker's place in the fleet; its process may begin and end many times.
pub(crate) struct WorkerHost {
    pub(crate) name: String,
    plan: WorkerPlan,
    /// Asks the process that runs to leave.
    pub(crate) leave: Arc<Notify>,
    /// Of the process that runs, or ran last.
    executor: RefCell<Option<Arc<Watched>>>,
    /// Processes so far.
    starts: Cell<u32>,
    /// Resets its connections.
    pub(crate) cuts: Arc<Cuts>,
    said: Arc<Mutex<Said>>,
    /// Of the request whose way over all workers is followed.
    moves: Option<Arc<Mutex<Moves>>>,
    left_blocks: LeftBlocks,
    /// How many it takes.
    connections: usize,
}

impl WorkerHost {
    /// One that takes so many connections.
    pub(crate) fn new(
        name: String,
        plan: WorkerPlan,
        moves: Option<Arc<Mutex<Moves>>>,
        left_blocks: LeftBlocks,
        connections: usize,
    ) -> Self {
        Self {
            name,
            plan,
            connections,
            leave: Arc::default(),
            executor: RefCell::default(),
            starts: Cell::new(0),
            cuts: Arc::default(),
            said: Arc::default(),
            moves,
            left_blocks,
        }
    }

    /// What happened at the executors of all its processes.
    pub(crate) fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock()
    }

    /// Its process has ended.
    pub(crate) fn end_process(&self) {
        self.said.lock().end_process();
        self.left_blocks.end_process(&self.name);
    }

    /// Requests that the executor was given and has not ended.
    pub(crate) fn open(&self) -> usize {
        let executor = self.executor.borrow();
        executor.as_ref().map_or(0, |executor| executor.open())
    }

    /// Requests that the executor was given before then, and has not been asked to stop.
    pub(crate) fn open_since_before(&self, then: Duration) -> usize {
        let executor = self.executor.borrow();
        executor
            .as_ref()
            .map_or(0, |executor| executor.open_since_before(then))
    }

    /// Whether the executor holds a request whose prompt has this text.
    pub(crate) fn holds(&self, text: &str) -> bool {
        let executor = self.executor.borrow();
        executor
            .as_ref()
            .is_some_and(|executor| executor.holds(text))
    }

    /// One process, from its start to its end.
    pub(crate) async fn run(self: Rc<Self>) -> turmoil::Result {
        let listener = SimulatedListener::bind(PORT).await?;
        let listener = listener.cut_by(Arc::clone(&self.cuts));
        self.starts.set(self.starts.get() + 1);
        note(&self.name, "start", &self.starts.get().to_le_bytes());
        let executor = SimulatedExecutor::new(SimulatedOptions {
            step_us: f64::from(self.plan.step_us),
            prefill_us_per_token: f64::from(self.plan.prefill_us),
            // Long enough for something to happen meanwhile.
            transfer_us_per_token: 200.0,
            max_num_tokens: self.plan.max_num_tokens,
            max_batch_size: self.plan.max_batch_size,
            num_blocks: self.plan.blocks,
            enable_kv_cache_reuse: self.plan.reuses,
            max_seq_len: 1024,
            vocab_size: VOCABULARY,
            ..SimulatedOptions::default()
        });
        let room = Room {
            sequences: self.plan.max_batch_size as usize,
            blocks: self.plan.blocks as usize,
        };
        self.end_process();
        let executor = Arc::new(Watched::new(
            self.name.clone(),
            (executor, room),
            Arc::clone(&self.said),
            self.moves.clone(),
            self.left_blocks.clone(),
        ));
        *self.executor.borrow_mut() = Some(Arc::clone(&executor));
        let options = WorkerOptions {
            served_model_name: MODEL.to_owned(),
            assets: byte_model_files().into_iter().collect(),
            drain_timeout: self.plan.drain,
            max_queued_requests: self.plan.max_queued_requests,
            max_grpc_connections: self.connections,
            phases: self.plan.phases,
            ..WorkerOptions::default()
        };
        let address = (turmoil::lookup(self.name.as_str()), PORT).into();
        let leave = Arc::clone(&self.leave);
        let leaving = async move { leave.notified().await };
        let exit = serve_on_network(listener, address, executor, options, leaving).await?;
        note(&self.name, "exit", format!("{exit:?}").as_bytes());
        Ok(())
    }
}
