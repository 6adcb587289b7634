//! A worker that does what the test says: real gRPC, answers from the test's own hands.
//!
//! Owns the order of messages; knows nothing of executors. A test takes each request
//! with [`ScriptedWorker::next_request`] and answers it row by row, or lets [`ScriptedWorker::answer_all`] do it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use inflight_base::content_hash;
use inflight_kserve::assets::model_assets_server::{ModelAssets, ModelAssetsServer};
use inflight_kserve::assets::{
    Adapter, AdapterList, AssetChunk, DescribeRequest, FetchRequest, ModelDescription,
    WatchAdaptersRequest,
};
use inflight_kserve::inference::grpc_inference_service_server::{
    GrpcInferenceService, GrpcInferenceServiceServer,
};
use inflight_kserve::inference::model_repository_parameter::ParameterChoice;
use inflight_kserve::inference::*;
use inflight_kserve::names;
use inflight_kserve::step::{Code, FinishReason, Handle, Row, RowError, StepBatch, is_stop};
use inflight_kserve::tensor::Tensors;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{ReceiverStream, WatchStream};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::Router;
use tonic::{Request, Response, Status, Streaming};

use crate::PATIENCE;
use crate::server::Server;
use crate::triton::Asked;

type Outgoing = mpsc::Sender<Result<ModelStreamInferResponse, Status>>;

/// What the fake says of itself.
#[derive(Clone, Debug)]
pub struct ScriptedModel {
    pub description: ModelDescription,
    /// File name to content; served by ModelAssets.
    pub files: Vec<(String, Bytes)>,
    pub extensions: Vec<String>,
}

impl ScriptedModel {
    /// A model of 64 tokens of context that can do everything, with these files.
    pub fn new(served_model_name: &str, files: Vec<(String, Bytes)>) -> Self {
        let capabilities = [
            "log_probs",
            "top_log_probs",
            "log_prob_ids",
            "thinking_budget",
            "prompt_log_probs",
            "min_p",
            "penalties",
            "min_tokens",
            "bad_words",
            "embedding_bias",
            "num_return_sequences",
        ];
        Self {
            description: ModelDescription {
                served_model_name: served_model_name.to_owned(),
                core_model_name: "tensorrt_llm".to_owned(),
                content_hash: hash(&files),
                created_unix_seconds: 1_700_000_000,
                executor: "fake".to_owned(),
                max_seq_len: 64,
                max_input_len: 63,
                max_beam_width: 1,
                vocab_size: 32_000,
                capabilities: capabilities.map(str::to_owned).to_vec(),
                adapters: Vec::new(),
                further_models: Vec::new(),
                weights: String::new(),
                phases: 0,
            },
            files,
            extensions: vec![names::STEP_BATCHING_EXTENSION.to_owned()],
        }
    }
}

fn hash(files: &[(String, Bytes)]) -> String {
    let files: BTreeMap<&str, &[u8]> = files
        .iter()
        .map(|(name, data)| (name.as_str(), &data[..]))
        .collect();
    content_hash(files)
}

/// One request as it arrived, and the way to answer it.
#[derive(Debug)]
pub struct Received {
    pub message: ModelInferRequest,
    pub handle: Handle,
    /// True for a stop of the handle.
    pub stop: bool,
    outgoing: Outgoing,
}

impl Received {
    /// Sends rows as one iteration's message.
    pub async fn rows(&self, rows: StepBatch) {
        let message = rows.encode("tensorrt_llm").decode();
        // A gateway that has gone away is a legitimate part of many tests.
        let _ = self.outgoing.send(message).await;
    }

    /// Sends tokens of sequence 0.
    pub async fn tokens(&self, tokens: &[i32]) {
        self.rows(row(
            self.handle,
            0,
            tokens,
            FinishReason::NotFinished,
            false,
        ))
        .await;
    }

    /// Sends the last row of the request.
    pub async fn finish(&self, tokens: &[i32], reason: FinishReason) {
        self.rows(row(self.handle, 0, tokens, reason, true)).await;
    }

    /// Sends the first token, with which a context ends, and what it leaves.
    pub async fn context(&self, token: i32, params: &'static [u8]) {
        self.context_ended(token, params, FinishReason::Length)
            .await;
    }

    /// The same with this reason.
    pub async fn context_ended(&self, token: i32, params: &'static [u8], reason: FinishReason) {
        let params = Bytes::from_static(params);
        self.rows(StepBatch::from_iter([Row {
            finish_reason: reason,
            is_final: true,
            context_phase: Some(&params),
            ..Row::new(self.handle, &[token])
        }]))
        .await;
    }

    /// Sends the request's errored, final row.
    pub async fn fail(&self, code: impl Into<Code>, text: &str) {
        self.rows(failed_row(self.handle, code, text)).await;
    }
}

/// A request's errored, final row as a batch.
pub fn failed_row(handle: Handle, code: impl Into<Code>, text: &str) -> StepBatch {
    let error = RowError {
        row: 0,
        code: code.into(),
        text: text.to_owned(),
        retry_after_ms: 0,
    };
    StepBatch::from_iter([Row {
        is_final: true,
        error: Some(&error),
        ..Row::new(handle, &[])
    }])
}

/// One row as a batch; tests join several with [`join`].
pub fn row(
    handle: Handle,
    sequence: i32,
    tokens: &[i32],
    reason: FinishReason,
    is_final: bool,
) -> StepBatch {
    StepBatch::from_iter([Row {
        sequence_index: sequence,
        finish_reason: reason,
        is_final,
        ..Row::new(handle, tokens)
    }])
}

/// Several batches as one message.
pub fn join(batches: &[StepBatch]) -> StepBatch {
    let mut joined = StepBatch::default();
    for batch in batches {
        joined.append(batch.clone());
    }
    joined
}

/// A running fake; dropping it closes every connection at once.
#[derive(Debug)]
pub struct ScriptedWorker {
    pub address: SocketAddr,
    requests: mpsc::Receiver<Received>,
    calls: mpsc::Receiver<Asked>,
    server: Server,
}

impl ScriptedWorker {
    /// Listens on a free port in memory.
    pub async fn start(model: ScriptedModel) -> Self {
        Self::start_at(model, SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Listens on this address in memory: a worker that comes back.
    pub async fn start_at(model: ScriptedModel, address: SocketAddr) -> Self {
        // The one before has ended, and its task has not run since.
        tokio::task::yield_now().await;
        let (router, requests, calls) = Service::router(model);
        let server = Server::in_memory(router, address.port());
        Self {
            address: server.address,
            requests,
            calls,
            server,
        }
    }

    /// Listens on a free port of this machine, on a separate thread.
    pub async fn start_on_tcp(model: ScriptedModel) -> Self {
        let (router, requests, calls) = Service::router(model);
        let server = Server::on_tcp(router, 0).await;
        Self {
            address: server.address,
            requests,
            calls,
            server,
        }
    }

    /// The next message with a handle, requests and stops alike, in order of arrival.
    pub async fn next_request(&mut self) -> Received {
        tokio::time::timeout(PATIENCE, self.requests.recv())
            .await
            .expect("a request arrives in time")
            .expect("the fake worker still runs")
    }

    /// The next request of a KServe client's, which has no handle, in order of arrival.
    pub async fn next_call(&mut self) -> Asked {
        tokio::time::timeout(PATIENCE, self.calls.recv())
            .await
            .expect("a call arrives in time")
            .expect("the fake worker still runs")
    }

    /// Answers every request to come with these tokens, one row each, then `reason`. Stops are ignored.
    pub fn answer_all(self, tokens: Vec<i32>, reason: FinishReason) -> JoinHandle<()> {
        tokio::spawn(async move {
            // The whole worker: it serves as long as the task runs.
            let mut worker = self;
            while let Some(request) = worker.requests.recv().await {
                if request.stop {
                    continue;
                }
                for token in &tokens {
                    request.tokens(&[*token]).await;
                }
                request.finish(&[], reason).await;
            }
        })
    }

    /// Ends as a killed process does.
    pub fn kill(&mut self) {
        self.server.kill();
    }
}

#[derive(Clone, Debug)]
struct Service {
    model: Arc<ScriptedModel>,
    adapters: Arc<watch::Sender<Vec<Adapter>>>,
    requests: mpsc::Sender<Received>,
    calls: mpsc::Sender<Asked>,
}

impl Service {
    fn router(model: ScriptedModel) -> (Router, mpsc::Receiver<Received>, mpsc::Receiver<Asked>) {
        let (sender, requests) = mpsc::channel(1024);
        let (calls, called) = mpsc::channel(1024);
        let service = Self {
            adapters: Arc::new(watch::Sender::new(model.description.adapters.clone())),
            model: Arc::new(model),
            requests: sender,
            calls,
        };
        let router = tonic::transport::Server::builder()
            .add_service(GrpcInferenceServiceServer::new(service.clone()))
            .add_service(ModelAssetsServer::new(service));
        (router, requests, called)
    }
}

#[tonic::async_trait]
impl ModelAssets for Service {
    async fn describe(
        &self,
        _: Request<DescribeRequest>,
    ) -> Result<Response<ModelDescription>, Status> {
        Ok(Response::new(ModelDescription {
            adapters: self.adapters.borrow().clone(),
            ..self.model.description.clone()
        }))
    }

    type FetchStream = Pin<Box<dyn Stream<Item = Result<AssetChunk, Status>> + Send>>;

    async fn fetch(&self, _: Request<FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        let chunks: Vec<_> = self
            .model
            .files
            .iter()
            .map(|(name, data)| {
                Ok(AssetChunk {
                    file_name: name.clone(),
                    data: data.clone(),
                })
            })
            .collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(chunks))))
    }

    type WatchAdaptersStream = Pin<Box<dyn Stream<Item = Result<AdapterList, Status>> + Send>>;

    async fn watch_adapters(
        &self,
        _: Request<WatchAdaptersRequest>,
    ) -> Result<Response<Self::WatchAdaptersStream>, Status> {
        let lists = WatchStream::new(self.adapters.subscribe());
        Ok(Response::new(Box::pin(
            lists.map(|adapters| Ok(AdapterList { adapters })),
        )))
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

    async fn model_ready(
        &self,
        _: Request<ModelReadyRequest>,
    ) -> Result<Response<ModelReadyResponse>, Status> {
        Ok(Response::new(ModelReadyResponse { ready: true }))
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> Result<Response<ServerMetadataResponse>, Status> {
        Ok(Response::new(ServerMetadataResponse {
            name: "fake".to_owned(),
            version: "0".to_owned(),
            extensions: self.model.extensions.clone(),
        }))
    }

    type ModelStreamInferStream =
        Pin<Box<dyn Stream<Item = Result<ModelStreamInferResponse, Status>> + Send>>;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Result<Response<Self::ModelStreamInferStream>, Status> {
        let mut incoming = request.into_inner();
        let (outgoing, answers) = mpsc::channel(1024);
        let (requests, calls) = (self.requests.clone(), self.calls.clone());
        tokio::spawn(async move {
            while let Some(Ok(message)) = incoming.next().await {
                let inputs =
                    Tensors::inputs(&message).expect("a gateway's tensors are well-formed");
                let Ok(Some(handle)) = Handle::of(&inputs) else {
                    let outgoing = outgoing.clone();
                    // Most tests have none of these, and some do not look at them.
                    let _ = calls.try_send(Asked { message, outgoing });
                    continue;
                };
                let stop = is_stop(&inputs).expect("`stop` is one BOOL");
                let received = Received {
                    message,
                    handle,
                    stop,
                    outgoing: outgoing.clone(),
                };
                if requests.send(received).await.is_err() {
                    break;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }

    /// Never answers.
    async fn model_infer(
        &self,
        _: Request<ModelInferRequest>,
    ) -> Result<Response<ModelInferResponse>, Status> {
        std::future::pending().await
    }

    /// Every path but `bad` has an adapter; its task id is as many as its name has letters.
    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> Result<Response<RepositoryModelLoadResponse>, Status> {
        let RepositoryModelLoadRequest {
            model_name: name,
            parameters,
            ..
        } = request.into_inner();
        let path = parameters
            .get("lora_path")
            .and_then(|path| path.parameter_choice.as_ref());
        if path == Some(&ParameterChoice::StringParam("bad".to_owned())) {
            return Err(Status::invalid_argument("`bad` is no adapter"));
        }
        self.adapters.send_modify(|adapters| {
            adapters.retain(|adapter| adapter.name != name);
            adapters.push(Adapter {
                lora_task_id: name.len() as u64,
                name,
            });
        });
        Ok(Response::new(RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> Result<Response<RepositoryModelUnloadResponse>, Status> {
        let name = request.into_inner().model_name;
        let was_there = self.adapters.send_if_modified(|adapters| {
            let before = adapters.len();
            adapters.retain(|adapter| adapter.name != name);
            adapters.len() < before
        });
        if was_there {
            return Ok(Response::new(RepositoryModelUnloadResponse {}));
        }
        Err(Status::not_found(format!("no adapter `{name}` is loaded")))
    }

    unimplemented_rpcs! {
        model_metadata(ModelMetadataRequest) -> ModelMetadataResponse;
        model_config(ModelConfigRequest) -> ModelConfigResponse;
        model_statistics(ModelStatisticsRequest) -> ModelStatisticsResponse;
        repository_index(RepositoryIndexRequest) -> RepositoryIndexResponse;
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
