//! Starts a worker in this process, and talks to it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc as blocking;
use std::time::Duration;

use inflight_kserve::client::{TransportOptions, connect, inference_client};
use inflight_kserve::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::inference::{
    ModelInferRequest, ModelInferResponse, ModelStreamInferResponse, ServerReadyRequest,
};
use inflight_kserve::names;
use inflight_kserve::step::{Code, FinishReason, Handle, Row, StepBatch, is_leaving};
use inflight_kserve::tensor::{RequestBuilder, Tensors};
use inflight_worker::executor::{
    Adapter, AdapterError, ClientId, Executor, ExecutorFailed, IterationStats, ModelInfo, Request,
    ResponseBatch,
};
use inflight_worker::{
    FurtherModel, SimulatedExecutor, SimulatedOptions, WorkerError, WorkerExit, WorkerOptions,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

/// Nothing here takes long; a test that waits this long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Worker {
    pub(crate) client: GrpcInferenceServiceClient<Channel>,
    pub(crate) grpc: SocketAddr,
    pub(crate) metrics: SocketAddr,
    /// Where its cache's events are published, and those of the past.
    pub(crate) kv_events: [Option<SocketAddr>; 2],
    pub(crate) shutdown: Option<oneshot::Sender<()>>,
    pub(crate) exit: JoinHandle<Result<WorkerExit, WorkerError>>,
}

pub(crate) fn options() -> WorkerOptions {
    WorkerOptions {
        grpc_port: 0,
        metrics_port: 0,
        assets: BTreeMap::from([("config.json".to_owned(), "{}".into())]),
        drain_timeout: Duration::from_millis(200),
        ..WorkerOptions::default()
    }
}

impl Worker {
    /// Starts, and does not wait until ready.
    pub(crate) async fn start_unready(executor: Arc<dyn Executor>, options: WorkerOptions) -> Self {
        Self::start_several(executor, Vec::new(), options).await
    }

    /// The same with further models.
    pub(crate) async fn start_several(
        executor: Arc<dyn Executor>,
        further: Vec<FurtherModel>,
        options: WorkerOptions,
    ) -> Self {
        let (bound, addresses) = oneshot::channel();
        let (shutdown, asked) = oneshot::channel::<()>();
        let exit = tokio::spawn(inflight_worker::serve_models(
            executor,
            further,
            options,
            None,
            |addresses| {
                let _ = bound.send(addresses);
            },
            async {
                let _ = asked.await;
            },
        ));
        let addresses = addresses.await.unwrap();
        let transport = TransportOptions::default();
        let channel = connect(&addresses.grpc.to_string(), &transport)
            .await
            .unwrap();
        Self {
            client: inference_client(channel, &transport),
            grpc: addresses.grpc,
            metrics: addresses.metrics,
            kv_events: [addresses.kv_events, addresses.kv_events_replay],
            shutdown: Some(shutdown),
            exit,
        }
    }

    pub(crate) async fn start(executor: Arc<dyn Executor>, options: WorkerOptions) -> Self {
        let mut worker = Self::start_unready(executor, options).await;
        until(async || worker.is_ready().await).await;
        worker
    }

    pub(crate) async fn simulated(options: SimulatedOptions) -> Self {
        Self::start(Arc::new(SimulatedExecutor::new(options)), self::options()).await
    }

    /// A worker whose executor does what the test says.
    pub(crate) async fn scripted(capabilities: &[&str]) -> (Self, Script) {
        let (executor, script) = Scripted::new(capabilities);
        (Self::start(executor, self::options()).await, script)
    }

    /// A client of the same worker on a connection of its own.
    pub(crate) async fn reconnected(&self) -> Client {
        let transport = TransportOptions::default();
        let channel = connect(&self.grpc.to_string(), &transport).await.unwrap();
        Client {
            client: inference_client(channel, &transport),
        }
    }

    /// Requests at the executor or on the way there.
    pub(crate) async fn active(&self) -> f64 {
        let labels = r#"{model="tensorrt_llm",version="1",request_type="active"}"#;
        self.metric(&format!("nv_trt_llm_request_metrics{labels}"))
            .await
    }

    pub(crate) async fn is_ready(&mut self) -> bool {
        self.client
            .server_ready(ServerReadyRequest {})
            .await
            .unwrap()
            .into_inner()
            .ready
    }

    pub(crate) async fn stream(&mut self) -> Stream {
        Stream::open(&mut self.client).await
    }

    /// Shuts down; what came of it.
    pub(crate) async fn stop(mut self) -> WorkerExit {
        drop(self.shutdown.take());
        tokio::time::timeout(PATIENCE, self.exit)
            .await
            .unwrap()
            .unwrap()
            .unwrap()
    }

    /// One value of the metrics page, by family and labels.
    pub(crate) async fn metric(&self, sample: &str) -> f64 {
        let mut socket = tokio::net::TcpStream::connect(self.metrics).await.unwrap();
        let request = "GET /metrics HTTP/1.1\r\nHost: w\r\nConnection: close\r\n\r\n";
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut page = String::new();
        socket.read_to_string(&mut page).await.unwrap();
        let line = page.lines().find(|line| line.starts_with(sample));
        let line = line.unwrap_or_else(|| panic!("no `{sample}` in\n{page}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until the executor has this many requests.
    pub(crate) async fn until_active(&self, requests: u32) {
        until(async || self.active().await == f64::from(requests)).await;
    }
}

/// Polls until true, within [`PATIENCE`].
pub(crate) async fn until(mut condition: impl AsyncFnMut() -> bool) {
    let polling = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, polling).await.unwrap();
}

pub(crate) struct Stream {
    send: Option<mpsc::Sender<ModelInferRequest>>,
    receive: Streaming<ModelStreamInferResponse>,
}

/// A client on a connection of its own.
pub(crate) struct Client {
    pub(crate) client: GrpcInferenceServiceClient<Channel>,
}

impl Client {
    pub(crate) async fn stream(&mut self) -> Stream {
        Stream::open(&mut self.client).await
    }
}

impl Stream {
    async fn open(client: &mut GrpcInferenceServiceClient<Channel>) -> Self {
        let (send, requests) = mpsc::channel(4096);
        let responses = client
            .model_stream_infer(ReceiverStream::new(requests))
            .await
            .unwrap();
        Self {
            send: Some(send),
            receive: responses.into_inner(),
        }
    }

    /// A stream of steps of this model, as gateways open it.
    pub(crate) async fn of_steps(
        client: &mut GrpcInferenceServiceClient<Channel>,
        model: &str,
    ) -> Self {
        let (send, requests) = mpsc::channel(4096);
        let mut request = tonic::Request::new(ReceiverStream::new(requests));
        let model = model.parse().unwrap();
        request.metadata_mut().insert(names::STEPS_HEADER, model);
        let responses = client.model_stream_infer(request).await.unwrap();
        Self {
            send: Some(send),
            receive: responses.into_inner(),
        }
    }

    pub(crate) async fn send(&self, request: ModelInferRequest) {
        self.send.as_ref().unwrap().send(request).await.unwrap();
    }

    /// Sends a step request of one prompt token; what the executor calls it.
    pub(crate) async fn start_step(&self, handle: u64, script: &Script) -> ClientId {
        self.send(step_request(handle, &[1], 9).build()).await;
        script.request().await.client_id
    }

    /// The same for a plain request that streams.
    pub(crate) async fn start_plain(&self, id: &str, script: &Script) -> ClientId {
        self.send(streaming(id, &[1], 9)).await;
        script.request().await.client_id
    }

    /// Ends the client's side.
    pub(crate) fn finish(&mut self) {
        self.send = None;
    }

    pub(crate) async fn message(
        &mut self,
    ) -> Result<Option<ModelStreamInferResponse>, tonic::Status> {
        tokio::time::timeout(PATIENCE, self.receive.message())
            .await
            .unwrap()
    }

    pub(crate) async fn next(&mut self) -> ModelStreamInferResponse {
        self.message().await.unwrap().expect("the stream goes on")
    }

    /// Asserts that the server ends the stream without a further message.
    pub(crate) async fn assert_ended(&mut self) {
        assert_eq!(self.message().await.unwrap(), None);
    }

    /// The next message with rows; a worker that ends says so before.
    pub(crate) async fn rows(&mut self) -> StepBatch {
        loop {
            let response = self.response().await;
            if !is_leaving(&(&response).into()) {
                return StepBatch::decode(&response).unwrap();
            }
        }
    }

    /// The next message as a plain response without error.
    pub(crate) async fn response(&mut self) -> ModelInferResponse {
        let message = self.next().await;
        assert_eq!(message.error_message, "");
        message.infer_response.unwrap()
    }
}

/// A request for the core model with the tensors that every one has.
pub(crate) fn request(id: &str, prompt: &[i32], max_tokens: i32) -> RequestBuilder {
    let mut builder = RequestBuilder::new("tensorrt_llm", id, 256);
    builder
        .vector("input_ids", prompt)
        .scalar("input_lengths", prompt.len() as i32)
        .scalar("request_output_len", max_tokens);
    builder
}

/// A plain request that streams.
pub(crate) fn streaming(id: &str, prompt: &[i32], max_tokens: i32) -> ModelInferRequest {
    let mut builder = request(id, prompt, max_tokens);
    builder.scalar("streaming", true).build()
}

pub(crate) fn step_request(handle: u64, prompt: &[i32], max_tokens: i32) -> RequestBuilder {
    let mut builder = request("", prompt, max_tokens);
    builder.handle(Handle(handle));
    builder
}

pub(crate) fn is_final(response: &ModelInferResponse) -> bool {
    let choice = response.parameters[names::FINAL_RESPONSE]
        .parameter_choice
        .as_ref();
    matches!(choice, Some(ParameterChoice::BoolParam(true)))
}

pub(crate) fn output_ids(response: &ModelInferResponse) -> Vec<i32> {
    Tensors::outputs(response)
        .unwrap()
        .values(names::OUTPUT_IDS)
        .unwrap()
        .unwrap_or_default()
}

/// Tokens as fast as awaited.
pub(crate) fn instant() -> SimulatedOptions {
    SimulatedOptions {
        prefill_us_per_token: 0.0,
        step_us: 0.0,
        step_us_per_sequence: 0.0,
        ..SimulatedOptions::default()
    }
}

/// A prompt whose first token does not come within a test's time at [`slow`].
pub(crate) const LONG: &[i32] = &[1; 8000];

/// One prompt token in an iteration: the canary is through after one, [`LONG`] after half a minute.
pub(crate) fn slow() -> SimulatedOptions {
    SimulatedOptions {
        step_us: 4000.0,
        max_num_tokens: 1,
        ..instant()
    }
}

/// An executor that does what the test says.
pub(crate) struct Scripted {
    info: ModelInfo,
    enqueued: mpsc::UnboundedSender<Request>,
    cancelled: mpsc::UnboundedSender<ClientId>,
    batches: parking_lot::Mutex<blocking::Receiver<Result<ResponseBatch, ExecutorFailed>>>,
    answer: blocking::Sender<Result<ResponseBatch, ExecutorFailed>>,
}

/// The test's end of a [`Scripted`] executor.
pub(crate) struct Script {
    requests: Mutex<mpsc::UnboundedReceiver<Request>>,
    cancels: Mutex<mpsc::UnboundedReceiver<ClientId>>,
    batches: blocking::Sender<Result<ResponseBatch, ExecutorFailed>>,
}

impl Scripted {
    /// With these capabilities; the request that proves readiness is answered by itself.
    pub(crate) fn new(capabilities: &[&str]) -> (Arc<Self>, Script) {
        let (enqueued, requests) = mpsc::unbounded_channel();
        let (cancelled, cancels) = mpsc::unbounded_channel();
        let (answer, batches) = blocking::channel();
        let executor = Self {
            info: ModelInfo {
                executor: "scripted".to_owned(),
                vocab_size: 100,
                max_seq_len: 64,
                max_input_len: 32,
                max_batch_size: 4,
                max_num_tokens: 64,
                max_beam_width: 4,
                tokens_per_block: 8,
                capabilities: capabilities.iter().map(|name| (*name).to_owned()).collect(),
                adapters: vec![Adapter {
                    name: "support".to_owned(),
                    lora_task_id: 7,
                }],
                weights: String::new(),
            },
            enqueued,
            cancelled,
            batches: parking_lot::Mutex::new(batches),
            answer: answer.clone(),
        };
        let script = Script {
            requests: Mutex::new(requests),
            cancels: Mutex::new(cancels),
            batches: answer,
        };
        (Arc::new(executor), script)
    }
}

impl Script {
    /// The next request that the executor gets.
    pub(crate) async fn request(&self) -> Request {
        let mut requests = self.requests.lock().await;
        tokio::time::timeout(PATIENCE, requests.recv())
            .await
            .unwrap()
            .unwrap()
    }

    /// The next request that the executor is told to end.
    pub(crate) async fn cancel(&self) -> ClientId {
        let mut cancels = self.cancels.lock().await;
        tokio::time::timeout(PATIENCE, cancels.recv())
            .await
            .unwrap()
            .unwrap()
    }

    /// Gives one iteration's rows.
    pub(crate) fn give<'a>(&self, rows: impl IntoIterator<Item = Row<'a, ClientId>>) {
        self.give_batch(ResponseBatch {
            rows: rows.into_iter().collect(),
            tensors: Vec::new(),
        });
    }

    pub(crate) fn give_batch(&self, batch: ResponseBatch) {
        self.batches.send(Ok(batch)).unwrap();
    }

    pub(crate) fn fail(&self, reason: &str) {
        self.batches
            .send(Err(ExecutorFailed(reason.to_owned())))
            .unwrap();
    }
}

/// The last row of a request.
pub(crate) fn last(client_id: ClientId, tokens: &[i32], reason: FinishReason) -> Row<'_, ClientId> {
    Row {
        finish_reason: reason,
        is_final: true,
        ..Row::new(client_id, tokens)
    }
}

/// The last row of a sequence other than the request's last.
pub(crate) fn ended(
    client_id: ClientId,
    tokens: &[i32],
    reason: FinishReason,
) -> Row<'_, ClientId> {
    Row {
        is_final: false,
        ..last(client_id, tokens, reason)
    }
}

/// A row as one of the request's second sequence.
pub(crate) fn second<'a>(row: Row<'a, ClientId>) -> Row<'a, ClientId> {
    Row {
        sequence_index: 1,
        ..row
    }
}

impl Executor for Scripted {
    fn info(&self) -> ModelInfo {
        self.info.clone()
    }

    fn enqueue(&self, requests: Vec<Request>) -> Result<(), ExecutorFailed> {
        for request in requests {
            if request.input_token_ids == [0] && request.max_tokens == 1 {
                let rows = [last(request.client_id, &[1], FinishReason::Length)];
                let batch = ResponseBatch {
                    rows: rows.into_iter().collect(),
                    tensors: Vec::new(),
                };
                self.answer.send(Ok(batch)).unwrap();
            } else {
                let _ = self.enqueued.send(request);
            }
        }
        Ok(())
    }

    fn cancel(&self, client_ids: &[ClientId]) -> Result<(), ExecutorFailed> {
        for client_id in client_ids {
            let _ = self.cancelled.send(*client_id);
        }
        Ok(())
    }

    fn await_responses(&self, timeout: Duration) -> Result<ResponseBatch, ExecutorFailed> {
        match self
            .batches
            .lock()
            .recv_timeout(timeout.min(Duration::from_millis(20)))
        {
            Ok(batch) => batch,
            Err(_) => Ok(ResponseBatch::default()),
        }
    }

    fn stats(&self) -> Result<Vec<IterationStats>, ExecutorFailed> {
        Ok(Vec::new())
    }

    /// Whatever has a config fits; the task id is as many as the name has letters.
    fn load_adapter(&self, name: &str, path: &Path) -> Result<u64, AdapterError> {
        if path.join("adapter_config.json").is_file() {
            return Ok(name.len() as u64);
        }
        Err(AdapterError::Refused {
            code: Code::InvalidArgument,
            text: format!("`{name}` has no config"),
        })
    }

    fn unload_adapter(&self, name: &str) -> Result<(), AdapterError> {
        match name {
            "missing" => Err(AdapterError::Refused {
                code: Code::NotFound,
                text: format!("no adapter `{name}` is loaded"),
            }),
            _ => Ok(()),
        }
    }

    fn shutdown(&self) {}
}
