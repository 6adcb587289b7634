//! A plain Triton server that does what the test says: real gRPC, no step batching.
//!
//! Owns which models there are, and the streams, one for each request; what the models'
//! tensors are called is `triton_models`'. A test takes each request with [`ScriptedTriton::next_request`] and
//! answers it response by response.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use inflight_kserve::inference::grpc_inference_service_server::{
    GrpcInferenceService, GrpcInferenceServiceServer,
};
use inflight_kserve::inference::repository_index_response::ModelIndex;
use inflight_kserve::inference::*;
use inflight_kserve::names;
use inflight_kserve::tensor::{Element, ResponseBuilder, Tensors};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::Router;
use tonic::{Request, Response, Status, Streaming};

use crate::PATIENCE;
use crate::server::Server;

type Outgoing = mpsc::Sender<Result<ModelStreamInferResponse, Status>>;
type Models = BTreeMap<String, ModelConfig>;

/// One request as it arrived, and its stream. Dropping it ends the stream.
#[derive(Debug)]
pub struct Asked {
    pub message: ModelInferRequest,
    pub(crate) outgoing: Outgoing,
}

impl Asked {
    /// The input's values; empty where it was not sent.
    ///
    /// # Panics
    /// The request is malformed, or the input of another type.
    pub fn values<T: Element>(&self, input: &str) -> Vec<T> {
        let inputs = Tensors::inputs(&self.message).expect("the inputs are well formed");
        let values = inputs.values(input).expect("the type is as configured");
        values.unwrap_or_default()
    }

    /// The input's texts; empty where it was not sent.
    ///
    /// # Panics
    /// As [`Asked::values`].
    pub fn texts(&self, input: &str) -> Vec<String> {
        let inputs = Tensors::inputs(&self.message).expect("the inputs are well formed");
        let Some(tensor) = inputs.get(input) else {
            return Vec::new();
        };
        let texts = tensor.strings().expect("the type is as configured");
        texts.into_iter().map(str::to_owned).collect()
    }

    /// Name and shape of each input, by name.
    pub fn shapes(&self) -> BTreeMap<&str, Vec<i64>> {
        let inputs = self.message.inputs.iter();
        inputs
            .map(|input| (input.name.as_str(), input.shape.clone()))
            .collect()
    }

    /// Sends a response that others follow.
    pub async fn respond(&self, mut response: ResponseBuilder) {
        self.send(Ok(last(&mut response, false))).await;
    }

    /// Sends the last response, and does not end the stream.
    pub async fn respond_last(&self, mut response: ResponseBuilder) {
        self.send(Ok(last(&mut response, true))).await;
    }

    /// Sends the last response and ends the stream.
    pub async fn finish(self, response: ResponseBuilder) {
        self.respond_last(response).await;
    }

    /// The same with a message that no builder makes.
    pub async fn finish_message(self, response: ModelInferResponse) {
        let message = ModelStreamInferResponse {
            error_message: String::new(),
            infer_response: Some(response),
        };
        self.send(Ok(message)).await;
    }

    /// Sends the last response where it is nothing but the mark, and ends the stream.
    pub async fn finish_empty(self) {
        self.finish(ResponseBuilder::default()).await;
    }

    /// Sends a request's error as Triton does, and ends the stream.
    pub async fn fail(self, error_message: &str) {
        let message = ModelStreamInferResponse {
            error_message: error_message.to_owned(),
            infer_response: Some(ModelInferResponse::default()),
        };
        self.send(Ok(message)).await;
    }

    /// Sends a request's error as Inflight's workers do: the last response says so, and with which code.
    pub async fn refuse(self, code: tonic::Code, error_message: &str) {
        let mut response = ResponseBuilder::default();
        let code = infer_parameter::ParameterChoice::Int64Param(i64::from(i32::from(code)));
        response.parameter(names::ERROR_CODE, code);
        let mut message = last(&mut response, true);
        message.error_message = error_message.to_owned();
        self.send(Ok(message)).await;
    }

    /// Ends the stream with a gRPC status.
    pub async fn fail_call(self, status: Status) {
        self.send(Err(status)).await;
    }

    /// Waits until the client has reset the stream.
    ///
    /// # Panics
    /// It does not in time.
    pub async fn cancelled(&self) {
        let closed = tokio::time::timeout(PATIENCE, self.outgoing.closed());
        closed.await.expect("the client cancels in time");
    }

    /// Whether the client has reset the stream.
    pub fn is_cancelled(&self) -> bool {
        self.outgoing.is_closed()
    }

    async fn send(&self, message: Result<ModelStreamInferResponse, Status>) {
        // A gateway that has gone away is a legitimate part of many tests.
        let _ = self.outgoing.send(message).await;
    }
}

fn last(response: &mut ResponseBuilder, is_last: bool) -> ModelStreamInferResponse {
    response.bool_parameter(names::FINAL_RESPONSE, is_last);
    ModelStreamInferResponse {
        error_message: String::new(),
        infer_response: Some(response.build()),
    }
}

/// A running fake; dropping it closes every connection at once.
#[derive(Debug)]
pub struct ScriptedTriton {
    pub address: SocketAddr,
    requests: mpsc::Receiver<Asked>,
    service: Service,
    server: Server,
}

impl ScriptedTriton {
    /// Listens on a free port in memory.
    pub async fn start(models: impl IntoIterator<Item = ModelConfig>) -> Self {
        let (sender, requests) = mpsc::channel(4096);
        let models = models.into_iter().map(|model| (model.name.clone(), model));
        let service = Service {
            models: Arc::new(Mutex::new(models.collect())),
            hidden: Arc::default(),
            requests: sender,
        };
        let server = Server::in_memory(service.clone().router(), 0);
        Self {
            address: server.address,
            requests,
            service,
            server,
        }
    }

    /// Adds a model, or changes the one of its name.
    pub fn load(&self, model: ModelConfig) {
        self.service.models().insert(model.name.clone(), model);
    }

    /// Refuses to tell a model's configuration, or tells it again.
    pub fn hide(&self, model: &str, hidden: bool) {
        let mut models = self.service.hidden();
        match hidden {
            true => models.insert(model.to_owned()),
            false => models.remove(model),
        };
    }

    /// Takes a model away; its streams go on.
    pub fn unload(&self, model: &str) {
        self.service.models().remove(model);
    }

    /// The next request, in order of arrival.
    ///
    /// # Panics
    /// None comes in time.
    pub async fn next_request(&mut self) -> Asked {
        tokio::time::timeout(PATIENCE, self.requests.recv())
            .await
            .expect("a request arrives in time")
            .expect("the fake holds a sender itself")
    }

    /// Ends as a killed process does.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Comes back on the same port, after [`ScriptedTriton::kill`].
    pub async fn restart(&mut self) {
        self.kill();
        // The task of the server before has not run since.
        tokio::task::yield_now().await;
        self.server = Server::in_memory(self.service.clone().router(), self.address.port());
    }
}

/// What Triton tells of a model's tensors: each has a batch dimension where the model takes batches.
fn metadata(config: &ModelConfig) -> ModelMetadataResponse {
    let tensor = |name: &str, kind: i32, dims: &[i64]| {
        let batch = (config.max_batch_size > 0).then_some(-1);
        let named = DataType::try_from(kind).map_or("", |kind| kind.as_str_name());
        model_metadata_response::TensorMetadata {
            name: name.to_owned(),
            datatype: named.replace("TYPE_", "").replace("STRING", "BYTES"),
            shape: batch.into_iter().chain(dims.iter().copied()).collect(),
        }
    };
    let inputs = config.input.iter();
    let outputs = config.output.iter();
    ModelMetadataResponse {
        name: config.name.clone(),
        versions: vec!["1".to_owned()],
        platform: config.backend.clone(),
        inputs: inputs
            .map(|input| tensor(&input.name, input.data_type, &input.dims))
            .collect(),
        outputs: outputs
            .map(|output| tensor(&output.name, output.data_type, &output.dims))
            .collect(),
    }
}

#[derive(Clone, Debug)]
struct Service {
    models: Arc<Mutex<Models>>,
    /// Models whose configuration is not told.
    hidden: Arc<Mutex<BTreeSet<String>>>,
    requests: mpsc::Sender<Asked>,
}

impl Service {
    fn router(self) -> Router {
        tonic::transport::Server::builder()
            .max_concurrent_streams(u32::MAX)
            .add_service(GrpcInferenceServiceServer::new(self))
    }

    fn models(&self) -> MutexGuard<'_, Models> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hidden(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.hidden.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl GrpcInferenceService for Service {
    async fn server_live(
        &self,
        _: Request<ServerLiveRequest>,
    ) -> Result<Response<ServerLiveResponse>, Status> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(
        &self,
        _: Request<ServerReadyRequest>,
    ) -> Result<Response<ServerReadyResponse>, Status> {
        Ok(Response::new(ServerReadyResponse { ready: true }))
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> Result<Response<ServerMetadataResponse>, Status> {
        Ok(Response::new(ServerMetadataResponse {
            name: "triton".to_owned(),
            version: "2.51.0".to_owned(),
            extensions: vec![
                "classification".to_owned(),
                "model_configuration".to_owned(),
            ],
        }))
    }

    async fn repository_index(
        &self,
        _: Request<RepositoryIndexRequest>,
    ) -> Result<Response<RepositoryIndexResponse>, Status> {
        let models = self.models();
        let models = models.keys().map(|name| ModelIndex {
            name: name.clone(),
            version: "1".to_owned(),
            state: "READY".to_owned(),
            reason: String::new(),
        });
        Ok(Response::new(RepositoryIndexResponse {
            models: models.collect(),
        }))
    }

    async fn model_config(
        &self,
        request: Request<ModelConfigRequest>,
    ) -> Result<Response<ModelConfigResponse>, Status> {
        let name = request.into_inner().name;
        if self.hidden().contains(&name) {
            return Err(Status::internal("the configuration is gone"));
        }
        let config = self.models().get(&name).cloned();
        let config = config.ok_or_else(|| {
            Status::not_found(format!("Request for unknown model: '{name}' is not found"))
        })?;
        Ok(Response::new(ModelConfigResponse {
            config: Some(config),
        }))
    }

    async fn model_ready(
        &self,
        request: Request<ModelReadyRequest>,
    ) -> Result<Response<ModelReadyResponse>, Status> {
        let ready = self.models().contains_key(&request.into_inner().name);
        Ok(Response::new(ModelReadyResponse { ready }))
    }

    async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> Result<Response<ModelMetadataResponse>, Status> {
        let name = request.into_inner().name;
        let config = self.models().get(&name).cloned();
        let config = config.ok_or_else(|| {
            Status::not_found(format!("Request for unknown model: '{name}' is not found"))
        })?;
        Ok(Response::new(metadata(&config)))
    }

    async fn model_statistics(
        &self,
        request: Request<ModelStatisticsRequest>,
    ) -> Result<Response<ModelStatisticsResponse>, Status> {
        let asked = request.into_inner().name;
        let models = self.models();
        let names = models
            .keys()
            .filter(|name| asked.is_empty() || **name == asked);
        let model_stats = names.map(|name| ModelStatistics {
            name: name.clone(),
            version: "1".to_owned(),
            inference_count: 3,
            ..ModelStatistics::default()
        });
        Ok(Response::new(ModelStatisticsResponse {
            model_stats: model_stats.collect(),
        }))
    }

    /// The first response to the request; an error is INTERNAL, as in Triton.
    async fn model_infer(
        &self,
        request: Request<ModelInferRequest>,
    ) -> Result<Response<ModelInferResponse>, Status> {
        let (outgoing, mut answers) = mpsc::channel(16);
        let message = request.into_inner();
        let sent = self.requests.send(Asked { message, outgoing }).await;
        sent.map_err(|_| Status::unavailable("the test has ended"))?;
        let answer = answers.recv().await;
        let answer = answer.unwrap_or_else(|| Err(Status::unavailable("not answered")))?;
        match answer.error_message.as_str() {
            "" => Ok(Response::new(answer.infer_response.unwrap_or_default())),
            text => Err(Status::internal(text)),
        }
    }

    type ModelStreamInferStream =
        Pin<Box<dyn Stream<Item = Result<ModelStreamInferResponse, Status>> + Send>>;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Result<Response<Self::ModelStreamInferStream>, Status> {
        let mut incoming = request.into_inner();
        let (outgoing, answers) = mpsc::channel(1024);
        let requests = self.requests.clone();
        tokio::spawn(async move {
            while let Some(Ok(message)) = incoming.next().await {
                let outgoing = outgoing.clone();
                if requests.send(Asked { message, outgoing }).await.is_err() {
                    break;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }

    unimplemented_rpcs! {
        repository_model_load(RepositoryModelLoadRequest) -> RepositoryModelLoadResponse;
        repository_model_unload(RepositoryModelUnloadRequest) -> RepositoryModelUnloadResponse;
        system_shared_memory_status(SystemSharedMemoryStatusRequest) -> SystemSharedMemoryStatusResponse;
        system_shared_memory_register(SystemSharedMemoryRegisterRequest) -> SystemSharedMemoryRegisterResponse;
        system_shared_memory_unregister(SystemSharedMemoryUnregisterRequest) -> SystemSharedMemoryUnregisterResponse;
        cuda_shared_memory_status(CudaSharedMemoryStatusRequest) -> CudaSharedMemoryStatusResponse;
        cuda_shared_memory_register(CudaSharedMemoryRegisterRequest) -> CudaSharedMemoryRegisterResponse;
        cuda_shared_memory_unregister(CudaSharedMemoryUnregisterRequest) -> CudaSharedMemoryUnregisterResponse;
        trace_setting(TraceSettingRequest) -> TraceSettingResponse;
        log_settings(LogSettingsRequest) -> LogSettingsResponse;
    }
}
