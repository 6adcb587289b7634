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

use crate::determinism::elapsed;
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
}

/// What happened at the executors of a worker's processes.
#[derive(Default)]
struct Said {
    /// Requests that were cancelled while they ran.
    cancelled: Vec<Cancelled>,
    /// When resumed requests came to their end, and their prompts.
    resumed: Vec<(Duration, Vec<u8>)>,
}

/// A request that was cancelled while it ran.
struct Cancelled {
    at: Duration,
    /// How long the executor had had it.
    after: Duration,
    /// Whether it had generated anything.
    has_begun: bool,
    prompt: Vec<u8>,
}

/// A request that an executor has.
struct Held {
    since: Duration,
    prompt: Vec<u8>,
    has_begun: bool,
    is_resumed: bool,
    is_cancelled: bool,
}

impl WorkerHost {
    pub(crate) fn new(name: String, plan: WorkerPlan) -> Self {
        Self {
            name,
            plan,
            leave: Arc::default(),
            executor: RefCell::default(),
            starts: Cell::new(0),
            cuts: Arc::default(),
            said: Arc::default(),
        }
    }

    /// Requests that the executor was given and has not ended.
    pub(crate) fn open(&self) -> usize {
        let executor = self.executor.borrow();
        executor
            .as_ref()
            .map_or(0, |executor| executor.live.lock().len())
    }

    /// Requests that the executor was given before then, and has not been asked to stop.
    pub(crate) fn open_since_before(&self, then: Duration) -> usize {
        let executor = self.executor.borrow();
        executor.as_ref().map_or(0, |executor| {
            let live = executor.live.lock();
            let old = live
                .values()
                .filter(|held| held.since < then && !held.is_cancelled);
            old.count()
        })
    }

    /// Whether the executor holds a request whose prompt has this text.
    pub(crate) fn holds(&self, text: &str) -> bool {
        let executor = self.executor.borrow();
        executor.as_ref().is_some_and(|executor| {
            let live = executor.live.lock();
            live.values().any(|held| has_text(&held.prompt, text))
        })
    }

    /// When an executor was asked to stop a request whose prompt has this text, that it had begun with, or had had for less
    /// than `before`.
    pub(crate) fn cancelled(&self, text: &str, before: Duration) -> Vec<Duration> {
        let said = self.said.lock();
        let soon = said
            .cancelled
            .iter()
            .filter(|one| one.has_begun || one.after < before);
        let own = soon.filter(|one| has_text(&one.prompt, text));
        own.map(|one| one.at).collect()
    }

    /// When an executor completed a resumed request whose prompt has this text.
    pub(crate) fn completed_resumed(&self, text: &str) -> Vec<Duration> {
        let said = self.said.lock();
        let own = said.resumed.iter();
        let own = own.filter(|(_, prompt)| has_text(prompt, text));
        own.map(|(at, _)| *at).collect()
    }

    /// One process, from its start to its end.
    pub(crate) async fn run(self: Rc<Self>) -> turmoil::Result {
        let listener = SimulatedListener::bind(PORT).await?;
        let listener = listener.cut_by(Arc::clone(&self.cuts));
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
            said: Arc::clone(&self.said),
        });
        *self.executor.borrow_mut() = Some(Arc::clone(&executor));
        let options = WorkerOptions {
            served_model_name: MODEL.to_owned(),
            assets: byte_model_files().into_iter().collect(),
            drain_timeout: self.plan.drain,
            max_grpc_connections: CONNECTIONS,
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
    live: Mutex<BTreeMap<ClientId, Held>>,
    said: Arc<Mutex<Said>>,
}

fn has_text(prompt: &[u8], text: &str) -> bool {
    let mut parts = prompt.windows(text.len().max(1));
    parts.any(|part| part == text.as_bytes())
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
            let held = Held {
                since: elapsed(),
                // The model's tokens are bytes.
                prompt: prompt.iter().map(|token| *token as u8).collect(),
                has_begun: false,
                is_resumed: !generated.is_empty(),
                is_cancelled: false,
            };
            self.live.lock().insert(request.client_id, held);
        }
        self.inner.enqueue(requests)
    }

    fn cancel(&self, client_ids: &[ClientId]) -> Result<(), ExecutorFailed> {
        note(&self.host, "cancel", format!("{client_ids:?}").as_bytes());
        let mut live = self.live.lock();
        let mut said = self.said.lock();
        for id in client_ids {
            let Some(held) = live.get_mut(id) else {
                continue;
            };
            held.is_cancelled = true;
            let at = elapsed();
            said.cancelled.push(Cancelled {
                at,
                after: at - held.since,
                has_begun: held.has_begun,
                prompt: held.prompt.clone(),
            });
        }
        drop((live, said));
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
            if *is_final == 0 {
                if let Some(held) = live.get_mut(id) {
                    held.has_begun = true;
                }
                continue;
            }
            let ended = live.remove(id);
            if let Some(held) = ended.filter(|held| held.is_resumed && !held.is_cancelled) {
                self.said.lock().resumed.push((elapsed(), held.prompt));
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
