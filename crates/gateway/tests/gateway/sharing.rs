//! Clients that hold what others need: connections that do nothing, places, memory for bodies.

use std::io::ErrorKind;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use inflight_kserve::client::{TransportOptions, connect as connect_to, inference_client};
use inflight_kserve::step::FinishReason;
use inflight_kserve::tensor::RequestBuilder;
use inflight_testkit::memory::{MemoryStream, connect, network};
use inflight_testkit::model::tokens;
use inflight_testkit::triton::ScriptedTriton;
use inflight_testkit::triton_models::{text_model, text_response};
use inflight_testkit::worker::ScriptedWorker;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;
use tokio_stream::StreamExt;

use crate::support::{Client, Gateway, PATIENCE, byte_model, chat};

const PATH: &str = "/v1/chat/completions";
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Reads until the other side has closed; answers each PING. Returns how long that took.
async fn until_closed(mut socket: MemoryStream, started: Instant) -> Duration {
    let read = async {
        loop {
            let mut head = [0; 9];
            match socket.read_exact(&mut head).await {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
                Err(error) => panic!("{error}"),
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            socket.read_exact(&mut payload).await.unwrap();
            if head[3] == 6 && head[4] == 0 {
                let _ = socket.write_all(&frame(6, 1, 0, &payload)).await;
            }
        }
    };
    tokio::time::timeout(PATIENCE, read)
        .await
        .expect("closed in time");
    started.elapsed()
}

#[tokio::test(start_paused = true)]
async fn http2_connections_without_requests_end_whatever_they_send() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let gateway = Gateway::start(&[worker.address], &["--idle-timeout-s", "1"]).await;
    let settings = frame(4, 0, 0, &[]);
    // `:method: GET`, and no END_HEADERS.
    let unfinished = frame(1, 0, 1, &[0x82]);
    for pieces in [
        &[GREETING][..],
        &[GREETING, &settings],
        &[GREETING, &settings, &unfinished],
    ] {
        let started = Instant::now();
        let mut socket = connect(gateway.address).unwrap();
        for piece in pieces {
            socket.write_all(piece).await.unwrap();
        }
        let took = until_closed(socket, started).await;
        assert!(took >= Duration::from_millis(900), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_http2_connection_with_a_request_is_not_idle() {
    let mut worker = ScriptedWorker::start(byte_model()).await;
    let gateway = Gateway::start(&[worker.address], &["--idle-timeout-s", "1"]).await;
    let gateway = gateway.ready().await;
    let mut sender = http2(&gateway, 65_535).await;
    let response = sender.send_request(post(&chat(json!({}))));
    let serve = async {
        let request = worker.next_request().await;
        tokio::time::sleep(Duration::from_millis(2500)).await;
        request.finish(&tokens("a"), FinishReason::EndId).await;
    };
    let (response, ()) = tokio::join!(response, serve);
    assert_eq!(response.unwrap().status(), 200);
}

async fn http2(gateway: &Gateway, window: u32) -> SendRequest<Full<Bytes>> {
    let socket = connect(gateway.address).unwrap();
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(window);
    let handshake = builder.handshake(TokioIo::new(socket));
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    sender
}

fn post(body: &serde_json::Value) -> Request<Full<Bytes>> {
    Request::post(format!("http://localhost{PATH}"))
        .header("content-type", "application/json")
        .body(Full::from(body.to_string()))
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn health_answers_when_other_clients_have_all_connections() {
    let mut worker = ScriptedWorker::start(byte_model()).await;
    let gateway = Gateway::start(&[worker.address], &["--max-connections", "2"]).await;
    let gateway = gateway.ready().await;
    // All have requests: health alone is answered.
    let (mut one, mut two) = (
        Client::connect(gateway.address).await,
        Client::connect(gateway.address).await,
    );
    // Until the connections that asked for readiness are gone.
    for client in [&mut one, &mut two] {
        while client.get("/v1/models").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            *client = Client::connect(gateway.address).await;
        }
    }
    let body = chat(json!({"stream": true}));
    let serve = async {
        let requests = [worker.next_request().await, worker.next_request().await];
        for request in &requests {
            request.tokens(&tokens("a")).await;
        }
        requests
    };
    let (first, second, requests) =
        tokio::join!(one.open(PATH, &body), two.open(PATH, &body), serve);
    assert_eq!(gateway.get("/health/live").await.status, 200);
    assert_eq!(gateway.get("/health/ready").await.status, 200);
    let refused = gateway.get("/v1/models").await;
    assert_eq!(refused.status, 503);
    assert!(refused.headers.contains_key("retry-after"));
    // Idle ones make room for whoever comes.
    for request in requests {
        request.finish(&[], FinishReason::EndId).await;
    }
    for mut stream in [first, second] {
        stream.rest().await;
    }
    let wait = async {
        while gateway.get("/v1/models").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("an idle connection is closed in time");
}

#[tokio::test(start_paused = true)]
async fn five_connections_of_unread_streams_leave_places_for_others() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let gateway = Gateway::start(&[worker.address], &["--max-concurrent-requests", "64"]).await;
    let gateway = gateway.ready().await;
    let worker = worker.answer_all(tokens("ab"), FinishReason::EndId);
    let body = chat(json!({"stream": true}));
    let mut refused = 0;
    let mut held = Vec::new();
    for _ in 0..5 {
        let mut sender = http2(&gateway, 0).await;
        for _ in 0..16 {
            let response = sender.send_request(post(&body)).await.unwrap();
            match response.status().as_u16() {
                200 => held.push(response),
                429 => refused += 1,
                other => panic!("{other}"),
            }
        }
        held.push(sender.send_request(post(&body)).await.unwrap());
    }
    assert!(refused > 0, "80 requests, 64 places");
    let answer = gateway.post(PATH, &chat(json!({}))).await;
    assert_eq!(answer.status, 200, "another connection");
    drop((held, worker));
}

#[tokio::test(start_paused = true)]
async fn one_stream_of_kserve_s_leaves_places_for_others() {
    let mut triton = ScriptedTriton::start([text_model("ensemble")]).await;
    let options = ["--max-concurrent-requests", "64", "--grpc-port", "0"];
    let gateway = Gateway::start(&[triton.address], &options)
        .await
        .heard()
        .await;
    let options = TransportOptions {
        network: Some(network()),
        ..TransportOptions::default()
    };
    let address = gateway.grpc.unwrap().to_string();
    let channel = connect_to(&address, &options).await.unwrap();
    let mut client = inference_client(channel, &options);
    let requests = (0..64).map(|_| {
        let mut request = RequestBuilder::new("ensemble", "", 64);
        request.push_bytes("text_input", &[1, 1], ["Hi"]);
        request.scalar("max_tokens", 4_i32);
        request.build()
    });
    let requests = tokio_stream::iter(requests).chain(tokio_stream::pending());
    let answers = client.model_stream_infer(requests).await.unwrap();
    let mut answers = answers.into_inner();
    // The last eighth is for others.
    let mut held = Vec::new();
    for _ in 0..56 {
        held.push(triton.next_request().await);
    }
    for _ in 0..8 {
        let refused = tokio::time::timeout(PATIENCE, answers.message()).await;
        let refused = refused.expect("it is refused").unwrap().unwrap();
        assert!(refused.error_message.contains("few places left"));
    }
    let answering = async {
        let asked = triton.next_request().await;
        asked.finish(text_response("a")).await;
    };
    let body = json!({"text_input": "Hi", "max_tokens": 4});
    let path = "/v2/models/ensemble/generate";
    let (answer, ()) = tokio::join!(gateway.post(path, &body), answering);
    assert_eq!(answer.status, 200, "another connection");
    drop(held);
}
