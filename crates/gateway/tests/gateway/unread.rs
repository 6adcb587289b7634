//! Clients that leave their responses unread, over HTTP/1 and HTTP/2.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use inflight_kserve::step::FinishReason;
use inflight_testkit::memory::connect;
use inflight_testkit::model::tokens;
use inflight_testkit::worker::ScriptedWorker;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use crate::support::{Client, Gateway, PATIENCE, byte_model, chat};

const PATH: &str = "/v1/chat/completions";

/// A long model, and a gateway that gives an unread response one second and two requests a place.
async fn impatient() -> (ScriptedWorker, Gateway) {
    let mut model = byte_model();
    model.description.max_seq_len = 100_000_000;
    model.description.max_input_len = 1_000;
    let worker = ScriptedWorker::start(model).await;
    let limits = ["--slow-client-s", "1", "--max-concurrent-requests", "2"];
    let gateway = Gateway::start(&[worker.address], &limits).await;
    (worker, gateway.ready().await)
}

/// One HTTP/2 connection whose streams take `window` bytes unread.
pub(crate) async fn windowed(gateway: &Gateway, window: u32) -> SendRequest<Full<Bytes>> {
    let socket = connect(gateway.address).unwrap();
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let io = TokioIo::new(socket);
    let handshake = builder.initial_stream_window_size(window).handshake(io);
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    sender
}

fn request(body: &Value) -> Request<Full<Bytes>> {
    Request::post(format!("http://gateway{PATH}"))
        .header("content-type", "application/json")
        .body(Full::from(body.to_string()))
        .unwrap()
}

async fn send(sender: &mut SendRequest<Full<Bytes>>, body: &Value) -> Response<Incoming> {
    sender.send_request(request(body)).await.unwrap()
}

/// The same with a deadline.
pub(crate) async fn send_limited(
    sender: &mut SendRequest<Full<Bytes>>,
    body: &Value,
    milliseconds: u64,
) -> Response<Incoming> {
    let mut request = request(body);
    let headers = request.headers_mut();
    headers.insert("x-request-timeout-ms", milliseconds.into());
    sender.send_request(request).await.unwrap()
}

/// Waits until this many requests have a place.
async fn active(gateway: &Gateway, count: usize) {
    let line = format!("inflight_gateway_active_requests {count}\n");
    let poll = async {
        while !std::str::from_utf8(&gateway.get("/metrics").await.body)
            .unwrap()
            .contains(&line)
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, poll)
        .await
        .unwrap_or_else(|_| panic!("never {count} active"));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_is_stopped_and_delays_no_other() {
    let (mut worker, gateway) = impatient().await;
    let mut lazy = connect(gateway.address).unwrap();
    let body = chat(json!({"stream": true})).to_string();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    lazy.write_all(head.as_bytes()).await.unwrap();
    let request = worker.next_request().await;
    // More than the sockets' buffers hold: the gateway must keep reading from the worker all the same.
    let piece = tokens(&"x".repeat(100_000));
    for _ in 0..200 {
        request.tokens(&piece).await;
    }
    let quick = chat(json!({}));
    let serve = async {
        worker
            .next_request()
            .await
            .finish(&tokens("quick"), FinishReason::EndId)
            .await;
    };
    let (answer, ()) = tokio::join!(gateway.post(PATH, &quick), serve);
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "quick");
    // Rows go on coming while the client sleeps; then its request is stopped.
    let stopped = async {
        loop {
            tokio::select! {
                stop = worker.next_request() => break stop,
                () = tokio::time::sleep(Duration::from_millis(50)) => request.tokens(&piece[..1]).await,
            }
        }
    };
    let stop = tokio::time::timeout(PATIENCE, stopped).await.unwrap();
    assert_eq!((stop.stop, stop.handle), (true, request.handle));
    // Never a clean end after a cut: there is no last chunk and no [DONE].
    let mut all = Vec::new();
    let _ = lazy.read_to_end(&mut all).await;
    assert!(!all.ends_with(b"0\r\n\r\n"));
}

#[tokio::test(start_paused = true)]
async fn a_finished_stream_left_unread_over_http2_keeps_its_place_no_longer_than_that() {
    let (mut worker, gateway) = impatient().await;
    // No window: the bytes stay in the body. A small one: all are queued, and few have left.
    for window in [0, 16] {
        let mut client = windowed(&gateway, window).await;
        let body = chat(json!({"stream": true}));
        let mut unread = Vec::new();
        for _ in 0..2 {
            let serve = async {
                let request = worker.next_request().await;
                request.finish(&tokens("a"), FinishReason::EndId).await;
            };
            unread.push(tokio::join!(send(&mut client, &body), serve).0);
        }
        let refused = gateway.post(PATH, &body).await;
        assert_eq!(refused.status, 429, "window {window}");
        active(&gateway, 0).await;
        for response in unread {
            let cut = response.into_body().collect().await;
            assert!(cut.is_err(), "window {window}: a clean end after a cut");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_whole_response_left_unread_over_http2_is_cut() {
    let (mut worker, gateway) = impatient().await;
    let mut client = windowed(&gateway, 0).await;
    let body = chat(json!({}));
    let serve = async {
        let request = worker.next_request().await;
        request.finish(&tokens("a"), FinishReason::EndId).await;
    };
    let (response, ()) = tokio::join!(send(&mut client, &body), serve);
    let cut = tokio::time::timeout(PATIENCE, response.into_body().collect()).await;
    assert!(cut.expect("cut in time").is_err());
}

#[tokio::test(start_paused = true)]
async fn a_stream_beside_an_unread_one_on_the_same_connection_goes_on() {
    let (mut worker, gateway) = impatient().await;
    let mut client = windowed(&gateway, 16).await;
    let body = chat(json!({"stream": true}));
    let serve = async {
        let request = worker.next_request().await;
        request.finish(&tokens("a"), FinishReason::EndId).await;
    };
    let (_unread, ()) = tokio::join!(send(&mut client, &body), serve);
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("b")).await;
        request
    };
    let (read, request) = tokio::join!(send(&mut client, &body), serve);
    let rest = tokio::spawn(read.into_body().collect());
    active(&gateway, 1).await;
    request.finish(&tokens("c"), FinishReason::EndId).await;
    let text = rest.await.unwrap().expect("not cut").to_bytes();
    assert!(text.ends_with(b"data: [DONE]\n\n"));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_slowly_over_http2_gets_its_whole_response() {
    let (mut worker, gateway) = impatient().await;
    let mut client = windowed(&gateway, 4096).await;
    let body = chat(json!({}));
    let serve = async {
        let text = tokens(&"x".repeat(60_000));
        let request = worker.next_request().await;
        request.finish(&text, FinishReason::EndId).await;
    };
    let (response, ()) = tokio::join!(send(&mut client, &body), serve);
    let started = tokio::time::Instant::now();
    let mut body = response.into_body();
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        read.extend_from_slice(&frame.expect("not cut").into_data().unwrap());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let json: Value = serde_json::from_slice(&read).unwrap();
    let content = json["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(content.len(), 60_000);
    // Longer than one piece may wait.
    assert!(started.elapsed() > Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn what_ended_at_its_deadline_is_stopped_though_its_error_stays_unread() {
    let mut worker = ScriptedWorker::start(byte_model()).await;
    let gateway = Gateway::start(&[worker.address], &[]).await.ready().await;
    let body = chat(json!({"stream": true}));
    let mut client = Client::connect(gateway.address).await;
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("a")).await;
        request
    };
    let (mut stream, request) = tokio::join!(client.open(PATH, &body), serve);
    let first = [stream.next().await.unwrap(), stream.next().await.unwrap()];
    request.finish(&[], FinishReason::EndId).await;
    // Room for as many events, and the beginning of the error after them.
    let length: usize = first
        .iter()
        .map(|event| "data: \n\n".len() + event.len())
        .sum();
    let mut sender = windowed(&gateway, length as u32 + 10).await;
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("a")).await;
        let begun = Instant::now();
        assert!(worker.next_request().await.stop);
        begun.elapsed()
    };
    let (response, took) = tokio::join!(send_limited(&mut sender, &body, 300), serve);
    assert_eq!(response.status(), 200);
    assert!(took < Duration::from_secs(1), "{took:?}");
}
