//! One request, one stream: how a plain Triton server is asked. Owns the streams under way and that
//! dropping one cancels its work; what the messages say is `answer`'s.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use inflight_kserve::client::{self, ConnectError, TransportOptions};
use inflight_kserve::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use inflight_kserve::inference::{ModelInferRequest, ModelStreamInferResponse};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use super::answer::{Reader, classify};
use crate::metrics::Metrics;
use crate::upstream::connect::beginning;
use crate::upstream::registry::{CODE_INTERNAL, CODE_UNAVAILABLE, Registry};

/// HTTP/2 connections to one server. One would put all streams behind one flow-control window and one
/// of the server's threads; a handful is enough for either.
const CONNECTIONS: usize = 4;
/// Streams that were reset and whose late frames are ignored; a few bytes each.
const REMEMBERED_RESETS: usize = 1 << 14;
/// How long a server may take to close a stream after its last response.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// The connections to one server, shared by its models.
#[derive(Debug)]
pub struct Pool {
    clients: [GrpcInferenceServiceClient<Channel>; CONNECTIONS],
    next: AtomicUsize,
}

impl Pool {
    /// Connects at the first use, and again after a loss.
    ///
    /// # Errors
    /// The address is none.
    pub fn new(address: &str, options: &TransportOptions) -> Result<Self, ConnectError> {
        let endpoint = client::endpoint(address, options)?
            // A client that leaves resets its stream, and what the server had sent by then still
            // arrives. For a stream that is forgotten that would count as a protocol error, and after
            // a thousand of them as a reason to drop the connection and all that travels on it.
            .http2_max_concurrent_reset_streams(REMEMBERED_RESETS)
            .http2_max_local_error_reset_streams(None);
        let clients =
            std::array::from_fn(|_| client::inference_client(endpoint.connect_lazy(), options));
        Ok(Self {
            clients,
            next: AtomicUsize::new(0),
        })
    }

    /// The next connection's client; cloning one costs a few counters.
    pub fn client(&self) -> GrpcInferenceServiceClient<Channel> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        self.clients[turn % CONNECTIONS].clone()
    }
}

/// The requests of one model that are under way at a server.
#[derive(Debug)]
pub struct Exchanges {
    pool: Arc<Pool>,
    registry: Arc<Registry>,
    metrics: Arc<Metrics>,
    /// By handle; dropping a sender ends its stream.
    under_way: Arc<Mutex<HashMap<u64, oneshot::Sender<()>>>>,
}

impl Exchanges {
    /// No request is under way yet. Rows go to `registry`'s handles.
    pub fn new(pool: Arc<Pool>, registry: Arc<Registry>, metrics: Arc<Metrics>) -> Self {
        Self {
            pool,
            registry,
            metrics,
            under_way: Arc::default(),
        }
    }

    /// Sends the request of an open handle; its rows follow until one is final. Needs a tokio runtime.
    pub fn send(&self, handle: u64, request: ModelInferRequest, reader: Reader) {
        let client = self.pool.client();
        let (stop, stopped) = oneshot::channel();
        self.under_way.lock().insert(handle, stop);
        let registry = Arc::clone(&self.registry);
        let metrics = Arc::clone(&self.metrics);
        let under_way = Arc::clone(&self.under_way);
        tokio::spawn(async move {
            let exchange = Exchange {
                handle,
                registry: &registry,
                metrics: &metrics,
                reader,
            };
            tokio::select! {
                // Dropping the other branch resets the stream, which cancels the work.
                _ = stopped => {}
                () = exchange.run(client, request) => {}
            }
            under_way.lock().remove(&handle);
        });
    }

    /// Ends a request nobody waits for.
    pub fn stop(&self, handle: u64) {
        self.under_way.lock().remove(&handle);
    }

    /// Ends all.
    pub fn close(&self) {
        self.under_way.lock().clear();
    }
}

struct Exchange<'a> {
    handle: u64,
    registry: &'a Registry,
    metrics: &'a Metrics,
    reader: Reader,
}

impl Exchange<'_> {
    async fn run(
        mut self,
        mut client: GrpcInferenceServiceClient<Channel>,
        request: ModelInferRequest,
    ) {
        let opened = client.model_stream_infer(tokio_stream::once(request)).await;
        let mut stream = match opened {
            Ok(stream) => stream.into_inner(),
            Err(status) => return self.fail(code(&status), &status.to_string()),
        };
        loop {
            match stream.message().await {
                Ok(Some(message)) => {
                    if self.take(message) {
                        break;
                    }
                }
                Ok(None) => {
                    return self.fail(
                        CODE_UNAVAILABLE,
                        "the stream ended before its last response",
                    );
                }
                Err(status) => return self.fail(code(&status), &status.to_string()),
            }
        }
        // A stream that is read to its end is closed by both sides; a reset would be work for both.
        let _ = tokio::time::timeout(END_TIMEOUT, drain(&mut stream)).await;
    }

    /// Passes a response on; true when it was the last.
    fn take(&mut self, message: ModelStreamInferResponse) -> bool {
        if !message.error_message.is_empty() {
            let (code, text) = classify(&message.error_message);
            self.fail(code, text);
            return true;
        }
        let Some(response) = message.infer_response else {
            return false;
        };
        let answer = match self.reader.read(&response) {
            Ok(answer) => answer,
            Err(error) => {
                let text = format!("the server sent what cannot be read: {error}");
                self.fail(CODE_INTERNAL, &text);
                return true;
            }
        };
        let last = answer.last;
        let delivered = self.registry.deliver(self.handle, answer, Instant::now());
        self.metrics.tokens_out.inc_by(delivered);
        last
    }

    fn fail(&self, code: i32, text: &str) {
        let text = beginning(text);
        self.registry.fail(self.handle, code, text, Instant::now());
    }
}

async fn drain(stream: &mut Streaming<ModelStreamInferResponse>) {
    while let Ok(Some(_)) = stream.message().await {}
}

/// A failed call's code. What the transport calls unknown is a connection that went away.
fn code(status: &Status) -> i32 {
    match status.code() {
        Code::Unknown | Code::Cancelled => CODE_UNAVAILABLE,
        other => other as i32,
    }
}
