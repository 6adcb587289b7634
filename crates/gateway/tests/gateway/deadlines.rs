//! Deadlines: from a client's header or the operator's option to the worker, and what becomes of a request
//! whose time runs out.

use std::time::Duration;

use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::step::FinishReason;
use inflight_testkit::memory::connect;
use inflight_testkit::model::tokens;
use inflight_testkit::worker::{Received, ScriptedWorker};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use crate::support::{Answer, Client, Gateway, byte_model, chat, json_request, pair};

const PATH: &str = "/v1/chat/completions";
const HEADER: &str = "x-request-timeout-ms";

/// The microseconds that a worker is given.
fn timeout(request: &Received) -> Option<i64> {
    let parameter = request.message.parameters.get("timeout")?;
    match parameter.parameter_choice {
        Some(ParameterChoice::Int64Param(microseconds)) => Some(microseconds),
        _ => panic!("{parameter:?}"),
    }
}

async fn send(gateway: &Gateway, header: Option<&str>, stream: bool) -> Answer {
    let mut request = json_request(PATH, &chat(json!({"stream": stream})));
    if let Some(value) = header {
        request.headers_mut().insert(HEADER, value.parse().unwrap());
    }
    Client::connect(gateway.address).await.whole(request).await
}

#[tokio::test(start_paused = true)]
async fn the_worker_is_given_what_is_left_of_the_earlier_limit() {
    let mut worker = ScriptedWorker::start(byte_model()).await;
    let workers = [worker.address];
    let limited = Gateway::start(&workers, &["--request-timeout-s=100"]);
    let limited = limited.await.ready().await;
    let free = Gateway::start(&[worker.address], &[]).await.ready().await;
    for (gateway, header, milliseconds) in [
        (&free, None, None),
        (&free, Some("30000"), Some(30_000)),
        (&limited, None, Some(100_000)),
        (&limited, Some("30000"), Some(30_000)),
        (&limited, Some("300000"), Some(100_000)),
    ] {
        let serve = async {
            let request = worker.next_request().await;
            request.finish(&tokens("a"), FinishReason::EndId).await;
            timeout(&request)
        };
        let (answer, given) = tokio::join!(send(gateway, header, false), serve);
        assert_eq!(answer.status, 200);
        // The clock is still: the gateway has used nothing of it.
        assert_eq!(given, milliseconds.map(|limit| limit * 1000));
    }
}

#[tokio::test(start_paused = true)]
async fn a_bad_header_is_refused_by_name() {
    let (_worker, gateway) = pair().await;
    for value in ["0", "-5", "1.5", "soon"] {
        let answer = send(&gateway, Some(value), false).await;
        assert_eq!(answer.status, 400, "{value}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bad_header_is_refused_behind_the_body_and_costs_no_connection() {
    let (_worker, gateway) = pair().await;
    for path in [PATH, "/v2/models/m/infer"] {
        let mut socket = connect(gateway.address).unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n{HEADER}: soon\r\n\
             content-length: 2\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        let early = socket.read_exact(&mut answer);
        let early = tokio::time::timeout(Duration::from_millis(100), early).await;
        assert!(early.is_err(), "{path}: {answer:?}");
        socket.write_all(b"{}").await.unwrap();
        let next = "GET /health/live HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n";
        socket.write_all(next.as_bytes()).await.unwrap();
        let mut answers = String::new();
        socket.read_to_string(&mut answers).await.unwrap();
        assert!(answers.starts_with("HTTP/1.1 400 "), "{answers}");
        assert!(answers.contains("HTTP/1.1 200 "), "{answers}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_does_not_answer_in_time_is_stopped_and_the_client_gets_504() {
    let (mut worker, gateway) = pair().await;
    for stream in [false, true] {
        let serve = async {
            let request = worker.next_request().await;
            let stop = worker.next_request().await;
            assert!(stop.stop);
            assert_eq!(stop.handle, request.handle);
        };
        let (answer, ()) = tokio::join!(send(&gateway, Some("50"), stream), serve);
        assert_eq!(answer.status, 504);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_cut_after_the_first_token_is_an_error_event() {
    let (mut worker, gateway) = pair().await;
    for (reason, code) in [
        (FinishReason::TimedOut, "timeout"),
        (FinishReason::Cancelled, "service_unavailable"),
    ] {
        let mut client = Client::connect(gateway.address).await;
        let body = chat(json!({"stream": true}));
        let serve = async {
            let request = worker.next_request().await;
            request.tokens(&tokens("a")).await;
            request
        };
        let (mut stream, request) = tokio::join!(client.open(PATH, &body), serve);
        assert_eq!(stream.text().await, "");
        assert_eq!(stream.text().await, "a");
        request.finish(&[], reason).await;
        let rest = stream.rest().await;
        assert_eq!(rest.len(), 2, "{rest:?}");
        let error: Value = serde_json::from_str(&rest[0]).unwrap();
        assert_eq!(error["error"]["code"], code);
        assert_eq!(rest[1], "[DONE]");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_time_runs_out_ends_with_an_error_event() {
    let (mut worker, gateway) = pair().await;
    let mut request = json_request(PATH, &chat(json!({"stream": true})));
    request.headers_mut().insert(HEADER, "300".parse().unwrap());
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("a")).await;
        assert!(worker.next_request().await.stop);
    };
    let mut client = Client::connect(gateway.address).await;
    let (answer, ()) = tokio::join!(client.whole(request), serve);
    assert_eq!(answer.status, 200);
    let events = answer.events();
    let [.., error, done] = events.as_slice() else {
        panic!("{events:?}");
    };
    let error: Value = serde_json::from_str(error).unwrap();
    assert_eq!(error["error"]["code"], "timeout");
    assert_eq!(done, "[DONE]");
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_worker_when_its_time_runs_out_is_timed_out() {
    for stream in [true, false] {
        let mut model = byte_model();
        model.description.capabilities.push("resume".to_owned());
        let mut worker = ScriptedWorker::start(model).await;
        let gateway = Gateway::start(&[worker.address], &[]).await.ready().await;
        let serve = async {
            let request = worker.next_request().await;
            request.tokens(&tokens("a")).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            worker.kill();
        };
        let (answer, ()) = tokio::join!(send(&gateway, Some("400"), stream), serve);
        if stream {
            let events = answer.events();
            let error: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
            assert_eq!(error["error"]["code"], "timeout");
        } else {
            assert_eq!(answer.status, 504);
        }
        let page = gateway.get("/metrics").await.body;
        let page = std::str::from_utf8(&page).unwrap();
        assert!(page.contains("inflight_gateway_resumes_failed_total 1\n"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_kserve_call_ends_at_its_timeout_though_its_worker_is_silent() {
    let worker = ScriptedWorker::start(byte_model()).await;
    for (timeout, extra, expected) in [
        // A moment later than a worker must have ended it.
        (500_000, &[][..], 750),
        (9_000_000, &["--request-timeout-s", "2"], 2000),
    ] {
        let gateway = Gateway::start(&[worker.address], extra).await.ready().await;
        let body = json!({
            "inputs": [{"name": "input_ids", "datatype": "INT32", "shape": [1, 1], "data": [7]}],
            "parameters": {"timeout": timeout},
        });
        let begun = Instant::now();
        let path = "/v2/models/tensorrt_llm/infer";
        let answer = gateway.post(path, &body).await;
        assert_eq!(answer.status, 504, "{timeout}");
        let took = begun.elapsed().as_millis();
        assert!((expected..expected + 20).contains(&took), "{took}");
    }
}
