//! Clients that leave, metrics that move, kept-alive connections, the shutdown.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::step::FinishReason;
use inflight_testkit::memory::connect;
use inflight_testkit::model::tokens;
use inflight_testkit::worker::ScriptedWorker;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use crate::support::{Client, Gateway, PATIENCE, byte_model, chat, pair};

const PATH: &str = "/v1/chat/completions";
const TRACE_PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_mid_stream_stops_its_work() {
    let (mut worker, gateway) = pair().await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("a")).await;
        request
    };
    let (stream, request) = tokio::join!(client.open(PATH, &body), serve);
    client.leave();
    drop(stream);
    let stop = worker.next_request().await;
    assert_eq!((stop.stop, stop.handle), (true, request.handle));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_waiting_stops_its_work() {
    let (mut worker, gateway) = pair().await;
    for stream in [false, true] {
        for tokens_first in [false, true] {
            if stream && tokens_first {
                continue;
            }
            let address = gateway.address;
            let body = chat(json!({"stream": stream}));
            let waiting =
                tokio::spawn(async move { Client::connect(address).await.post(PATH, &body).await });
            let request = worker.next_request().await;
            if tokens_first {
                request.tokens(&tokens("a")).await;
            }
            waiting.abort();
            let stop = worker.next_request().await;
            assert_eq!(
                (stop.stop, stop.handle),
                (true, request.handle),
                "stream {stream}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_with_requests_behind_the_one_under_way_stops_its_work() {
    let (mut worker, gateway) = pair().await;
    for stream in [false, true] {
        let mut client = connect(gateway.address).unwrap();
        let body = chat(json!({"stream": stream})).to_string();
        let pipelined = format!(
            "POST {PATH} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}\
             GET /health/live HTTP/1.1\r\nhost: gateway\r\n\r\n",
            body.len()
        );
        client.write_all(pipelined.as_bytes()).await.unwrap();
        let request = worker.next_request().await;
        drop(client);
        let stop = tokio::time::timeout(PATIENCE, worker.next_request())
            .await
            .expect("a stop in time");
        assert_eq!((stop.stop, stop.handle), (true, request.handle));
    }
}

#[tokio::test(start_paused = true)]
async fn every_handle_of_several_prompts_is_stopped() {
    let (mut worker, gateway) = pair().await;
    let address = gateway.address;
    let waiting = tokio::spawn(async move {
        let body = json!({"model": "m", "prompt": ["a", "b", "c"]});
        Client::connect(address)
            .await
            .post("/v1/completions", &body)
            .await
    });
    let mut handles = Vec::new();
    let mut last = None;
    for _ in 0..3 {
        let request = worker.next_request().await;
        handles.push(request.handle);
        last = Some(request);
    }
    // One has ended: it needs no stop.
    last.unwrap()
        .finish(&tokens("x"), FinishReason::EndId)
        .await;
    handles.pop();
    // Its row must have arrived before the client leaves.
    loop {
        let text = String::from_utf8(gateway.get("/metrics").await.body.to_vec()).unwrap();
        if text.contains("inflight_gateway_generated_tokens_total{model=\"m\"} 1\n") {
            break;
        }
        tokio::task::yield_now().await;
    }
    waiting.abort();
    let mut stopped = Vec::new();
    for _ in 0..2 {
        let stop = worker.next_request().await;
        assert!(stop.stop);
        stopped.push(stop.handle);
    }
    assert_eq!(stopped, handles);
}

#[tokio::test(start_paused = true)]
async fn the_second_request_of_a_kept_alive_connection_is_quick() {
    let (worker, gateway) = pair().await;
    let _worker = worker.answer_all(tokens("hello"), FinishReason::EndId);
    let mut client = Client::connect(gateway.address).await;
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let started = Instant::now();
        let mut stream = client.open(PATH, &chat(json!({"stream": true}))).await;
        stream.next().await.unwrap();
        best = best.min(started.elapsed());
        stream.rest().await;
    }
    // Without TCP_NODELAY each waits for a delayed ACK, 40 ms.
    assert!(best < Duration::from_millis(10), "{best:?}");
}

#[tokio::test(start_paused = true)]
async fn metrics_move_while_a_stream_is_open() {
    let (mut worker, gateway) = pair().await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true, "metadata": {"a": "b"}}));
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("abc")).await;
        request
    };
    let (mut stream, request) = tokio::join!(client.open(PATH, &body), serve);
    let text = String::from_utf8(gateway.get("/metrics").await.body.to_vec()).unwrap();
    for line in [
        "inflight_gateway_active_requests 1",
        "inflight_gateway_prompt_tokens_total{model=\"m\"} 18",
        "inflight_gateway_generated_tokens_total{model=\"m\"} 3",
        "inflight_gateway_ignored_fields_total{field=\"metadata\"} 1",
        "inflight_gateway_time_to_first_token_seconds_count{model=\"m\"} 1",
        "inflight_gateway_tokenize_time_seconds_count 1",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    assert!(text.contains(&format!("worker_up{{worker=\"{}\"}} 1", worker.address)));
    assert!(text.contains(&format!("worker_active{{worker=\"{}\"}} 1", worker.address)));
    request.tokens(&tokens("de")).await;
    request.finish(&[], FinishReason::EndId).await;
    stream.rest().await;
    drop(client);
    let text = String::from_utf8(gateway.get("/metrics").await.body.to_vec()).unwrap();
    assert!(
        text.contains("generations_total{model=\"m\",end=\"stop\"} 1"),
        "{text}"
    );
    for line in [
        "inflight_gateway_inter_token_time_seconds_count{model=\"m\"} 3",
        "inflight_gateway_request_time_seconds_count{model=\"m\"} 1",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    assert!(text.contains("requests_total{route=\"/v1/chat/completions\",status=\"200\"} 1"));
}

#[tokio::test(start_paused = true)]
async fn http2_streams_share_a_connection_and_end_one_by_one() {
    let (mut worker, gateway) = pair().await;
    let socket = connect(gateway.address).unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket))
            .await
            .unwrap();
    let connection = tokio::spawn(connection);
    let request = || {
        Request::post(format!("http://gateway{PATH}"))
            .header("content-type", "application/json")
            .body(Full::<Bytes>::from(
                chat(json!({"stream": true})).to_string(),
            ))
            .unwrap()
    };
    let serve = async {
        let (one, two) = (worker.next_request().await, worker.next_request().await);
        one.tokens(&tokens("a")).await;
        two.tokens(&tokens("b")).await;
        (one, two)
    };
    let (first, second) = (
        sender.send_request(request()),
        sender.clone().send_request(request()),
    );
    let (first, second, (one, two)) = tokio::join!(first, second, serve);
    // One is left, the other goes on.
    let first = first.unwrap();
    assert_eq!(first.version(), http::Version::HTTP_2);
    drop(first);
    let stop = worker.next_request().await;
    assert!(stop.stop && (stop.handle == one.handle || stop.handle == two.handle));
    let (other, text) = if stop.handle == one.handle {
        (two, "b")
    } else {
        (one, "a")
    };
    other.finish(&tokens("!"), FinishReason::EndId).await;
    let body = second
        .unwrap()
        .into_body()
        .collect()
        .await
        .unwrap()
        .to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    assert!(body.contains(&format!("\"content\":\"{text}")) && body.ends_with("data: [DONE]\n\n"));
    connection.abort();
}

#[tokio::test(start_paused = true)]
async fn the_clients_request_id_and_trace_context_are_taken_over() {
    let (mut worker, gateway) = pair().await;
    let request = Request::post(PATH)
        .header("host", "gateway")
        .header("content-type", "application/json")
        .header("x-request-id", "my-id")
        .header("traceparent", TRACE_PARENT)
        .header("tracestate", "vendor=7")
        .body(Full::from(chat(json!({})).to_string()))
        .unwrap();
    let mut client = Client::connect(gateway.address).await;
    let serve = async {
        let request = worker.next_request().await;
        request.finish(&tokens("a"), FinishReason::EndId).await;
        request.message
    };
    let (response, message) = tokio::join!(client.send(request), serve);
    assert_eq!(response.headers()["x-request-id"], "my-id");
    assert_eq!(message.id, "my-id");
    let trace_parent = message.parameters["traceparent"].parameter_choice.clone();
    assert_eq!(
        trace_parent,
        Some(ParameterChoice::StringParam(TRACE_PARENT.to_owned()))
    );
    let trace_state = message.parameters["tracestate"].parameter_choice.clone();
    assert_eq!(
        trace_state,
        Some(ParameterChoice::StringParam("vendor=7".to_owned()))
    );
}

#[tokio::test(start_paused = true)]
async fn shutting_down_lets_open_streams_finish() {
    let (mut worker, mut gateway) = pair().await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("a")).await;
        request
    };
    let (mut stream, request) = tokio::join!(client.open(PATH, &body), serve);
    gateway.begin_shutdown();
    // New connections are refused once the listener is gone.
    while connect(gateway.address).is_ok() {
        tokio::task::yield_now().await;
    }
    request.tokens(&tokens("b")).await;
    request.finish(&[], FinishReason::EndId).await;
    let rest = stream.rest().await;
    assert_eq!(rest.last().unwrap(), "[DONE]");
    gateway.ended().await;
}

#[tokio::test(start_paused = true)]
async fn when_the_grace_is_over_open_streams_end_with_an_error() {
    let mut worker = ScriptedWorker::start(byte_model()).await;
    let gateway = Gateway::start(&[worker.address], &["--shutdown-grace-s", "0"])
        .await
        .ready()
        .await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("a")).await;
    };
    let (mut stream, ()) = tokio::join!(client.open(PATH, &body), serve);
    let mut gateway = gateway;
    gateway.begin_shutdown();
    let rest = stream.rest().await;
    let error = &rest[rest.len() - 2];
    for part in ["service_unavailable", "The gateway is shutting down."] {
        assert!(error.contains(part), "{rest:?}");
    }
    assert_eq!(rest.last().unwrap(), "[DONE]");
    gateway.ended().await;
}
