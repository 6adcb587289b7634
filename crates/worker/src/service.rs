//! The KServe v2 service: what each call answers. Generating is in [`stream`].

mod arriving;
mod health;
mod settings;
mod speculative;
mod stream;
mod text;
mod trace_settings;

use std::sync::{Arc, Weak};

use inflight_kserve::inference as wire;
use inflight_kserve::inference::grpc_inference_service_server::GrpcInferenceService;
use inflight_kserve::names;
use inflight_traces::TraceContext;
use parking_lot::Mutex;
use tonic::{Request, Response, Status, Streaming};

use crate::catalog::{Catalog, Known};
use crate::engine::Engine;
use crate::options::LogLevel;
use crate::outbox::Outbox;
use crate::request::Limits;
use crate::shared_memory::Regions;
use crate::trace::{RequestTrace, Tracing, context_of};

pub(crate) use arriving::{ArrivalBudget, Budgeted};
pub(crate) use health::report as report_health;
use settings::LogSettings;
pub(crate) use speculative::DraftWorker;
use stream::Connection;
pub(crate) use stream::ResponseStream;

/// The server's name in its metadata, which Triton's clients show.
const SERVER_NAME: &str = "inflight";
/// The extensions of Triton that this server supports, and ours.
const EXTENSIONS: [&str; 8] = [
    "model_repository",
    "model_configuration",
    "statistics",
    "system_shared_memory",
    "logging",
    "trace",
    "binary_tensor_data",
    names::STEP_BATCHING_EXTENSION,
];

/// The service over one engine.
#[derive(Clone)]
pub(crate) struct Service {
    shared: Arc<Shared>,
}

/// What all streams share.
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    pub(crate) limits: Limits,
    pub(crate) catalog: Arc<Catalog>,
    regions: Regions,
    log: LogSettings,
    draft: Option<DraftWorker>,
    /// `None`: no traces are exported.
    tracing: Option<Tracing>,
    /// Open streams, so that a draining worker can end them.
    streams: Mutex<Vec<Weak<Outbox>>>,
}

impl Service {
    pub(crate) fn new(
        engine: Arc<Engine>,
        limits: Limits,
        catalog: Arc<Catalog>,
        log_level: Option<LogLevel>,
        draft: Option<DraftWorker>,
        tracing: Option<Tracing>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                engine,
                limits,
                catalog,
                regions: Regions::default(),
                log: LogSettings::new(log_level),
                draft,
                tracing,
                streams: Mutex::default(),
            }),
        }
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Answers one request of a client at `peer`, as in a stream of its own. Dropping the responses cancels it.
    pub(crate) fn start(
        &self,
        message: wire::ModelInferRequest,
        peer: Option<std::net::SocketAddr>,
        trace: Option<TraceContext>,
    ) -> ResponseStream {
        let connection = Connection::open(Arc::clone(&self.shared), peer, trace);
        ResponseStream::of_one(connection, message)
    }

    /// Ends every stream once everything that waits on it is sent.
    pub(crate) fn finish_streams(&self) {
        for outbox in self.shared.streams.lock().drain(..) {
            if let Some(outbox) = outbox.upgrade() {
                outbox.finish();
            }
        }
    }
}

impl Shared {
    fn open(&self) -> Arc<Outbox> {
        let outbox = Arc::new(Outbox::default());
        let mut streams = self.streams.lock();
        // At most doubles between two sweeps, which amortizes their cost.
        if streams.len() == streams.capacity() {
            streams.retain(|outbox| outbox.strong_count() > 0);
        }
        streams.push(Arc::downgrade(&outbox));
        outbox
    }

    /// The trace context that a call came with, where traces are exported.
    fn call_trace<T>(&self, request: &Request<T>) -> Option<TraceContext> {
        self.tracing.as_ref()?;
        let headers = request.metadata().as_ref();
        // Over HTTP it is the port that read it.
        let of_http = || request.extensions().get::<TraceContext>().cloned();
        context_of(headers).or_else(of_http)
    }

    /// The trace of a request, if it is to be traced.
    fn begin_trace(
        &self,
        message: &wire::ModelInferRequest,
        method: &'static str,
        call: Option<&TraceContext>,
    ) -> Option<Arc<RequestTrace>> {
        self.tracing.as_ref()?.begin(message, method, call)
    }

    /// Whether every model can be asked that ever can be.
    fn is_ready(&self) -> bool {
        self.engine.health().borrow().is_ready() && self.catalog.is_settled()
    }

    fn find(&self, name: &str, version: &str) -> Result<Known, Status> {
        self.catalog.find(name, version).map_err(Status::not_found)
    }
}

fn unsupported<T>(call: &str) -> Result<Response<T>, Status> {
    Err(Status::unimplemented(format!(
        "`{call}` is not supported by this worker"
    )))
}

/// Triton's answer where models are not under a client's control, with the reason.
fn fixed_models() -> Status {
    Status::unimplemented(
        "explicit model load / unload is not allowed: a worker serves the models that it was started with; start \
         another worker, or stop this one",
    )
}

#[tonic::async_trait]
impl GrpcInferenceService for Service {
    async fn server_live(
        &self,
        _request: Request<wire::ServerLiveRequest>,
    ) -> Result<Response<wire::ServerLiveResponse>, Status> {
        let live = self.shared.engine.health().borrow().failed.is_none();
        Ok(Response::new(wire::ServerLiveResponse { live }))
    }

    async fn server_ready(
        &self,
        _request: Request<wire::ServerReadyRequest>,
    ) -> Result<Response<wire::ServerReadyResponse>, Status> {
        Ok(Response::new(wire::ServerReadyResponse {
            ready: self.shared.is_ready(),
        }))
    }

    async fn model_ready(
        &self,
        request: Request<wire::ModelReadyRequest>,
    ) -> Result<Response<wire::ModelReadyResponse>, Status> {
        let request = request.into_inner();
        let catalog = &self.shared.catalog;
        let health = self.shared.engine.health();
        let ready = catalog
            .find(&request.name, &request.version)
            .is_ok_and(|known| catalog.state(known, &health.borrow()).0 == "READY");
        Ok(Response::new(wire::ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _request: Request<wire::ServerMetadataRequest>,
    ) -> Result<Response<wire::ServerMetadataResponse>, Status> {
        Ok(Response::new(wire::ServerMetadataResponse {
            name: SERVER_NAME.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            extensions: EXTENSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn model_metadata(
        &self,
        request: Request<wire::ModelMetadataRequest>,
    ) -> Result<Response<wire::ModelMetadataResponse>, Status> {
        let request = request.into_inner();
        let known = self.shared.find(&request.name, &request.version)?;
        Ok(Response::new(self.shared.catalog.metadata(known)))
    }

    async fn model_config(
        &self,
        request: Request<wire::ModelConfigRequest>,
    ) -> Result<Response<wire::ModelConfigResponse>, Status> {
        let request = request.into_inner();
        let known = self.shared.find(&request.name, &request.version)?;
        let config = self.shared.catalog.config(known);
        Ok(Response::new(wire::ModelConfigResponse {
            config: Some(config),
        }))
    }

    async fn model_infer(
        &self,
        request: Request<wire::ModelInferRequest>,
    ) -> Result<Response<wire::ModelInferResponse>, Status> {
        let peer = request.remote_addr();
        let trace = self.shared.call_trace(&request);
        stream::infer(&self.shared, request.into_inner(), peer, trace)
            .await
            .map(Response::new)
    }

    type ModelStreamInferStream = ResponseStream;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<wire::ModelInferRequest>>,
    ) -> Result<Response<ResponseStream>, Status> {
        let trace = self.shared.call_trace(&request);
        let connection = Connection::open(Arc::clone(&self.shared), request.remote_addr(), trace);
        Ok(Response::new(ResponseStream::new(
            connection,
            request.into_inner(),
        )))
    }

    async fn model_statistics(
        &self,
        request: Request<wire::ModelStatisticsRequest>,
    ) -> Result<Response<wire::ModelStatisticsResponse>, Status> {
        let request = request.into_inner();
        let catalog = &self.shared.catalog;
        // An empty name asks for all models.
        let asked: Vec<Known> = if request.name.is_empty() {
            catalog.models().collect()
        } else {
            vec![self.shared.find(&request.name, &request.version)?]
        };
        let model_stats = asked
            .into_iter()
            .filter_map(|known| match known {
                Known::Core => Some(self.shared.engine.metrics.statistics()),
                Known::Text(kind) => {
                    let counters = catalog.counters(kind)?;
                    Some(counters.statistics(kind.name()))
                }
            })
            .collect();
        Ok(Response::new(wire::ModelStatisticsResponse { model_stats }))
    }

    async fn repository_index(
        &self,
        request: Request<wire::RepositoryIndexRequest>,
    ) -> Result<Response<wire::RepositoryIndexResponse>, Status> {
        let health = self.shared.engine.health().borrow().clone();
        let models = self
            .shared
            .catalog
            .index(&health, request.into_inner().ready);
        Ok(Response::new(wire::RepositoryIndexResponse { models }))
    }

    async fn repository_model_load(
        &self,
        _request: Request<wire::RepositoryModelLoadRequest>,
    ) -> Result<Response<wire::RepositoryModelLoadResponse>, Status> {
        Err(fixed_models())
    }

    async fn repository_model_unload(
        &self,
        _request: Request<wire::RepositoryModelUnloadRequest>,
    ) -> Result<Response<wire::RepositoryModelUnloadResponse>, Status> {
        Err(fixed_models())
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<wire::SystemSharedMemoryStatusRequest>,
    ) -> Result<Response<wire::SystemSharedMemoryStatusResponse>, Status> {
        let regions = self.shared.regions.status(&request.get_ref().name)?;
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
        let here = |peer: std::net::SocketAddr| peer.ip().to_canonical().is_loopback();
        if !request.remote_addr().is_some_and(here) {
            return Err(Status::permission_denied(
                "only clients on the worker's own machine, by its loopback address, may register shared memory",
            ));
        }
        let wire::SystemSharedMemoryRegisterRequest {
            name,
            key,
            offset,
            byte_size,
        } = request.into_inner();
        self.shared
            .regions
            .register(&name, &key, offset, byte_size)?;
        Ok(Response::new(wire::SystemSharedMemoryRegisterResponse {}))
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<wire::SystemSharedMemoryUnregisterRequest>,
    ) -> Result<Response<wire::SystemSharedMemoryUnregisterResponse>, Status> {
        self.shared.regions.unregister(&request.get_ref().name);
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
            self.shared.find(&model, "")?;
        }
        let settings = message.settings.into_iter();
        let settings = settings
            .map(|(name, setting)| (name, setting.value))
            .collect();
        let tracing = self.shared.tracing.as_ref();
        trace_settings::update(tracing, &model, &settings).map(Response::new)
    }

    async fn log_settings(
        &self,
        request: Request<wire::LogSettingsRequest>,
    ) -> Result<Response<wire::LogSettingsResponse>, Status> {
        self.shared
            .log
            .update(request.into_inner())
            .map(Response::new)
    }
}
