//! What a request, a token and an open stream cost the gateway, counted: allocations and bytes on the heap, which no
//! busy machine moves. `docs/PERFORMANCE.md` says what is measured in time.
//!
//! A change that needs more than a budget raises it here, and says why.
#![allow(clippy::unwrap_used, reason = "helpers of tests may, like tests")]
#![allow(
    clippy::disallowed_methods,
    reason = "clients with real sockets and a real clock"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use clap::Parser;
use inflight_gateway::{GatewayOptions, serve};
use inflight_kserve::step::{FinishReason, Handle};
use inflight_testkit::allocations::{self, Counting};
use inflight_testkit::model::{VOCABULARY, byte_model_files};
use inflight_testkit::worker::{Received, ScriptedModel, ScriptedWorker, join, row};
use inflight_text::{HelperCommand, use_template_helper};
use tokio::runtime::{Builder, Runtime};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of a chat with one token of answer, from its first byte to its last.
const CHAT_ALLOCATIONS: f64 = 140.0;
/// Allocations of a token of a stream, where 16 streams move at once.
const TOKEN_ALLOCATIONS: f64 = 1.0;
/// Bytes on the heap for each open stream; 16 KiB are hyper's two buffers, of which most is never touched.
const STREAM_BYTES: f64 = 32.0 * 1024.0;

/// A gateway whose threads alone are counted, and the worker that it asks.
struct Counted {
    address: SocketAddr,
    worker: ScriptedWorker,
    /// Of the worker and the test.
    others: Runtime,
    _gateway: Runtime,
}

impl Counted {
    fn start() -> Self {
        use_template_helper(HelperCommand {
            // The model's template is plain, and needs none.
            program: "/bin/false".to_owned(),
            arguments: Vec::new(),
        });
        let mut model = ScriptedModel::new("m", byte_model_files());
        model.description.vocab_size = VOCABULARY;
        model.description.max_seq_len = 4096;
        model.description.max_input_len = 4095;
        let others = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let worker = others.block_on(ScriptedWorker::start_on_tcp(model));
        let gateway = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .on_thread_start(allocations::share)
            .build()
            .unwrap();
        let upstream = worker.address.to_string();
        let arguments = ["gateway", "--port", "0", "--worker", &upstream];
        let options = GatewayOptions::try_parse_from(arguments).unwrap();
        let (bound, address) = std::sync::mpsc::channel();
        gateway.spawn(async move {
            let on_bound = |address| bound.send(address).unwrap();
            serve(&options, on_bound, std::future::pending())
                .await
                .unwrap();
        });
        let address = address.recv().unwrap();
        let counted = Self {
            address,
            worker,
            others,
            _gateway: gateway,
        };
        while !counted.is_ready() {
            std::thread::sleep(Duration::from_millis(5));
        }
        counted
    }

    fn is_ready(&self) -> bool {
        let mut client = Client::connect(self.address);
        client.send("GET", "/health/ready", "");
        client.head().starts_with("HTTP/1.1 200")
    }

    fn next_request(&mut self) -> Received {
        self.others.block_on(self.worker.next_request())
    }

    fn finish(&self, request: &Received, tokens: &[i32]) {
        self.others
            .block_on(request.finish(tokens, FinishReason::Length));
    }

    /// One token for each stream, as one iteration of a worker.
    fn token(&self, streams: &[Received]) {
        let rows = streams.iter().map(|stream| one_token(stream.handle));
        let rows = join(&rows.collect::<Vec<_>>());
        self.others.block_on(streams[0].rows(rows));
    }
}

fn one_token(handle: Handle) -> inflight_kserve::step::StepBatch {
    row(
        handle,
        0,
        &[i32::from(b'a')],
        FinishReason::NotFinished,
        false,
    )
}

/// A client on one connection, in bytes.
struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let buffer = Vec::new();
        Self { stream, buffer }
    }

    fn send(&mut self, method: &str, path: &str, body: &str) {
        let length = body.len();
        // In one write, as clients do: a head in parts makes the server's buffer grow.
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: gateway\r\nuser-agent: OpenAI/Python\r\naccept: application/json\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        self.stream.write_all(request.as_bytes()).unwrap();
    }

    fn chat(&mut self, is_stream: bool) {
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"What is machine learning?"}}],"stream":{is_stream}}}"#
        );
        self.send("POST", "/v1/chat/completions", &body);
    }

    /// Reads on until `end` has come, and takes all up to there.
    fn until(&mut self, end: &str) -> String {
        let mut block = [0; 4096];
        loop {
            let found = self
                .buffer
                .windows(end.len())
                .position(|part| part == end.as_bytes());
            if let Some(start) = found {
                let taken = self.buffer.drain(..start + end.len()).collect();
                return String::from_utf8(taken).unwrap();
            }
            let read = self.stream.read(&mut block).unwrap();
            assert!(read > 0, "the gateway closed the connection");
            self.buffer.extend_from_slice(&block[..read]);
        }
    }

    /// An answer in one piece.
    fn whole(&mut self) {
        let head = self.head();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let length = head.split("content-length: ").nth(1).unwrap();
        let length: usize = length.lines().next().unwrap().parse().unwrap();
        let mut rest = length.saturating_sub(self.buffer.len());
        self.buffer.drain(..length - rest);
        let mut block = [0; 4096];
        while rest > 0 {
            let read = self.stream.read(&mut block[..rest.min(4096)]).unwrap();
            assert!(read > 0, "the gateway closed the connection");
            rest -= read;
        }
    }

    fn head(&mut self) -> String {
        self.until("\r\n\r\n")
    }
}

/// One test: what is counted is the process's.
#[test]
fn requests_tokens_and_streams_stay_within_their_budgets() {
    let mut gateway = Counted::start();

    let mut client = Client::connect(gateway.address);
    let mut chats = |times: usize| {
        for _ in 0..times {
            client.chat(false);
            let request = gateway.next_request();
            gateway.finish(&request, &[i32::from(b'a')]);
            client.whole();
        }
    };
    chats(50);
    let before = allocations::shared_allocations();
    chats(200);
    let chat = (allocations::shared_allocations() - before) as f64 / 200.0;

    const STREAMS: usize = 16;
    let mut clients: Vec<Client> = (0..STREAMS)
        .map(|_| Client::connect(gateway.address))
        .collect();
    let mut streams = Vec::new();
    for client in &mut clients {
        client.chat(true);
        streams.push(gateway.next_request());
    }
    let mut tokens = |times: usize| {
        for _ in 0..times {
            gateway.token(&streams);
            for client in &mut clients {
                client.until("\"content\":\"a\"");
            }
        }
    };
    tokens(50);
    let before = allocations::shared_allocations();
    tokens(200);
    let token = (allocations::shared_allocations() - before) as f64 / (200 * STREAMS) as f64;

    const OPEN: usize = 400;
    let held = allocations::shared_bytes();
    let mut more = Vec::new();
    for _ in 0..OPEN {
        let mut client = Client::connect(gateway.address);
        client.chat(true);
        streams.push(gateway.next_request());
        more.push(client);
    }
    gateway.token(&streams[STREAMS..]);
    for client in &mut more {
        client.until("\"content\":\"a\"");
    }
    let stream = (allocations::shared_bytes() - held) as f64 / OPEN as f64;

    println!("{chat:.1} allocations a chat, {token:.2} a token, {stream:.0} bytes a stream");
    assert!(chat <= CHAT_ALLOCATIONS, "{chat:.1} allocations a chat");
    assert!(token <= TOKEN_ALLOCATIONS, "{token:.2} allocations a token");
    assert!(stream <= STREAM_BYTES, "{stream:.0} bytes a stream");
}
