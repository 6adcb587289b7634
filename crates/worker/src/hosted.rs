//! One model of the process, from its executor to the parts that the service is made of. A process has one or
//! several; what they share, ports and limits, is the options'.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use inflight_base::{blocking, error_chain};
use inflight_text::ModelFiles;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::adapters::Adapters;
use crate::cache::Board;
use crate::catalog::{Catalog, TextSettings};
use crate::engine::{Driving, Engine, EngineLimits, MOST_LIVE, StartOrder, Threads};
use crate::executor::{Executor, ModelInfo, capability};
use crate::metrics::Metrics;
use crate::model_names::ModelNames;
use crate::options::{WorkerError, WorkerOptions};
use crate::request::Limits;
use crate::service::{DraftWorker, ModelParts};
use crate::text_models::{TextModels, TextOptions};

/// Models of one process: each has two threads and an executor, so that more are a mistake.
pub(crate) const MOST_MODELS: usize = 64;
/// How often a draining worker checks whether its requests are done.
const DRAIN_POLL: Duration = Duration::from_millis(10);
/// An executor must give a cancelled request its final row within an iteration.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an executor has to end its own threads and ranks.
const EXECUTOR_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);
/// Without it a model has no text.
const TOKENIZER_FILE: &str = "tokenizer.json";

/// One more model of a worker's process, next to the first.
pub struct FurtherModel {
    /// The name that OpenAI clients use. KServe clients know its five models by Triton's names behind it:
    /// `NAME_tensorrt_llm`, `NAME_ensemble`, …
    pub name: String,
    pub executor: Arc<dyn Executor>,
    /// As [`WorkerOptions::assets`].
    pub assets: BTreeMap<String, Bytes>,
}

/// A model that the process serves.
pub(crate) struct Hosted {
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) info: ModelInfo,
    pub(crate) cache: Arc<Board>,
    /// The name that OpenAI clients use.
    pub(crate) served_name: String,
    pub(crate) names: ModelNames,
    pub(crate) assets: BTreeMap<String, Bytes>,
}

impl Hosted {
    pub(crate) fn first(executor: Arc<dyn Executor>, options: &WorkerOptions) -> Self {
        let names = ModelNames::first(&options.core_model_name);
        let served_name = options.served_model_name.clone();
        let is_published = options.kv_events_port.is_some();
        Self::new(
            executor,
            served_name,
            names,
            options.assets.clone(),
            is_published,
        )
    }

    pub(crate) fn further(model: FurtherModel) -> Self {
        let names = ModelNames::behind(&model.name);
        Self::new(model.executor, model.name, names, model.assets, false)
    }

    fn new(
        executor: Arc<dyn Executor>,
        served_name: String,
        names: ModelNames,
        assets: BTreeMap<String, Bytes>,
        is_published: bool,
    ) -> Self {
        let info = executor.info();
        Self {
            cache: Board::new(
                info.tokens_per_block,
                has(&info, capability::CACHE_EVENTS),
                is_published,
                has(&info, capability::SHORT_PROMPTS_FIRST),
            ),
            executor,
            info,
            served_name,
            names,
            assets,
        }
    }

    pub(crate) fn start_engine(
        &self,
        options: &WorkerOptions,
        metrics: Arc<Metrics>,
        place: usize,
        of: usize,
        driving: Driving,
    ) -> Result<(Arc<Engine>, Threads), WorkerError> {
        let max_batch_size = self.info.max_batch_size;
        let max_live = options
            .max_queued_requests
            .saturating_add(max_batch_size as usize);
        let limits = EngineLimits {
            max_live: if of > 1 {
                max_live.min(MOST_LIVE)
            } else {
                max_live
            },
            places: max_batch_size,
            order: start_order(&self.info),
            max_queue_wait: options.max_queue_wait,
            slow_reader_timeout: options.slow_reader_timeout,
        };
        let place =
            u8::try_from(place).map_err(|_| WorkerError::TooManyModels { most: MOST_MODELS })?;
        if self.reports_blocks() {
            let reports = self.cache.reports();
            let asked = self.executor.report_cache(reports);
            asked.map_err(WorkerError::Executor)?;
        }
        Engine::start(
            Arc::clone(&self.executor),
            limits,
            metrics,
            Arc::clone(&self.cache),
            place,
            driving,
        )
    }

    /// Whether its cache's blocks are reported.
    pub(crate) fn reports_blocks(&self) -> bool {
        has(&self.info, capability::CACHE_EVENTS)
    }

    /// Whether each request needs a clip.
    pub(crate) fn transcribes(&self) -> bool {
        has(&self.info, capability::TRANSCRIPTION)
    }

    /// What the service needs. The text models' files are read while everything else starts.
    pub(crate) fn parts(
        &self,
        options: &WorkerOptions,
        engine: Arc<Engine>,
        draft: Option<DraftWorker>,
        adapters: Option<Arc<Adapters>>,
    ) -> ModelParts {
        let limits = Limits {
            core_model: Arc::clone(self.names.core()),
            info: self.info.clone(),
            max_message_bytes: options.max_message_bytes,
            excludes_input: options.exclude_input_in_output,
            fills_outputs: options.fill_outputs,
            wraps_token_ids: options.wrap_token_ids,
        };
        let has_text = self.assets.contains_key(TOKENIZER_FILE);
        let settings = TextSettings {
            accumulates: options.accumulate_tokens,
            excludes_input: options.exclude_input_in_output,
        };
        let catalog = Arc::new(Catalog::new(
            self.names.clone(),
            self.info.clone(),
            has_text.then_some(settings),
        ));
        if has_text {
            self.load_text(Arc::clone(&catalog), options, draft.is_some());
        }
        ModelParts {
            engine,
            limits,
            catalog,
            cache: Arc::clone(&self.cache),
            draft,
            adapters,
        }
    }

    fn load_text(&self, catalog: Arc<Catalog>, options: &WorkerOptions, drafts: bool) {
        let files: ModelFiles = self
            .assets
            .iter()
            .map(|(name, content)| (name.clone(), content.to_vec()))
            .collect();
        let info = &self.info;
        let model = self.served_name.clone();
        let options = TextOptions {
            vocab_size: Some(info.vocab_size),
            max_input_len: Some(info.max_input_len),
            max_batch_size: info.max_batch_size as usize,
            exclude_input_in_output: options.exclude_input_in_output,
            accumulate_tokens: options.accumulate_tokens,
            core_model: self.names.core().to_string(),
            draft_model: drafts.then(|| options.draft_model_name.clone()),
            ..TextOptions::default()
        };
        drop(blocking::run(move || {
            let loaded = TextModels::load(&files, options).map_err(|error| error_chain(&error));
            if let Err(reason) = &loaded {
                tracing::warn!(model, reason, "the text models are unavailable");
            }
            catalog.set_text(loaded);
        }));
    }
}

fn start_order(info: &ModelInfo) -> StartOrder {
    match has(info, capability::SHORT_PROMPTS_FIRST) {
        true => StartOrder::ShortFirst,
        false => StartOrder::Arrival,
    }
}

fn has(info: &ModelInfo, capability: &str) -> bool {
    info.capabilities.iter().any(|one| one == capability)
}

/// Refuses models that a client could not distinguish.
pub(crate) fn check_names(models: &[Hosted]) -> Result<(), WorkerError> {
    if models.len() > MOST_MODELS {
        return Err(WorkerError::TooManyModels { most: MOST_MODELS });
    }
    let mut served = BTreeSet::new();
    let mut names = BTreeSet::new();
    for model in models {
        if !served.insert(model.served_name.as_str()) {
            return Err(WorkerError::SameName(model.served_name.clone()));
        }
        // The first set may have one name twice: the core model then comes first.
        let own: BTreeSet<&str> = model.names.all().collect();
        for name in own {
            if !names.insert(name) {
                return Err(WorkerError::SameName(name.to_owned()));
            }
        }
    }
    Ok(())
}

/// Asks the executor for one token; the model is ready once it has come.
pub(crate) async fn prove(engine: Arc<Engine>, limit: Duration, transcribes: bool) {
    match timeout(limit, engine.submit_canary(transcribes)).await {
        Ok(Ok(Ok(()))) => {
            engine.set_proven();
            tracing::info!(model = engine.metrics.served_model(), "worker ready");
        }
        Ok(Ok(Err(text))) => {
            engine.fail(&format!("the executor failed on its first token: {text}"));
        }
        // The sender is dropped only when the engine has failed already.
        Ok(Err(_)) => engine.fail("the executor ended before its first token"),
        Err(_) => engine.fail(&format!(
            "the executor produced no first token within `{}` s",
            limit.as_secs()
        )),
    }
}

/// Fails an executor that neither answers nor reports an error.
pub(crate) async fn watch_progress(engine: Arc<Engine>, limit: Duration) {
    let health = engine.health();
    loop {
        sleep((limit / 4).max(Duration::from_millis(10))).await;
        // The canary has its own limit.
        let proven = health.borrow().proven;
        if proven
            && engine
                .stalled_for(Instant::now())
                .is_some_and(|stalled| stalled > limit)
        {
            return engine.fail(&format!(
                "the executor made no progress for `{}` s with requests waiting",
                limit.as_secs()
            ));
        }
    }
}

/// Lets requests finish, then cancels the rest.
pub(crate) async fn drain(engine: &Engine, limit: Duration) {
    engine.begin_drain();
    if settled(engine, limit).await {
        return;
    }
    tracing::warn!(
        model = engine.metrics.served_model(),
        requests = engine.live(),
        drain_timeout_s = limit.as_secs(),
        "cancelled the requests that did not finish in time"
    );
    engine.cancel_all();
    settled(engine, CANCEL_TIMEOUT).await;
}

async fn settled(engine: &Engine, limit: Duration) -> bool {
    let quiet = async {
        while engine.live() > 0 {
            sleep(DRAIN_POLL).await;
        }
    };
    timeout(limit, quiet).await.is_ok()
}

/// Shuts the executor down and waits for the engine threads, unless either is stuck.
pub(crate) async fn end_executor(
    executor: Arc<dyn Executor>,
    threads: impl IntoIterator<Item = oneshot::Receiver<()>>,
) {
    let ending = async {
        // A Python executor may take long, and holds the interpreter's lock meanwhile.
        let _ = blocking::run(move || executor.shutdown()).await;
        for thread in threads {
            let _ = thread.await;
        }
    };
    if timeout(EXECUTOR_SHUTDOWN_TIMEOUT, ending).await.is_err() {
        tracing::warn!(
            timeout_s = EXECUTOR_SHUTDOWN_TIMEOUT.as_secs(),
            "the executor did not shut down in time"
        );
    }
}
