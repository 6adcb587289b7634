//! The KServe v2 service: what each call answers. Generating is in [`stream`] and [`one`], both by way of [`receiving`], [`plain`] and [`text`].

mod arriving;
mod cache_state;
mod health;
mod models;
mod one;
mod plain;
mod receiving;
mod refusal;
mod settings;
mod speculative;
mod stopping;
mod stream;
mod text;
mod trace_settings;

use std::sync::Arc;
use std::time::Duration;

use inflight_base::blocking;
use inflight_kserve::inference as wire;
use inflight_kserve::inference::grpc_inference_service_server::GrpcInferenceService;
use inflight_kserve::names;
use inflight_kserve::streamed::{StreamService, Unused, streams_elsewhere};
use inflight_traces::TraceContext;
use tokio::time::timeout;
use tonic::{Request, Response, Status, Streaming};

use crate::adapters::Adapters;
use crate::cache::Board;
use crate::catalog::{Catalog, Known};
use crate::engine::Engine;
use crate::metrics::load_report::Form;
use crate::request::Limits;
use crate::trace::RequestTrace;

pub(crate) use arriving::{ArrivalBudget, Budgeted};
pub(crate) use cache_state::CacheStateService;
pub(crate) use health::report as report_health;
pub(crate) use models::{Common, ModelParts, Models};
pub(crate) use speculative::DraftWorker;
pub(crate) use stream::ResponseStream;
use stream::StreamRequests;

/// How long an answer waits for its header about the load; then it reports the last iteration that is known.
const LOOK_TIMEOUT: Duration = Duration::from_millis(100);

/// The service over the models of the process.
#[derive(Clone)]
pub(crate) struct Service {
    models: Arc<Models>,
    /// The first model's.
    adapters: Arc<Adapters>,
}

/// One model: what all its requests share.
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    pub(crate) limits: Limits,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) cache: Arc<Board>,
    draft: Option<DraftWorker>,
    adapters: Option<Arc<Adapters>>,
    common: Arc<Common>,
}

impl Service {
    pub(crate) fn new(models: Models, adapters: Arc<Adapters>) -> Self {
        Self {
            models: Arc::new(models),
            adapters,
        }
    }

    pub(crate) fn models(&self) -> Arc<Models> {
        Arc::clone(&self.models)
    }

    /// Answers one request of a client at `peer`, as in a separate stream. Dropping the responses cancels it.
    pub(crate) fn start(
        &self,
        message: wire::ModelInferRequest,
        peer: Option<std::net::SocketAddr>,
        trace: Option<TraceContext>,
    ) -> ResponseStream {
        let connection = StreamRequests::open(Arc::clone(&self.models), peer, trace);
        ResponseStream::of_one(connection, message)
    }

    /// How loaded a model is, from what its executor says now or said last.
    pub(crate) async fn load_report(&self, model: &str, form: Form) -> Option<String> {
        let (shared, _) = self.models.find(model, "").ok()?;
        let engine = &shared.engine;
        let executor = Arc::clone(engine.executor());
        // A Python executor takes its GIL here, so not on the runtime's own threads.
        let look = blocking::run(move || executor.stats());
        if let Ok(Ok(Ok(stats))) = timeout(LOOK_TIMEOUT, look).await {
            engine.metrics.iterations(stats);
        }
        engine.metrics.load_report(form, engine.live())
    }

    /// Says to clients that can continue elsewhere that the worker is about to end.
    pub(crate) fn announce_leaving(&self) {
        self.models.announce_leaving();
    }

    /// Ends every stream once everything that waits on it is sent.
    pub(crate) fn finish_streams(&self) {
        self.adapters.close();
        self.models.finish_streams();
    }
}

impl Shared {
    /// The trace of a request, if it is to be traced.
    fn begin_trace(
        &self,
        message: &wire::ModelInferRequest,
        method: &'static str,
        call: Option<&TraceContext>,
    ) -> Option<Arc<RequestTrace>> {
        let tracing = self.common.tracing.as_ref()?;
        tracing.begin(message, method, call)
    }

    /// Whether the model can be asked, or its text models never can be.
    fn is_ready(&self) -> bool {
        self.engine.health().borrow().is_ready() && self.catalog.is_settled()
    }
}

/// The names of regions are what keeps clients of one machine apart; others have no use for them.
fn require_loopback<T>(request: &Request<T>) -> Result<(), Status> {
    let here = |peer: std::net::SocketAddr| peer.ip().to_canonical().is_loopback();
    if request.remote_addr().is_some_and(here) {
        return Ok(());
    }
    Err(Status::permission_denied(
        "only clients on the worker's own machine, by its loopback address, may use shared memory",
    ))
}

fn unsupported<T>(call: &str) -> Result<Response<T>, Status> {
    Err(Status::unimplemented(format!(
        "`{call}` is not supported by this worker"
    )))
}

impl StreamService for Service {
    type Responses = ResponseStream;

    fn stream(
        &self,
        request: Request<Streaming<wire::ModelInferRequest>>,
    ) -> Result<ResponseStream, Status> {
        let trace = self.models.call_trace(&request);
        let connection =
            StreamRequests::open(Arc::clone(&self.models), request.remote_addr(), trace);
        let steps_of = request.metadata().get(names::STEPS_HEADER);
        if let Some(model) = steps_of.and_then(|model| model.to_str().ok()) {
            connection.bind_steps(model);
        }
        Ok(ResponseStream::new(connection, request.into_inner()))
    }
}

#[tonic::async_trait]
impl GrpcInferenceService for Service {
    async fn server_live(
        &self,
        _request: Request<wire::ServerLiveRequest>,
    ) -> Result<Response<wire::ServerLiveResponse>, Status> {
        Ok(Response::new(wire::ServerLiveResponse {
            live: self.models.is_live(),
        }))
    }

    async fn server_ready(
        &self,
        _request: Request<wire::ServerReadyRequest>,
    ) -> Result<Response<wire::ServerReadyResponse>, Status> {
        Ok(Response::new(wire::ServerReadyResponse {
            ready: self.models.is_ready(),
        }))
    }

    async fn model_ready(
        &self,
        request: Request<wire::ModelReadyRequest>,
    ) -> Result<Response<wire::ModelReadyResponse>, Status> {
        let request = request.into_inner();
        let found = self.models.find(&request.name, &request.version);
        let ready = found.is_ok_and(|(shared, known)| {
            let health = shared.engine.health();
            shared.catalog.state(known, &health.borrow()).0 == "READY"
        });
        Ok(Response::new(wire::ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _request: Request<wire::ServerMetadataRequest>,
    ) -> Result<Response<wire::ServerMetadataResponse>, Status> {
        Ok(Response::new(wire::ServerMetadataResponse {
            name: names::SERVER_NAME.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            extensions: names::WORKER_EXTENSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn model_metadata(
        &self,
        request: Request<wire::ModelMetadataRequest>,
    ) -> Result<Response<wire::ModelMetadataResponse>, Status> {
        let request = request.into_inner();
        let (shared, known) = self.models.find(&request.name, &request.version)?;
        Ok(Response::new(shared.catalog.metadata(known)))
    }

    async fn model_config(
        &self,
        request: Request<wire::ModelConfigRequest>,
    ) -> Result<Response<wire::ModelConfigResponse>, Status> {
        let request = request.into_inner();
        let (shared, known) = self.models.find(&request.name, &request.version)?;
        let config = shared.catalog.config(known);
        Ok(Response::new(wire::ModelConfigResponse {
            config: Some(config),
        }))
    }

    async fn model_infer(
        &self,
        request: Request<wire::ModelInferRequest>,
    ) -> Result<Response<wire::ModelInferResponse>, Status> {
        let peer = request.remote_addr();
        let trace = self.models.call_trace(&request);
        one::infer(&self.models, request.into_inner(), peer, trace)
            .await
            .map(Response::new)
    }

    type ModelStreamInferStream = Unused;

    async fn model_stream_infer(
        &self,
        _: Request<Streaming<wire::ModelInferRequest>>,
    ) -> Result<Response<Unused>, Status> {
        Err(streams_elsewhere())
    }

    async fn model_statistics(
        &self,
        request: Request<wire::ModelStatisticsRequest>,
    ) -> Result<Response<wire::ModelStatisticsResponse>, Status> {
        let request = request.into_inner();
        // An empty name asks for all models.
        let asked: Vec<(&Shared, Known)> = if request.name.is_empty() {
            let all = self.models.all();
            all.flat_map(|shared| shared.catalog.models().map(|known| (&**shared, known)))
                .collect()
        } else {
            vec![self.models.find(&request.name, &request.version)?]
        };
        let model_stats = asked
            .into_iter()
            .filter_map(|(shared, known)| match known {
                Known::Core => Some(shared.engine.metrics.statistics()),
                Known::Text(kind) => {
                    let counters = shared.catalog.counters(kind)?;
                    Some(counters.statistics(shared.catalog.name(known)))
                }
            })
            .collect();
        Ok(Response::new(wire::ModelStatisticsResponse { model_stats }))
    }

    async fn repository_index(
        &self,
        request: Request<wire::RepositoryIndexRequest>,
    ) -> Result<Response<wire::RepositoryIndexResponse>, Status> {
        let only_ready = request.into_inner().ready;
        let models = self
            .models
            .healths()
            .flat_map(|(shared, health)| shared.catalog.index(&health, only_ready))
            .collect();
        Ok(Response::new(wire::RepositoryIndexResponse { models }))
    }

    async fn repository_model_load(
        &self,
        request: Request<wire::RepositoryModelLoadRequest>,
    ) -> Result<Response<wire::RepositoryModelLoadResponse>, Status> {
        let message = request.into_inner();
        let is_model = self.models.find(&message.model_name, "").is_ok();
        let adapters = &self.adapters;
        let control = adapters.read(message.model_name, message.parameters, is_model)?;
        adapters.load(control).await?;
        Ok(Response::new(wire::RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<wire::RepositoryModelUnloadRequest>,
    ) -> Result<Response<wire::RepositoryModelUnloadResponse>, Status> {
        let message = request.into_inner();
        let is_model = self.models.find(&message.model_name, "").is_ok();
        let adapters = &self.adapters;
        let control = adapters.read(message.model_name, message.parameters, is_model)?;
        adapters.unload(control).await?;
        Ok(Response::new(wire::RepositoryModelUnloadResponse {}))
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<wire::SystemSharedMemoryStatusRequest>,
    ) -> Result<Response<wire::SystemSharedMemoryStatusResponse>, Status> {
        require_loopback(&request)?;
        let regions = self
            .models
            .common()
            .regions
            .status(&request.get_ref().name)?;
        Ok(Response::new(wire::SystemSharedMemoryStatusResponse {
            regions: regions
                .into_iter()
                .map(|region| (region.name.clone(), region))
                .collect(),
        }))
    }

    async fn system_shared_memory_register(
        &self,
        request: Request<wire::SystemSharedMemoryRegisterRequest>,
    ) -> Result<Response<wire::SystemSharedMemoryRegisterResponse>, Status> {
        require_loopback(&request)?;
        let wire::SystemSharedMemoryRegisterRequest {
            name,
            key,
            offset,
            byte_size,
        } = request.into_inner();
        self.models
            .common()
            .regions
            .register(&name, &key, offset, byte_size)?;
        Ok(Response::new(wire::SystemSharedMemoryRegisterResponse {}))
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<wire::SystemSharedMemoryUnregisterRequest>,
    ) -> Result<Response<wire::SystemSharedMemoryUnregisterResponse>, Status> {
        require_loopback(&request)?;
        let regions = &self.models.common().regions;
        regions.unregister(&request.get_ref().name);
        Ok(Response::new(wire::SystemSharedMemoryUnregisterResponse {}))
    }

    async fn cuda_shared_memory_status(
        &self,
        _request: Request<wire::CudaSharedMemoryStatusRequest>,
    ) -> Result<Response<wire::CudaSharedMemoryStatusResponse>, Status> {
        unsupported("CudaSharedMemoryStatus")
    }

    async fn cuda_shared_memory_register(
        &self,
        _request: Request<wire::CudaSharedMemoryRegisterRequest>,
    ) -> Result<Response<wire::CudaSharedMemoryRegisterResponse>, Status> {
        unsupported("CudaSharedMemoryRegister")
    }

    async fn cuda_shared_memory_unregister(
        &self,
        _request: Request<wire::CudaSharedMemoryUnregisterRequest>,
    ) -> Result<Response<wire::CudaSharedMemoryUnregisterResponse>, Status> {
        unsupported("CudaSharedMemoryUnregister")
    }

    async fn trace_setting(
        &self,
        request: Request<wire::TraceSettingRequest>,
    ) -> Result<Response<wire::TraceSettingResponse>, Status> {
        let message = request.into_inner();
        let model = message.model_name;
        if !model.is_empty() {
            self.models.find(&model, "")?;
        }
        let settings = message.settings.into_iter();
        let settings = settings
            .map(|(name, setting)| (name, setting.value))
            .collect();
        let tracing = self.models.common().tracing.as_ref();
        trace_settings::update(tracing, &model, &settings).map(Response::new)
    }

    async fn log_settings(
        &self,
        request: Request<wire::LogSettingsRequest>,
    ) -> Result<Response<wire::LogSettingsResponse>, Status> {
        self.models
            .common()
            .log
            .update(request.into_inner())
            .map(Response::new)
    }
}
