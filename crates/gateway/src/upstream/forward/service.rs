//! KServe's gRPC service over all servers: which call goes to one of them, and which to all.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use futures_util::Stream;
use inflight_kserve::client::InferenceClient;
use inflight_kserve::inference as wire;
use inflight_kserve::inference::grpc_inference_service_server::GrpcInferenceService;
use tonic::{Request, Response, Status, Streaming};

use crate::upstream::pool::Link;

use super::{
    Asked, CallContext, Forward, METADATA_AGE, METADATA_KEPT, Target, merge, refuse_shared_memory,
    streams,
};

/// The gateway's name in its metadata, which Triton's clients show.
const SERVER_NAME: &str = "inflight";
/// What of Triton's extensions the gateway passes on.
const EXTENSIONS: [&str; 5] = [
    "model_repository",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
];

/// The responses of all requests of one stream.
pub(crate) type Responses =
    Pin<Box<dyn Stream<Item = Result<wire::ModelStreamInferResponse, Status>> + Send>>;

fn split<T>(request: Request<T>) -> (CallContext, T) {
    let (_, mut extensions, message) = request.into_parts();
    (extensions.remove().unwrap_or_default(), message)
}

/// Memory and settings are a server's own, and a gateway may have several.
fn at_a_worker<T>(call: &str) -> Result<Response<T>, Status> {
    Err(Status::unimplemented(format!(
        "`{call}` is about one server; send it to a worker's or Triton's own port"
    )))
}

impl Forward {
    /// Sends one request, wherever there is room.
    ///
    /// # Errors
    /// See [`Forward::stream`].
    pub(crate) async fn start(
        &self,
        request: Request<wire::ModelInferRequest>,
    ) -> Result<streams::ForwardStream, Status> {
        let (context, message) = split(request);
        self.stream(message, context, Target::Any).await
    }

    fn known_metadata(&self, key: &(String, String)) -> Option<wire::ModelMetadataResponse> {
        let known = self.metadata.lock();
        let (since, metadata) = known.get(key)?;
        (since.elapsed() < METADATA_AGE).then(|| metadata.clone())
    }
}

#[tonic::async_trait]
impl GrpcInferenceService for Forward {
    async fn server_live(
        &self,
        _: Request<wire::ServerLiveRequest>,
    ) -> Result<Response<wire::ServerLiveResponse>, Status> {
        Ok(Response::new(wire::ServerLiveResponse { live: true }))
    }

    async fn server_ready(
        &self,
        _: Request<wire::ServerReadyRequest>,
    ) -> Result<Response<wire::ServerReadyResponse>, Status> {
        let ready = self.is_ready();
        Ok(Response::new(wire::ServerReadyResponse { ready }))
    }

    async fn model_ready(
        &self,
        request: Request<wire::ModelReadyRequest>,
    ) -> Result<Response<wire::ModelReadyResponse>, Status> {
        let (context, message) = split(request);
        let model = (&*message.name, &*message.version);
        let ask = |mut client: InferenceClient, name| {
            let version = message.version.clone();
            let request = context.request(wire::ModelReadyRequest { name, version });
            async move { client.model_ready(request).await }
        };
        let answer = self.ask(model, &context, ask).await?;
        Ok(Response::new(answer))
    }

    async fn server_metadata(
        &self,
        _: Request<wire::ServerMetadataRequest>,
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
        let (context, wire::ModelMetadataRequest { name, version }) = split(request);
        let key = (name, version);
        if let Some(metadata) = self.known_metadata(&key) {
            return Ok(Response::new(metadata));
        }
        let ask = |mut client: InferenceClient, name| {
            let version = key.1.clone();
            let request = context.request(wire::ModelMetadataRequest { name, version });
            async move { client.model_metadata(request).await }
        };
        let answer = self.ask((&key.0, &key.1), &context, ask).await?;
        let mut known = self.metadata.lock();
        if known.len() >= METADATA_KEPT {
            known.clear();
        }
        known.insert(key, (Instant::now(), answer.clone()));
        Ok(Response::new(answer))
    }

    async fn model_config(
        &self,
        request: Request<wire::ModelConfigRequest>,
    ) -> Result<Response<wire::ModelConfigResponse>, Status> {
        let (context, message) = split(request);
        let model = (&*message.name, &*message.version);
        let ask = |mut client: InferenceClient, name| {
            let version = message.version.clone();
            let request = context.request(wire::ModelConfigRequest { name, version });
            async move { client.model_config(request).await }
        };
        let answer = self.ask(model, &context, ask).await?;
        Ok(Response::new(answer))
    }

    async fn model_infer(
        &self,
        request: Request<wire::ModelInferRequest>,
    ) -> Result<Response<wire::ModelInferResponse>, Status> {
        let (context, mut message) = split(request);
        refuse_shared_memory(&message)?;
        let id = message.id.clone();
        self.make_own(&mut message);
        let asked = Asked {
            model: &message.model_name,
            version: &message.model_version,
            context: &context,
            begins: false,
            works: true,
            shares: false,
        };
        let ask = |link: Arc<Link>, name| {
            let mut message = message.clone();
            message.model_name = name;
            let request = context.request(message);
            async move { link.client().model_infer(request).await }
        };
        let (answer, _open) = self.call(asked, Target::Any, ask).await?;
        let mut answer = answer.into_inner();
        if !id.is_empty() {
            answer.id = id;
        }
        Ok(Response::new(answer))
    }

    type ModelStreamInferStream = Responses;

    async fn model_stream_infer(
        &self,
        _: Request<Streaming<wire::ModelInferRequest>>,
    ) -> Result<Response<Responses>, Status> {
        Err(Status::unimplemented(
            "the gateway serves streams over HTTP: POST /v2/models/MODEL/generate_stream",
        ))
    }

    async fn model_statistics(
        &self,
        request: Request<wire::ModelStatisticsRequest>,
    ) -> Result<Response<wire::ModelStatisticsResponse>, Status> {
        let (context, message) = split(request);
        let asked = (&*message.name, &*message.version);
        let name = match asked.0 {
            "" => String::new(),
            // Whether there is such a model, and what it is called where it is.
            _ => self.name_at_its_server(asked, &context)?,
        };
        let ask = |mut client: InferenceClient| {
            let mut message = message.clone();
            message.name.clone_from(&name);
            let request = context.request(message);
            async move { client.model_statistics(request).await }
        };
        let answers = self.ask_all(ask).await?;
        Ok(Response::new(merge::statistics(answers)))
    }

    async fn repository_index(
        &self,
        request: Request<wire::RepositoryIndexRequest>,
    ) -> Result<Response<wire::RepositoryIndexResponse>, Status> {
        let (context, message) = split(request);
        let ask = |mut client: InferenceClient| {
            let request = context.request(message.clone());
            async move { client.repository_index(request).await }
        };
        let answers = self.ask_all(ask).await?;
        Ok(Response::new(merge::index(answers)))
    }

    async fn repository_model_load(
        &self,
        _: Request<wire::RepositoryModelLoadRequest>,
    ) -> Result<Response<wire::RepositoryModelLoadResponse>, Status> {
        at_a_worker("RepositoryModelLoad")
    }

    async fn repository_model_unload(
        &self,
        _: Request<wire::RepositoryModelUnloadRequest>,
    ) -> Result<Response<wire::RepositoryModelUnloadResponse>, Status> {
        at_a_worker("RepositoryModelUnload")
    }

    async fn system_shared_memory_status(
        &self,
        _: Request<wire::SystemSharedMemoryStatusRequest>,
    ) -> Result<Response<wire::SystemSharedMemoryStatusResponse>, Status> {
        at_a_worker("SystemSharedMemoryStatus")
    }

    async fn system_shared_memory_register(
        &self,
        _: Request<wire::SystemSharedMemoryRegisterRequest>,
    ) -> Result<Response<wire::SystemSharedMemoryRegisterResponse>, Status> {
        at_a_worker("SystemSharedMemoryRegister")
    }

    async fn system_shared_memory_unregister(
        &self,
        _: Request<wire::SystemSharedMemoryUnregisterRequest>,
    ) -> Result<Response<wire::SystemSharedMemoryUnregisterResponse>, Status> {
        at_a_worker("SystemSharedMemoryUnregister")
    }

    async fn cuda_shared_memory_status(
        &self,
        _: Request<wire::CudaSharedMemoryStatusRequest>,
    ) -> Result<Response<wire::CudaSharedMemoryStatusResponse>, Status> {
        at_a_worker("CudaSharedMemoryStatus")
    }

    async fn cuda_shared_memory_register(
        &self,
        _: Request<wire::CudaSharedMemoryRegisterRequest>,
    ) -> Result<Response<wire::CudaSharedMemoryRegisterResponse>, Status> {
        at_a_worker("CudaSharedMemoryRegister")
    }

    async fn cuda_shared_memory_unregister(
        &self,
        _: Request<wire::CudaSharedMemoryUnregisterRequest>,
    ) -> Result<Response<wire::CudaSharedMemoryUnregisterResponse>, Status> {
        at_a_worker("CudaSharedMemoryUnregister")
    }

    async fn trace_setting(
        &self,
        _: Request<wire::TraceSettingRequest>,
    ) -> Result<Response<wire::TraceSettingResponse>, Status> {
        at_a_worker("TraceSetting")
    }

    async fn log_settings(
        &self,
        _: Request<wire::LogSettingsRequest>,
    ) -> Result<Response<wire::LogSettingsResponse>, Status> {
        at_a_worker("LogSettings")
    }
}
