//! The seam to the executor: two plain threads and the registry between them and the streams.
//!
//! The submit thread hands over what has gathered, in batches; the await thread takes whole iterations
//! and distributes them. Neither knows gRPC: rows end in an [`Outbox`].

mod distribute;
mod queue;
mod registry;
mod wake;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use inflight_kserve::step::Handle;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tonic::{Code, Status};

use crate::executor::{ClientId, Executor, Request};
use crate::metrics::Metrics;
use crate::options::WorkerError;
use crate::outbox::Outbox;

use queue::SubmitQueue;
use registry::{LiveRequest, Registry};
use wake::WakeList;

/// How long the await thread waits at most before it looks whether the worker is ending. Long enough
/// to cost nothing while idle.
const AWAIT_TIMEOUT: Duration = Duration::from_secs(1);

/// What became of the engine, for those who wait on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health {
    /// A token went through the executor.
    pub(crate) proven: bool,
    /// No new requests are taken.
    pub(crate) draining: bool,
    pub(crate) failed: Option<String>,
}

impl Health {
    pub(crate) fn is_ready(&self) -> bool {
        self.proven && !self.draining && self.failed.is_none()
    }
}

/// Why the engine takes no request now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAdmitted {
    #[error("the worker holds `{limit}` requests, all it may: try again later")]
    Full { limit: usize },
    #[error("model `tensorrt_llm` is not ready yet: its first token has not come through")]
    NotProven,
    #[error("the worker is shutting down: use another")]
    Draining,
    #[error("the executor has failed: the worker is ending")]
    Failed,
}

impl NotAdmitted {
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Full { .. } => Code::ResourceExhausted,
            Self::NotProven | Self::Draining | Self::Failed => Code::Unavailable,
        }
    }
}

/// Where a request's rows go.
pub(crate) enum Destination {
    Step {
        handle: Handle,
        wants_cached_tokens: bool,
    },
    Plain {
        id: Option<String>,
    },
}

/// The engine, shared by the streams and the two threads.
pub(crate) struct Engine {
    executor: Arc<dyn Executor>,
    registry: Mutex<Registry>,
    queue: SubmitQueue,
    wakes: WakeList,
    health: watch::Sender<Health>,
    pub(crate) metrics: Arc<Metrics>,
    started: Instant,
    /// Milliseconds since `started` at which the executor last moved, or last began to have work.
    last_progress: AtomicU64,
    stopping: AtomicBool,
    max_live: usize,
    slow_reader_timeout: Duration,
}

/// Ends when both threads have.
pub(crate) type Threads = [oneshot::Receiver<()>; 2];

impl Engine {
    /// Starts both threads.
    pub(crate) fn start(
        executor: Arc<dyn Executor>,
        max_live: usize,
        slow_reader_timeout: Duration,
        metrics: Arc<Metrics>,
    ) -> Result<(Arc<Self>, Threads), WorkerError> {
        let engine = Arc::new(Self {
            executor,
            registry: Mutex::default(),
            queue: SubmitQueue::default(),
            wakes: WakeList::default(),
            health: watch::Sender::new(Health::default()),
            metrics,
            started: Instant::now(),
            last_progress: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            max_live,
            slow_reader_timeout,
        });
        let submit = spawn("submit thread", &engine, Self::submit_until_closed)?;
        let awaiting =
            spawn("await thread", &engine, distribute::run).inspect_err(|_| engine.stop())?;
        Ok((engine, [submit, awaiting]))
    }

    /// Passes the await thread's wakes on, inside the runtime; never ends.
    pub(crate) async fn run_wakes(&self) {
        self.wakes.run().await;
    }

    pub(crate) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    pub(crate) fn set_proven(&self) {
        self.health.send_modify(|health| health.proven = true);
    }

    /// Takes no more requests; what runs goes on.
    pub(crate) fn begin_drain(&self) {
        self.health.send_modify(|health| health.draining = true);
    }

    /// Requests at the executor or on the way there.
    pub(crate) fn live(&self) -> usize {
        self.registry.lock().live()
    }

    /// Requests not yet handed over.
    pub(crate) fn pending(&self) -> usize {
        self.queue.pending()
    }

    /// Takes one client's request: as many executor requests as its batch has rows. `prepare` runs
    /// with their ids before any row can come.
    pub(crate) fn submit(
        &self,
        mut requests: Vec<Request>,
        outbox: &Arc<Outbox>,
        destination: &Destination,
        prepare: impl FnOnce(&[ClientId]),
    ) -> Result<(), NotAdmitted> {
        let now = Instant::now();
        self.admissible()?;
        let handle = match destination {
            Destination::Step { handle, .. } => Some(*handle),
            Destination::Plain { .. } => None,
        };
        let mut ids = Vec::with_capacity(requests.len());
        let listened;
        {
            let mut registry = self.registry.lock();
            if registry.live() + requests.len() > self.max_live {
                drop(registry);
                self.metrics.rejected(requests.len());
                return Err(NotAdmitted::Full {
                    limit: self.max_live,
                });
            }
            if registry.live() == 0 {
                self.note_progress(now);
            }
            for request in &mut requests {
                let prompt_tokens = request.input_token_ids.len();
                let live = LiveRequest::new(outbox, destination, prompt_tokens, now);
                request.client_id = registry.insert(live);
                ids.push(request.client_id);
            }
            // Under the lock: a failure that sweeps the registry owes these rows to someone.
            listened = outbox.admit(&ids, handle);
            prepare(&ids);
            if let Destination::Plain { id: Some(id) } = destination {
                registry.name(id, &ids);
            }
        }
        self.queue.push_requests(requests);
        if !listened {
            self.abandon(&ids);
        }
        // A failure meanwhile has swept the registry perhaps before these were in it.
        if self.health.borrow().failed.is_some() {
            self.sweep("the executor has failed");
        }
        Ok(())
    }

    fn admissible(&self) -> Result<(), NotAdmitted> {
        let health = self.health.borrow();
        if health.failed.is_some() {
            return Err(NotAdmitted::Failed);
        }
        if health.draining {
            return Err(NotAdmitted::Draining);
        }
        if !health.proven {
            return Err(NotAdmitted::NotProven);
        }
        Ok(())
    }

    /// Submits the one-token request that proves readiness; the answer says whether it came through.
    pub(crate) fn submit_canary(&self) -> oneshot::Receiver<Result<(), String>> {
        let (sender, receiver) = oneshot::channel();
        let now = Instant::now();
        let mut request = Request {
            input_token_ids: vec![0],
            max_tokens: 1,
            streaming: true,
            ..Request::default()
        };
        request.sampling_config.beam_width = 1;
        request.sampling_config.num_return_sequences = 1;
        request.sampling_config.top_k = Some(1);
        self.note_progress(now);
        let live = LiveRequest::canary(sender, now);
        request.client_id = self.registry.lock().insert(live);
        self.queue.push_requests(vec![request]);
        // As in `submit`: an executor may fail before its first request is in the registry.
        if self.health.borrow().failed.is_some() {
            self.sweep("the executor has failed");
        }
        receiver
    }

    /// Asks the executor to end these; each still gets its final row.
    pub(crate) fn cancel(&self, client_ids: &[ClientId]) {
        if !client_ids.is_empty() {
            self.queue.push_cancels(client_ids);
        }
    }

    /// Ends requests whose stream is gone: their rows go nowhere from now on.
    pub(crate) fn abandon(&self, client_ids: &[ClientId]) {
        if client_ids.is_empty() {
            return;
        }
        let mut registry = self.registry.lock();
        for client_id in client_ids {
            if let Some(request) = registry.get_mut(*client_id) {
                request.silence();
            }
        }
        drop(registry);
        self.cancel(client_ids);
    }

    /// Ends the live requests with this request id; false: there are none (any more).
    pub(crate) fn cancel_named(&self, id: &str) -> bool {
        let ids = self.registry.lock().named(id);
        self.cancel(&ids);
        !ids.is_empty()
    }

    pub(crate) fn cancel_all(&self) {
        let ids = self.registry.lock().ids();
        self.cancel(&ids);
    }

    /// The executor is broken: every request gets an error, no more are taken. The first reason stays.
    pub(crate) fn fail(&self, reason: &str) {
        let first = self.health.send_if_modified(|health| {
            let first = health.failed.is_none();
            if first {
                health.failed = Some(reason.to_owned());
            }
            first
        });
        if first {
            tracing::error!("{reason}; the worker is ending");
        }
        self.sweep(reason);
        self.stop();
    }

    fn sweep(&self, reason: &str) {
        let requests = self.registry.lock().drain();
        // Clients learn that the executor failed, not how: that is in the log.
        distribute::fail_all(requests, reason, &self.metrics);
    }

    /// Lets both threads end: at once, or within [`AWAIT_TIMEOUT`].
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.queue.close();
    }

    /// How long requests have waited for a sign of life; `None` while there are none.
    pub(crate) fn stalled_for(&self, now: Instant) -> Option<Duration> {
        if self.live() == 0 {
            return None;
        }
        let since = Duration::from_millis(self.last_progress.load(Ordering::Relaxed));
        Some(
            now.saturating_duration_since(self.started)
                .saturating_sub(since),
        )
    }

    fn note_progress(&self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.started).as_millis() as u64;
        self.last_progress.store(elapsed, Ordering::Relaxed);
    }

    pub(crate) fn executor(&self) -> &Arc<dyn Executor> {
        &self.executor
    }

    fn submit_until_closed(&self) {
        while let Some(batch) = self.queue.take() {
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
                    return;
                }
            }
            if !batch.cancels.is_empty()
                && let Err(failed) = self.executor.cancel(&batch.cancels)
            {
                self.fail(&failed.to_string());
                return;
            }
        }
    }

    /// Ends a stream whose client does not read.
    fn drop_slow_reader(&self, outbox: &Outbox) {
        let status = Status::resource_exhausted(format!(
            "the client read nothing for {} s: its requests were cancelled",
            self.slow_reader_timeout.as_secs()
        ));
        tracing::warn!("{}", status.message());
        let ids = outbox.fail(status);
        self.abandon(&ids);
    }
}

/// Runs `body` on a thread of its own; a panic there is a failure of the engine, not a silent end.
fn spawn(
    name: &'static str,
    engine: &Arc<Engine>,
    body: impl FnOnce(&Engine) + Send + 'static,
) -> Result<oneshot::Receiver<()>, WorkerError> {
    let engine = Arc::clone(engine);
    let (done, receiver) = oneshot::channel();
    std::thread::Builder::new()
        .name(format!("inflight {name}"))
        .spawn(move || {
            if catch_unwind(AssertUnwindSafe(|| body(&engine))).is_err() {
                engine.fail(&format!("the worker's {name} panicked"));
            }
            // Nobody may be waiting any more.
            let _ = done.send(());
        })
        .map_err(|source| WorkerError::Thread { name, source })?;
    Ok(receiver)
}
