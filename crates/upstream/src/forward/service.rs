//! KServe's gRPC service over all servers: which call goes to one of them, and which to all.

use std::pin::Pin;
use std::sync::Arc;

use inflight_kserve::client::InferenceClient;
use inflight_kserve::inference as wire;
use inflight_kserve::inference::grpc_inference_service_server::GrpcInferenceService;
use inflight_kserve::names;
use inflight_kserve::streamed::{Unused, streams_elsewhere};
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use super::{Forward, METADATA_AGE, METADATA_KEPT, merge};
use crate::delivery::CallContext;

/// The service for one request of a client's: its calls go to the servers with what is known of the request.
#[derive(Clone, Debug)]
pub struct ForwardCall {
    pub forward: Arc<Forward>,
    pub context: CallContext,
}

/// Calls that are refused: memory and settings are a server's own, and a gateway may have several.
macro_rules! about_one_server {
    ($($rpc:ident($request:ident) -> $response:ident: $name:literal;)*) => {$(
        // Spelled as async_trait expands it: the attribute does not see into this macro.
        fn $rpc<'life0, 'async_trait>(
            &'life0 self,
            _: Request<wire::$request>,
        ) -> Pin<Box<dyn Future<Output = Result<Response<wire::$response>, Status>> + Send + 'async_trait>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            let why = concat!("`", $name, "` is about one server; send it to a worker's or Triton's own port");
            Box::pin(std::future::ready(Err(Status::unimplemented(why))))
        }
    )*};
}

impl Forward {
    fn known_metadata(&self, key: &(String, String)) -> Option<wire::ModelMetadataResponse> {
        let known = self.metadata.lock();
        let (since, metadata) = known.get(key)?;
        (since.elapsed() < METADATA_AGE).then(|| metadata.clone())
    }

    /// Whether nobody needs to be asked about this model and version.
    pub(super) fn knows_metadata(&self, (model, version): (&str, &str)) -> bool {
        let key = (model.to_owned(), version.to_owned());
        let known = self.metadata.lock();
        known
            .get(&key)
            .is_some_and(|(since, _)| since.elapsed() < METADATA_AGE)
    }
}

#[tonic::async_trait]
impl GrpcInferenceService for ForwardCall {
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
        let ready = self.forward.is_ready();
        Ok(Response::new(wire::ServerReadyResponse { ready }))
    }

    async fn model_ready(
        &self,
        request: Request<wire::ModelReadyRequest>,
    ) -> Result<Response<wire::ModelReadyResponse>, Status> {
        let Self { forward, context } = self;
        let message = request.into_inner();
        let model = (&*message.name, &*message.version);
        let ask = |mut client: InferenceClient, name| {
            let version = message.version.clone();
            let request = context.request(wire::ModelReadyRequest { name, version });
            async move { client.model_ready(request).await }
        };
        let answer = forward.ask(model, context, ask).await?;
        Ok(Response::new(answer))
    }

    async fn server_metadata(
        &self,
        _: Request<wire::ServerMetadataRequest>,
    ) -> Result<Response<wire::ServerMetadataResponse>, Status> {
        Ok(Response::new(wire::ServerMetadataResponse {
            name: names::SERVER_NAME.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            extensions: names::GATEWAY_EXTENSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn model_metadata(
        &self,
        request: Request<wire::ModelMetadataRequest>,
    ) -> Result<Response<wire::ModelMetadataResponse>, Status> {
        let Self { forward, context } = self;
        let wire::ModelMetadataRequest { name, version } = request.into_inner();
        let key = (name, version);
        if let Some(metadata) = forward.known_metadata(&key) {
            return Ok(Response::new(metadata));
        }
        let ask = |mut client: InferenceClient, name| {
            let version = key.1.clone();
            let request = context.request(wire::ModelMetadataRequest { name, version });
            async move { client.model_metadata(request).await }
        };
        let answer = forward.ask((&key.0, &key.1), context, ask).await?;
        let mut known = forward.metadata.lock();
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
        let Self { forward, context } = self;
        let message = request.into_inner();
        let model = (&*message.name, &*message.version);
        let ask = |mut client: InferenceClient, name| {
            let version = message.version.clone();
            let request = context.request(wire::ModelConfigRequest { name, version });
            async move { client.model_config(request).await }
        };
        let answer = forward.ask(model, context, ask).await?;
        Ok(Response::new(answer))
    }

    async fn model_infer(
        &self,
        request: Request<wire::ModelInferRequest>,
    ) -> Result<Response<wire::ModelInferResponse>, Status> {
        let message = request.into_inner();
        let answer = self.forward.infer(message, &self.context).await?;
        Ok(Response::new(answer))
    }

    type ModelStreamInferStream = Unused;

    async fn model_stream_infer(
        &self,
        _: Request<Streaming<wire::ModelInferRequest>>,
    ) -> Result<Response<Unused>, Status> {
        // Both of the gateway's ports take streams apart themselves, for `Forward::stream`.
        Err(streams_elsewhere())
    }

    async fn model_statistics(
        &self,
        request: Request<wire::ModelStatisticsRequest>,
    ) -> Result<Response<wire::ModelStatisticsResponse>, Status> {
        let Self { forward, context } = self;
        let message = request.into_inner();
        let asked = (&*message.name, &*message.version);
        let name = match asked.0 {
            "" => String::new(),
            // Whether there is such a model, and what it is called where it is.
            _ => forward.name_at_its_server(asked, context)?,
        };
        let ask = |mut client: InferenceClient| {
            let mut message = message.clone();
            message.name.clone_from(&name);
            let request = context.request(message);
            async move { client.model_statistics(request).await }
        };
        let answers = forward.ask_all(ask).await?;
        Ok(Response::new(merge::statistics(answers)))
    }

    async fn repository_index(
        &self,
        request: Request<wire::RepositoryIndexRequest>,
    ) -> Result<Response<wire::RepositoryIndexResponse>, Status> {
        let Self { forward, context } = self;
        let message = request.into_inner();
        let ask = |mut client: InferenceClient| {
            let request = context.request(message.clone());
            async move { client.repository_index(request).await }
        };
        let answers = forward.ask_all(ask).await?;
        Ok(Response::new(merge::index(answers)))
    }

    about_one_server! {
        repository_model_load(RepositoryModelLoadRequest) -> RepositoryModelLoadResponse: "RepositoryModelLoad";
        repository_model_unload(RepositoryModelUnloadRequest) -> RepositoryModelUnloadResponse: "RepositoryModelUnload";
        system_shared_memory_status(SystemSharedMemoryStatusRequest) -> SystemSharedMemoryStatusResponse: "SystemSharedMemoryStatus";
        system_shared_memory_register(SystemSharedMemoryRegisterRequest) -> SystemSharedMemoryRegisterResponse: "SystemSharedMemoryRegister";
        system_shared_memory_unregister(SystemSharedMemoryUnregisterRequest) -> SystemSharedMemoryUnregisterResponse: "SystemSharedMemoryUnregister";
        cuda_shared_memory_status(CudaSharedMemoryStatusRequest) -> CudaSharedMemoryStatusResponse: "CudaSharedMemoryStatus";
        cuda_shared_memory_register(CudaSharedMemoryRegisterRequest) -> CudaSharedMemoryRegisterResponse: "CudaSharedMemoryRegister";
        cuda_shared_memory_unregister(CudaSharedMemoryUnregisterRequest) -> CudaSharedMemoryUnregisterResponse: "CudaSharedMemoryUnregister";
        trace_setting(TraceSettingRequest) -> TraceSettingResponse: "TraceSetting";
        log_settings(LogSettingsRequest) -> LogSettingsResponse: "LogSettings";
    }
}
