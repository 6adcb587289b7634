//! Between the streams and the executor: two plain threads, or one task in their place, and the registry of live
//! requests.
//!
//! The submit thread hands waiting requests over in batches. The await thread takes whole iterations and
//! distributes their rows. Neither knows gRPC: rows end up in an [`Outbox`].

mod distribute;
mod expire;
mod health;
mod line;
mod names;
mod queue;
mod registry;
mod series;
mod submit;
mod wake;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use inflight_kserve::names as tensors;
use inflight_kserve::step::Handle;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use tonic::Status;

use crate::cache::Board;
use crate::executor::{ClientId, Executor, NamedTensor, Request};
use crate::metrics::Metrics;
use crate::options::WorkerError;
use crate::outbox::Outbox;
use crate::trace::RequestTrace;

pub(crate) use health::{Health, NotAdmitted};
pub(crate) use line::StartOrder;
use line::TooLong;
pub(crate) use names::Named;
use names::RequestName;
use queue::SubmitQueue;
use registry::{LiveRequest, Registry, Waits};
pub(crate) use registry::{MOST_LIVE, place_of};
use series::{AllSeries, Series};
use wake::WakeList;

/// How long the await thread waits at most before it checks whether the worker is shutting down. Long
/// enough to cost nothing while idle.
const AWAIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Samples of the clip that a model which transcribes is proven with.
const CANARY_SAMPLES: i64 = 1600;
/// How long a request that another worker began may wait for a place in the batch: the default of the gateways'
/// `--resume-wait-s`, which is not sent along.
const RESUMED_WAIT: Duration = Duration::from_secs(30);

/// Where a request's rows go.
pub(crate) enum Destination {
    Step {
        handle: Handle,
        wants_cached_tokens: bool,
        may_wait: bool,
        /// The last row has what the context phase leaves.
        context_only: bool,
    },
    Plain {
        id: Option<String>,
        /// The client's address, which distinguishes its connection from others.
        connection: Option<SocketAddr>,
    },
}

/// The engine, shared by the streams and the two threads.
pub(crate) struct Engine {
    executor: Arc<dyn Executor>,
    registry: Mutex<Registry>,
    series: AllSeries,
    queue: SubmitQueue,
    wakes: WakeList,
    health: watch::Sender<Health>,
    pub(crate) metrics: Arc<Metrics>,
    cache: Arc<Board>,
    started: Instant,
    /// Milliseconds from `started` to the executor's last rows, or to when it last got work.
    last_progress: AtomicU64,
    stopping: AtomicBool,
    /// Notified when the earliest time at which a request is to be ended has changed.
    due_changed: Notify,
    limits: EngineLimits,
    /// Which of the process's models it is.
    place: u8,
}

/// What bounds the requests that the engine holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineLimits {
    /// Live requests in all.
    pub(crate) max_live: usize,
    /// Sequences that the executor runs at once.
    pub(crate) places: u32,
    pub(crate) order: StartOrder,
    pub(crate) max_queue_wait: Duration,
    pub(crate) slow_reader_timeout: Duration,
}

/// Each resolves when its thread has ended.
pub(crate) type Threads = Vec<oneshot::Receiver<()>>;

/// Who calls the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driving {
    /// Two threads, because calls may block.
    Threads,
    /// The runtime, by [`Engine::run_on_runtime`]: for an executor whose calls return at once.
    Runtime,
}

impl Engine {
    /// Starts both threads, where there are any. `place`: the model's among those of the process.
    pub(crate) fn start(
        executor: Arc<dyn Executor>,
        limits: EngineLimits,
        metrics: Arc<Metrics>,
        cache: Arc<Board>,
        place: u8,
        driving: Driving,
    ) -> Result<(Arc<Self>, Threads), WorkerError> {
        let engine = Arc::new(Self {
            executor,
            registry: Mutex::new(Registry::new(
                limits.places,
                limits.max_queue_wait,
                limits.order,
                place,
            )),
            series: AllSeries::default(),
            queue: SubmitQueue::default(),
            wakes: WakeList::default(),
            health: watch::Sender::new(Health::default()),
            metrics,
            cache,
            started: Instant::now(),
            last_progress: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            due_changed: Notify::new(),
            limits,
            place,
        });
        if driving == Driving::Runtime {
            return Ok((engine, Vec::new()));
        }
        let submit = submit::spawn("submit thread", &engine, submit::run)?;
        let awaiting = submit::spawn("await thread", &engine, distribute::run)
            .inspect_err(|_| engine.stop())?;
        Ok((engine, vec![submit, awaiting]))
    }

    /// Does in turn what the two threads do, `every` so often; ends when the worker stops or the executor fails.
    pub(crate) async fn run_on_runtime(&self, every: Duration) {
        let mut rows = distribute::Rows::default();
        let mut turns = tokio::time::interval(every);
        while !self.stopping.load(Ordering::Acquire) {
            turns.tick().await;
            if let Some(batch) = self.queue.take_waiting()
                && !self.hand_over(batch)
            {
                return;
            }
            if !rows.take(self, Duration::ZERO) {
                return;
            }
        }
    }

    /// Wakes the streams that the await thread names, inside the runtime; never ends.
    pub(crate) async fn run_wakes(&self) {
        self.wakes.run().await;
    }

    pub(crate) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    pub(crate) fn place(&self) -> u8 {
        self.place
    }

    pub(crate) fn set_proven(&self) {
        self.health.send_modify(|health| health.proven = true);
    }

    /// Refuses new requests; running ones continue.
    pub(crate) fn begin_drain(&self) {
        self.health.send_modify(|health| health.draining = true);
    }

    /// Requests at the executor or on the way there.
    pub(crate) fn live(&self) -> usize {
        self.registry.lock().live()
    }

    /// What waits and what runs.
    pub(crate) fn waits(&self) -> Waits {
        self.registry.lock().waits(Instant::now())
    }

    /// Takes in what the executor last said of prompts that are not complete.
    pub(crate) fn note_partial_prompts(&self) {
        if let Some(tokens) = self.metrics.figures().totals.partial_tokens {
            self.registry
                .lock()
                .note_partial_prompts(tokens, Instant::now());
        }
    }

    /// Requests not yet handed over.
    pub(crate) fn pending(&self) -> usize {
        self.queue.pending()
    }

    /// Takes one client's request: as many executor requests as its batch has rows. `prepare` runs with
    /// their ids before any row can arrive. After `timeout` it is ended, wherever it is.
    ///
    /// # Errors
    /// [`NotAdmitted`]; nothing is kept of the request.
    pub(crate) fn submit(
        &self,
        mut requests: Vec<Request>,
        outbox: &Arc<Outbox>,
        destination: &Destination,
        timeout: Option<Duration>,
        trace: Option<&Arc<RequestTrace>>,
        prepare: impl FnOnce(&[ClientId]),
    ) -> Result<(), NotAdmitted> {
        let now = Instant::now();
        self.admissible()?;
        let limits = self.limits;
        let handle = match destination {
            Destination::Step { handle, .. } => Some(*handle),
            Destination::Plain { .. } => None,
        };
        // Its client has seen the beginning of the answer, and waits for the rest.
        let is_resumed = requests.iter().any(|request| !request.generated.is_empty());
        let max_wait = match is_resumed {
            true => RESUMED_WAIT,
            false => limits.max_queue_wait,
        };
        let mut ids = Vec::with_capacity(requests.len());
        // Before the lock, since it hashes prompts.
        let prompts = requests.iter().map(|request| {
            let seed = request.names_blocks().then(|| request.cache_seed());
            (&*request.input_token_ids, seed)
        });
        let expected = self.cache.expect(prompts);
        let all = requests.first().map(|one| one.input_token_ids.len());
        let all = u32::try_from(all.unwrap_or_default()).unwrap_or(u32::MAX);
        let first_tokens = expected.first().map_or(all, |one| one.uncached_tokens);
        let mut expected = expected.into_iter();
        let listened;
        let due_changed;
        {
            let mut registry = self.registry.lock();
            if registry.live() + requests.len() > limits.max_live {
                drop(registry);
                self.metrics.rejected(requests.len());
                return Err(NotAdmitted::Full {
                    limit: limits.max_live,
                });
            }
            // The rows of a batch start one after another; the first one's wait is the request's.
            let first = requests.first().map_or(1, sequences);
            let waits = registry.check_wait(now, first, first_tokens, timeout);
            if !is_resumed && let Err(TooLong { wait, allowed }) = waits {
                drop(registry);
                self.metrics.rejected(requests.len());
                return Err(NotAdmitted::WaitTooLong { wait, allowed });
            }
            if registry.live() == 0 {
                self.note_progress(now);
            }
            for request in &mut requests {
                let prompt_tokens = request.input_token_ids.len();
                let mut live = LiveRequest::new(outbox, destination, prompt_tokens, now);
                live.sequences = sequences(request);
                if let Some(expected) = expected.next() {
                    live.uncached_tokens = expected.uncached_tokens;
                    live.waiting = expected.waiting;
                }
                live.trace = trace.cloned();
                request.client_id = registry.insert(live);
                ids.push(request.client_id);
            }
            // Under the lock, so that a failure that sweeps the registry finds an outbox for its rows.
            listened = outbox.admit(&ids, handle);
            prepare(&ids);
            if let Destination::Plain {
                id: Some(id),
                connection,
            } = destination
            {
                let name = RequestName {
                    id: id.as_str().into(),
                    connection: *connection,
                };
                registry.name(name, &ids);
            }
            let deadline = timeout.and_then(|timeout| now.checked_add(timeout));
            due_changed = registry.join_line(&ids, now, now + max_wait, deadline);
        }
        if due_changed {
            self.due_changed.notify_one();
        }
        self.queue.push_requests(requests);
        if !listened {
            self.abandon(&ids);
        }
        // The executor may have failed, and the registry been swept, before these were in it.
        if self.health.borrow().failed.is_some() {
            self.sweep("the executor failed");
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

    /// Submits the one-token request that proves readiness, and reports whether it succeeded. A model that
    /// `transcribes` gets a clip with it, a tenth of a second of silence.
    pub(crate) fn submit_canary(&self, transcribes: bool) -> oneshot::Receiver<Result<(), String>> {
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
        if transcribes {
            request.tensors.push(NamedTensor {
                name: tensors::AUDIO.to_owned(),
                datatype: "FP32".to_owned(),
                shape: vec![CANARY_SAMPLES],
                data: Bytes::from_static(&[0; 4 * CANARY_SAMPLES as usize]),
            });
        }
        self.note_progress(now);
        let live = LiveRequest::canary(sender, now);
        request.client_id = self.registry.lock().insert(live);
        self.queue.push_requests(vec![request]);
        // As in `submit`.
        if self.health.borrow().failed.is_some() {
            self.sweep("the executor failed");
        }
        receiver
    }

    /// Cancels these because their own client asked for it; each ends with a final row and no error.
    pub(crate) fn stop_requests(&self, client_ids: &[ClientId]) {
        let mut registry = self.registry.lock();
        for client_id in client_ids {
            if let Some(request) = registry.get_mut(*client_id) {
                request.stopped = true;
            }
        }
        drop(registry);
        self.cancel(client_ids);
    }

    /// Asks the executor to cancel these; each still gets its final row.
    fn cancel(&self, client_ids: &[ClientId]) {
        if !client_ids.is_empty() {
            self.queue.push_cancels(client_ids);
        }
    }

    /// Cancels requests whose stream is gone; their rows are dropped from now on.
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

    /// Cancels the live requests of this request id that a client on `connection` may stop; returns what was found.
    pub(crate) fn stop_named(&self, connection: Option<SocketAddr>, id: &str) -> Named {
        // First, so that no part of it follows the one that is stopped.
        let series = self.series.stop(id, connection);
        let named = self.registry.lock().named(id, connection);
        if let Named::Found(ids) = &named {
            self.stop_requests(ids);
        }
        match (&named, &series) {
            (Named::Found(_), _) | (_, Named::Unknown) => named,
            _ => series,
        }
    }

    /// Begins a request in parts, which can be stopped by this id while none of them is here.
    pub(crate) fn begin_series(&self, id: &str, connection: Option<SocketAddr>) -> Series {
        self.series.begin(id, connection)
    }

    pub(crate) fn cancel_all(&self) {
        let ids = self.registry.lock().ids();
        self.cancel(&ids);
    }

    /// Ends every request with an error and refuses new ones, because the executor is broken. The first
    /// reason stays.
    pub(crate) fn fail(&self, reason: &str) {
        let first = self.health.send_if_modified(|health| {
            let first = health.failed.is_none();
            if first {
                health.failed = Some(reason.to_owned());
            }
            first
        });
        if first {
            let model = self.metrics.served_model();
            tracing::error!(
                model,
                reason,
                "the executor failed; the worker is shutting down"
            );
        }
        self.sweep(reason);
        self.stop();
    }

    fn sweep(&self, reason: &str) {
        let requests = self.registry.lock().drain();
        distribute::fail_all(requests, reason, &self.metrics);
    }

    /// Asks both threads to end, which takes at most [`AWAIT_TIMEOUT`].
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.queue.close();
    }

    /// How long requests have waited for any row; `None` while there are no requests.
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

    /// Ends a stream whose client does not read.
    fn drop_slow_reader(&self, outbox: &Outbox) {
        let status = Status::resource_exhausted(format!(
            "the client read nothing for `{}` s; its requests were cancelled",
            self.limits.slow_reader_timeout.as_secs()
        ));
        tracing::warn!(
            timeout_s = self.limits.slow_reader_timeout.as_secs(),
            "cancelled the requests of a client that reads nothing"
        );
        let ids = outbox.fail(status);
        self.abandon(&ids);
    }
}

/// The sequences that a request runs at once, each of which takes a place in the batch.
fn sequences(request: &Request) -> u32 {
    let config = &request.sampling_config;
    config.num_return_sequences.max(config.beam_width).max(1)
}
