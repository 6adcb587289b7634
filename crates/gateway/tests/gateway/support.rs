//! A gateway in this process, a client, and the scripted worker with the byte model.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use clap::Parser;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use inflight_gateway::{GatewayOptions, serve_on_network};
use inflight_testkit::memory::{MemoryListener, connect, network};
use inflight_testkit::model::{VOCABULARY, byte_model_files};
use inflight_testkit::proxy::HoldingProxy;
use inflight_testkit::sse::SseReader;
use inflight_testkit::worker::{ScriptedModel, ScriptedWorker};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A test that waits longer than this has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The byte model under the name `m`, with a context of 64 tokens.
pub(crate) fn byte_model() -> ScriptedModel {
    let mut model = ScriptedModel::new("m", byte_model_files());
    model.description.vocab_size = VOCABULARY;
    model
}

pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    /// Of its port for gRPC, with `--grpc-port`.
    pub(crate) grpc: Option<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Gateway {
    /// Starts a gateway before these workers; does not wait for them.
    pub(crate) async fn start(workers: &[SocketAddr], extra: &[&str]) -> Self {
        let mut arguments = vec!["gateway".to_owned(), "--port".to_owned(), "0".to_owned()];
        for worker in workers {
            arguments.extend(["--worker".to_owned(), worker.to_string()]);
        }
        arguments.extend(extra.iter().map(|argument| (*argument).to_owned()));
        let options = GatewayOptions::try_parse_from(arguments).unwrap();
        let listener = MemoryListener::bind(0).unwrap();
        let address = listener.address;
        let grpc = options.grpc_port.map(|port| {
            let listener = MemoryListener::bind(port).unwrap();
            let address = listener.address;
            (listener, address)
        });
        let grpc_address = grpc.as_ref().map(|(_, address)| *address);
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let shutdown = async {
                let _ = stopped.await;
            };
            serve_on_network(listener, grpc, network(), &options, shutdown)
                .await
                .unwrap();
        });
        Self {
            address,
            grpc: grpc_address,
            stop: Some(stop),
            task,
        }
    }

    /// Waits until some worker is ready.
    pub(crate) async fn ready(self) -> Self {
        self.wait_for_readiness(200).await;
        self
    }

    /// Waits until every worker is ready.
    pub(crate) async fn all_ready(self) -> Self {
        let poll = async {
            loop {
                let health = self.get("/health/ready").await.json();
                let workers = health["workers"].as_array().unwrap();
                if workers.iter().all(|worker| worker["ready"] == true) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, poll)
            .await
            .expect("all workers are ready in time");
        self
    }

    /// Polls readiness until it has this status.
    pub(crate) async fn wait_for_readiness(&self, status: u16) {
        self.wait_for("/health/ready", status).await;
    }

    /// Polls a path until it has this status.
    pub(crate) async fn wait_for(&self, path: &str, status: u16) {
        let poll = async {
            while self.get(path).await.status != status {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let changed = tokio::time::timeout(PATIENCE, poll).await;
        changed.expect("the status changes in time");
    }

    /// Waits until every server has said what it has.
    pub(crate) async fn heard(self) -> Self {
        self.wait_for("/v2/models/none", 404).await;
        self
    }

    /// Why its first worker is not ready, once that was tried.
    pub(crate) async fn refusal(&self) -> String {
        let poll = async {
            loop {
                let health = self.get("/health/ready").await.json();
                // Before its first worker is configured, it lists none.
                match health["workers"][0]["reason"].as_str() {
                    None | Some("not connected yet") => {}
                    Some(reason) => return reason.to_owned(),
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, poll)
            .await
            .expect("a worker is tried in time")
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        Client::connect(self.address).await.get(path).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        Client::connect(self.address).await.post(path, body).await
    }

    /// Begins the shutdown and leaves the gateway running until it is done.
    pub(crate) fn begin_shutdown(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Waits until the gateway has ended.
    pub(crate) async fn ended(self) {
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .expect("it ends in time")
            .unwrap();
    }
}

/// A worker with the byte model and a gateway that is ready.
pub(crate) async fn pair() -> (ScriptedWorker, Gateway) {
    let worker = ScriptedWorker::start(byte_model()).await;
    // What is lost with it ends at once.
    let options = ["--resume-wait-s", "0"];
    let gateway = Gateway::start(&[worker.address], &options).await;
    let gateway = gateway.ready().await;
    (worker, gateway)
}

/// Workers with the byte model as `m` and as `n`, and a gateway that is ready for both.
pub(crate) async fn two_models() -> ([ScriptedWorker; 2], Gateway) {
    let mut other = byte_model();
    other.description.served_model_name = "n".to_owned();
    let workers = [
        ScriptedWorker::start(byte_model()).await,
        ScriptedWorker::start(other).await,
    ];
    let addresses = workers.each_ref().map(|worker| worker.address);
    let gateway = Gateway::start(&addresses, &[]).await.all_ready().await;
    (workers, gateway)
}

/// A whole response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("the body is JSON")
    }

    /// The events of a complete event stream.
    pub(crate) fn events(&self) -> Vec<String> {
        let mut reader = SseReader::default();
        reader.push(&self.body);
        assert!(reader.is_at_border());
        reader.events().to_vec()
    }
}

/// One kept-alive connection.
pub(crate) struct Client {
    sender: hyper::client::conn::http1::SendRequest<Full<Bytes>>,
    task: JoinHandle<()>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::over(connect(address).unwrap()).await
    }

    /// On another connection than one in memory.
    pub(crate) async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        let task = tokio::spawn(async move {
            let _ = connection.await;
        });
        Self { sender, task }
    }

    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        tokio::time::timeout(PATIENCE, self.sender.send_request(request))
            .await
            .expect("an answer in time")
            .expect("an answer")
    }

    /// Sends, and reads the whole answer.
    pub(crate) async fn whole(&mut self, request: Request<Full<Bytes>>) -> Answer {
        whole(self.send(request).await).await
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        let request = Request::get(path)
            .header("host", "gateway")
            .body(Full::default())
            .unwrap();
        whole(self.send(request).await).await
    }

    pub(crate) async fn post(&mut self, path: &str, body: &Value) -> Answer {
        whole(self.send(json_request(path, body)).await).await
    }

    /// Posts and returns as soon as the head of the answer is there.
    pub(crate) async fn open(&mut self, path: &str, body: &Value) -> Stream {
        self.stream(json_request(path, body)).await
    }

    /// Gets a stream, and returns as soon as its head is there.
    pub(crate) async fn open_get(&mut self, path: &str) -> Stream {
        let request = Request::get(path).header("host", "gateway");
        self.stream(request.body(Full::default()).unwrap()).await
    }

    async fn stream(&mut self, request: Request<Full<Bytes>>) -> Stream {
        let response = self.send(request).await;
        assert_eq!(response.status(), 200);
        Stream {
            body: response.into_body(),
            reader: SseReader::default(),
            taken: 0,
        }
    }

    /// Closes the connection at once, whatever is under way.
    pub(crate) fn leave(self) {
        self.task.abort();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A response that is read event by event.
pub(crate) struct Stream {
    body: Incoming,
    reader: SseReader,
    taken: usize,
}

impl Stream {
    /// The next event, or `None` at a clean end.
    pub(crate) async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(event) = self.reader.events().get(self.taken) {
                self.taken += 1;
                return Some(event.clone());
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await;
            match frame.expect("an event in time") {
                Some(frame) => self
                    .reader
                    .push(&frame.expect("not cut").into_data().unwrap()),
                None => return None,
            }
        }
    }

    /// The text of the next content event.
    pub(crate) async fn text(&mut self) -> String {
        let event = self.next().await.expect("an event");
        let event: Value = serde_json::from_str(&event).expect("JSON");
        event["choices"][0]["delta"]["content"]
            .as_str()
            .expect("content")
            .to_owned()
    }

    /// All remaining events.
    pub(crate) async fn rest(&mut self) -> Vec<String> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

pub(crate) fn json_request(path: &str, body: &Value) -> Request<Full<Bytes>> {
    Request::post(path)
        .header("host", "gateway")
        .header("content-type", "application/json")
        .body(Full::from(body.to_string()))
        .unwrap()
}

async fn whole(response: Response<Incoming>) -> Answer {
    let (parts, body) = response.into_parts();
    let body = tokio::time::timeout(PATIENCE, body.collect())
        .await
        .expect("a body in time");
    let body = body.expect("a whole body").to_bytes();
    Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body,
    }
}

/// A chat request of one short message, with more fields.
pub(crate) fn chat(fields: Value) -> Value {
    let mut body =
        serde_json::json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Events with the id and time of their stream replaced, which must be the same in all.
pub(crate) fn normalized(events: &[String]) -> Vec<String> {
    let mut seen: Option<(Value, Value)> = None;
    events
        .iter()
        .map(|event| {
            let Ok(value) = serde_json::from_str::<Value>(event) else {
                return event.clone();
            };
            let Some(id) = value["id"].as_str() else {
                return event.clone();
            };
            let both = (value["id"].clone(), value["created"].clone());
            assert_eq!(seen.get_or_insert_with(|| both.clone()), &both);
            event
                .replace(id, "ID")
                .replace(&value["created"].to_string(), "TIME")
        })
        .collect()
}

/// Two workers behind connections that can be held, and a gateway to which half a second without a word is silence.
pub(crate) async fn behind_proxies(
    model: fn() -> ScriptedModel,
) -> ([ScriptedWorker; 2], [HoldingProxy; 2], Gateway) {
    let workers = [
        ScriptedWorker::start(model()).await,
        ScriptedWorker::start(model()).await,
    ];
    let proxies = [
        HoldingProxy::start(workers[0].address),
        HoldingProxy::start(workers[1].address),
    ];
    let addresses = [proxies[0].address, proxies[1].address];
    let gateway = Gateway::start(&addresses, &["--worker-silence-s", "0.5"]).await;
    (workers, proxies, gateway.all_ready().await)
}
