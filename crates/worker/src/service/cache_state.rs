//! `inflight.v1.CacheState`: who may watch, which model, and the load that messages report.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{BoxStream, unfold};
use inflight_base::blocking;
use inflight_kserve::cache_state::cache_state_server::CacheState;
use inflight_kserve::cache_state::{CacheUpdate, WatchCacheRequest, WorkerLoad};
use tokio::time::timeout;
use tonic::{Request, Response, Status};

use super::{Models, Shared};
use crate::cache::{LoadSource, MAX_WATCHERS, Watch};

/// How long a message waits for the executor's figures; then it has the last ones that are known.
const LOOK_TIMEOUT: Duration = Duration::from_millis(50);

pub(crate) struct CacheStateService {
    models: Arc<Models>,
}

impl CacheStateService {
    pub(crate) fn new(models: Arc<Models>) -> Self {
        Self { models }
    }
}

#[tonic::async_trait]
impl CacheState for CacheStateService {
    type WatchStream = BoxStream<'static, Result<CacheUpdate, Status>>;

    async fn watch(
        &self,
        request: Request<WatchCacheRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let model = request.into_inner().model;
        let shared = match model.as_str() {
            "" => self.models.first(),
            name => self.models.named(name)?,
        };
        let watching = shared.cache.join().ok_or_else(|| {
            Status::resource_exhausted(format!(
                "`{MAX_WATCHERS}` streams watch this model already; end one of them, or ask another worker"
            ))
        })?;
        let watch = Watch::new(watching, LoadOf(Arc::clone(shared)));
        let updates = unfold(watch, async |mut watch| {
            let update = watch.next().await?;
            Some((Ok(update), watch))
        });
        Ok(Response::new(Box::pin(updates)))
    }
}

/// One model's load.
struct LoadOf(Arc<Shared>);

impl LoadSource for LoadOf {
    async fn load(&self) -> WorkerLoad {
        let engine = &self.0.engine;
        if self.0.cache.freshness.is_due(Instant::now()) {
            let own = Arc::clone(engine);
            // A Python executor takes its GIL here, so not on the runtime's own threads.
            let look = blocking::run(move || {
                // A failure also ends the thread that awaits rows, which reports it.
                if let Ok(stats) = own.executor().stats() {
                    own.metrics.iterations(stats);
                    own.note_partial_prompts();
                }
            });
            let _ = timeout(LOOK_TIMEOUT, look).await;
        }
        let waits = engine.waits();
        let figures = engine.metrics.figures();
        WorkerLoad {
            queued_requests: waits.queued,
            running_requests: waits.running,
            queued_prompt_tokens: waits.prompt_tokens,
            free_blocks: figures.free_blocks,
            prefill_tokens_total: figures.totals.prefill_tokens,
            prefill_seconds_total: figures.totals.prefill_seconds,
            generated_tokens_total: figures.generated_tokens,
            iterations_total: figures.totals.iterations,
            iteration_seconds_total: figures.totals.seconds,
            total_blocks: figures.total_blocks,
            computing_seconds: waits.computing.as_secs_f64(),
        }
    }
}
