//! Workers: the real service over the simulated executor, which is watched. Owns what executors were given and have
//! not ended; what that must be is the oracle's.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use inflight_testkit::model::{VOCABULARY, byte_model_files};
use inflight_worker::executor::{
    CacheReports, ClientId, Executor, ExecutorFailed, IterationStats, ModelInfo, Request,
    ResponseBatch,
};
use inflight_worker::{SimulatedExecutor, SimulatedOptions, WorkerOptions, serve_on_network};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::history::note;
use crate::network::SimulatedListener;
use crate::plan::WorkerPlan;
use crate::question::MODEL;

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
}

impl WorkerHost {
    pub(crate) fn new(name: String, plan: WorkerPlan) -> Self {
        Self {
            name,
            plan,
            leave: Arc::default(),
            executor: RefCell::default(),
            starts: Cell::new(0),
        }
    }

    /// Requests that the executor was given and has not ended.
    pub(crate) fn open(&self) -> usize {
        let executor = self.executor.borrow();
        executor
            .as_ref()
            .map_or(0, |executor| executor.live.lock().len())
    }

    /// Whether the executor holds a request whose prompt has this text.
    pub(crate) fn holds(&self, text: &str) -> bool {
        let executor = self.executor.borrow();
        executor.as_ref().is_some_and(|executor| {
            let live = executor.live.lock();
            let has_text = |prompt: &Vec<u8>| {
                let mut parts = prompt.windows(text.len());
                parts.any(|part| part == text.as_bytes())
            };
            live.values().any(has_text)
        })
    }

    /// One process, from its start to its end.
    pub(crate) async fn run(self: Rc<Self>) -> turmoil::Result {
        let listener = SimulatedListener::bind(PORT).await?;
        self.starts.set(self.starts.get() + 1);
        note(&self.name, "start", &self.starts.get().to_le_bytes());
        let executor = SimulatedExecutor::new(SimulatedOptions {
            step_us: f64::from(self.plan.step_us),
            max_batch_size: self.plan.max_batch_size,
            num_blocks: self.plan.blocks,
            enable_kv_cache_reuse: self.plan.reuses,
            max_seq_len: 1024,
            vocab_size: VOCABULARY,
            ..SimulatedOptions::default()
        });
        let executor = Arc::new(Watched {
            host: self.name.clone(),
            inner: executor,
            live: Mutex::default(),
        });
        *self.executor.borrow_mut() = Some(Arc::clone(&executor));
        let options = WorkerOptions {
            served_model_name: MODEL.to_owned(),
            assets: byte_model_files().into_iter().collect(),
            drain_timeout: self.plan.drain,
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

/// The simulated executor, and what it was given and has not ended.
struct Watched {
    host: String,
    inner: SimulatedExecutor,
    /// With their prompts.
    live: Mutex<BTreeMap<ClientId, Vec<u8>>>,
}

impl Executor for Watched {
    fn info(&self) -> ModelInfo {
        self.inner.info()
    }

    fn enqueue(&self, requests: Vec<Request>) -> Result<(), ExecutorFailed> {
        for request in &requests {
            let generated = request.generated.iter();
            let generated: Vec<_> = generated.map(|one| one.as_ref().map(Vec::len)).collect();
            let (id, most) = (request.client_id.0, request.max_tokens);
            let prompt = &request.input_token_ids;
            let said = format!("{id} {prompt:?} {most} {generated:?}");
            note(&self.host, "enqueue", said.as_bytes());
            // The model's tokens are bytes.
            let prompt = prompt.iter().map(|token| *token as u8).collect();
            self.live.lock().insert(request.client_id, prompt);
        }
        self.inner.enqueue(requests)
    }

    fn cancel(&self, client_ids: &[ClientId]) -> Result<(), ExecutorFailed> {
        note(&self.host, "cancel", format!("{client_ids:?}").as_bytes());
        self.inner.cancel(client_ids)
    }

    fn await_responses(&self, timeout: Duration) -> Result<ResponseBatch, ExecutorFailed> {
        let batch = self.inner.await_responses(timeout)?;
        let rows = &batch.rows;
        if !rows.ids.is_empty() {
            let said = format!("{:?} {:?}", rows.ids, rows.token_ids);
            note(&self.host, "rows", said.as_bytes());
        }
        let mut live = self.live.lock();
        for (id, is_final) in rows.ids.iter().zip(&rows.finals) {
            if *is_final != 0 {
                live.remove(id);
            }
        }
        Ok(batch)
    }

    fn report_cache(&self, reports: CacheReports) -> Result<(), ExecutorFailed> {
        self.inner.report_cache(reports)
    }

    fn stats(&self) -> Result<Vec<IterationStats>, ExecutorFailed> {
        self.inner.stats()
    }

    fn shutdown(&self) {
        self.inner.shutdown();
    }
}
