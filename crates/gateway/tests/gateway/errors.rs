//! Every failure in the envelope, with its status: before the first event, and after it.

use http::Request;
use http_body_util::Full;
use inflight_kserve::step::FinishReason;
use inflight_testkit::model::tokens;
use inflight_testkit::worker::ScriptedWorker;
use serde_json::{Value, json};

use crate::support::{Client, Gateway, byte_model, chat, json_request, pair};

const PATH: &str = "/v1/chat/completions";

#[tokio::test(start_paused = true)]
async fn what_a_client_got_wrong_is_told_with_param_and_code() {
    let (_worker, gateway) = pair().await;
    let long = "a".repeat(100);
    let completion = |fields: Value| {
        let mut body = json!({"model": "m", "prompt": "a"});
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        ("/v1/completions", body)
    };
    let cases: Vec<((&str, Value), u16, Value, Value)> = vec![
        (
            (PATH, chat(json!({"model": "other"}))),
            404,
            json!("model"),
            json!("model_not_found"),
        ),
        (
            (PATH, chat(json!({"temperature": "hot"}))),
            400,
            json!("temperature"),
            json!("invalid_type"),
        ),
        (
            (PATH, chat(json!({"messages": []}))),
            400,
            json!("messages"),
            json!("empty_array"),
        ),
        (
            (
                PATH,
                chat(json!({"messages": [{"role": "user", "content": long}]})),
            ),
            400,
            json!("messages"),
            json!("context_length_exceeded"),
        ),
        (
            (PATH, chat(json!({"max_tokens": 47}))),
            400,
            json!("messages"),
            json!("context_length_exceeded"),
        ),
        (
            completion(json!({"max_tokens": 1_000_000})),
            400,
            json!("prompt"),
            json!("context_length_exceeded"),
        ),
        (
            completion(json!({"prompt": ""})),
            400,
            json!("prompt"),
            json!("invalid_value"),
        ),
        (
            completion(json!({"prompt": [97, 300]})),
            400,
            json!("prompt"),
            json!("invalid_value"),
        ),
        (
            completion(json!({"logit_bias": {"300": 1}})),
            400,
            json!("logit_bias"),
            json!("invalid_value"),
        ),
        (
            completion(json!({"stop_token_ids": [259]})),
            400,
            json!("stop_token_ids"),
            json!("invalid_value"),
        ),
    ];
    for ((path, body), status, param, code) in cases {
        let answer = gateway.post(path, &body).await;
        assert_eq!(answer.status, status, "{body}");
        assert_eq!(answer.headers["content-type"], "application/json");
        assert!(answer.headers.contains_key("x-request-id"));
        let error = &answer.json()["error"];
        assert_eq!((&error["param"], &error["code"]), (&param, &code), "{body}");
        assert_eq!(error["type"], "invalid_request_error");
    }
}

#[tokio::test(start_paused = true)]
async fn context_length_exceeded_tells_the_numbers() {
    let (_worker, gateway) = pair().await;
    let answer = gateway.post(PATH, &chat(json!({"max_tokens": 60}))).await;
    let message = answer.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    for number in ["64", "78", "18", "60"] {
        assert!(message.contains(number), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_cannot_fit_is_refused_without_tokenizing_it() {
    let (_worker, gateway) = pair().await;
    let body = json!({"model": "m", "prompt": "word ".repeat(2_000_000)});
    let answer = gateway.post("/v1/completions", &body).await;
    assert_eq!(answer.status, 400);
    let error = &answer.json()["error"];
    assert_eq!(
        (&error["code"], &error["param"]),
        (&json!("context_length_exceeded"), &json!("prompt"))
    );
    // The exact number of tokens is not known.
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("or more"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn bodies_that_are_no_request_are_400_and_the_connection_goes_on() {
    let (worker, gateway) = pair().await;
    let _worker = worker.answer_all(tokens("ok"), FinishReason::EndId);
    let mut client = Client::connect(gateway.address).await;
    for body in [
        &b"{"[..],
        b"",
        b"[]",
        b"\"x\"",
        b"\xff\xfe",
        b"{\"model\":\"m\",\"messages\":7}",
    ] {
        let request = Request::post(PATH)
            .header("host", "gateway")
            .header("content-type", "application/json")
            .body(Full::from(bytes::Bytes::copy_from_slice(body)))
            .unwrap();
        let response = client.send(request).await;
        assert_eq!(response.status(), 400, "{body:?}");
        drop(
            http_body_util::BodyExt::collect(response.into_body())
                .await
                .unwrap(),
        );
    }
    assert_eq!(client.post(PATH, &chat(json!({}))).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn what_the_executor_cannot_do_is_refused_by_field() {
    let mut model = byte_model();
    model.description.capabilities.clear();
    let worker = ScriptedWorker::start(model).await;
    let gateway = Gateway::start(&[worker.address], &[]).await.ready().await;
    for (field, value) in [
        ("n", json!(2)),
        ("min_p", json!(0.1)),
        ("repetition_penalty", json!(1.1)),
        ("presence_penalty", json!(0.5)),
        ("frequency_penalty", json!(0.5)),
        ("min_tokens", json!(1)),
        ("logit_bias", json!({"97": 1})),
        ("logprobs", json!(true)),
    ] {
        let answer = gateway.post(PATH, &chat(json!({field: value}))).await;
        assert_eq!(answer.status, 400, "{field}");
        assert_eq!(answer.json()["error"]["param"], field);
    }
}

#[tokio::test(start_paused = true)]
async fn routes_and_methods_that_are_not_there_get_the_envelope() {
    let (_worker, gateway) = pair().await;
    for (method, path, status, code) in [
        ("GET", "/v1/nothing", 404, "unknown_url"),
        ("GET", "/", 404, "unknown_url"),
        ("GET", PATH, 405, "method_not_supported"),
        ("DELETE", "/v1/models", 405, "method_not_supported"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
    ] {
        let mut client = Client::connect(gateway.address).await;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "gateway")
            .body(Full::default())
            .unwrap();
        let response = client.send(request).await;
        assert_eq!(response.status(), status, "{method} {path}");
        let body = http_body_util::BodyExt::collect(response.into_body())
            .await
            .unwrap()
            .to_bytes();
        let value: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(value["error"]["code"], code);
    }
}

#[tokio::test(start_paused = true)]
async fn a_model_path_that_no_name_can_have_says_so() {
    let (_worker, gateway) = pair().await;
    let answer = gateway.get("/v1/models/%ff").await;
    assert_eq!(answer.status, 400);
    let error = &answer.json()["error"];
    assert_eq!(error["param"], "model");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("percent-encoded UTF-8")
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_over_the_limit_is_413_even_while_it_is_being_sent() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let gateway = Gateway::start(&[worker.address], &["--max-body-bytes", "100000"]).await;
    let gateway = gateway.ready().await;
    let body = chat(json!({"user": "x".repeat(150_000)}));
    let answer = gateway.post(PATH, &body).await;
    assert_eq!(answer.status, 413);
    assert_eq!(answer.json()["error"]["code"], "request_too_large");
}

#[tokio::test(start_paused = true)]
async fn an_error_before_the_first_token_has_its_own_status() {
    let (mut worker, gateway) = pair().await;
    for (code, status, retry_after) in [
        (3, 400, false),
        (12, 400, false),
        (8, 503, true),
        (14, 503, true),
        (13, 500, false),
    ] {
        for stream in [false, true] {
            let body = chat(json!({"stream": stream}));
            let serve = async { worker.next_request().await.fail(code, "secret cause").await };
            let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
            assert_eq!(answer.status, status);
            assert_eq!(answer.headers.contains_key("retry-after"), retry_after);
            assert_eq!(answer.headers["content-type"], "application/json");
            let message = answer.json()["error"]["message"]
                .as_str()
                .unwrap()
                .to_owned();
            assert_eq!(message.contains("secret cause"), status == 400, "{message}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_after_the_first_token_is_an_event_and_done() {
    let (mut worker, gateway) = pair().await;
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
    request.fail(13, "secret cause").await;
    let rest = stream.rest().await;
    assert_eq!(rest.len(), 2, "{rest:?}");
    let error: Value = serde_json::from_str(&rest[0]).unwrap();
    assert_eq!(error["error"]["code"], "server_error");
    assert!(!rest[0].contains("secret"));
    assert_eq!(rest[1], "[DONE]");
    // The connection is whole: the stream ended properly.
    let serve = async {
        worker
            .next_request()
            .await
            .finish(&tokens("b"), FinishReason::EndId)
            .await
    };
    let body = chat(json!({}));
    let (answer, ()) = tokio::join!(client.post(PATH, &body), serve);
    assert_eq!(answer.status, 200);
}

#[tokio::test(start_paused = true)]
async fn without_the_key_there_is_nothing_under_v1() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let gateway = Gateway::start(&[worker.address], &["--api-key", "right"])
        .await
        .ready()
        .await;
    for (key, status) in [
        (None, 401),
        (Some("Bearer wrong"), 401),
        (Some("Bearer rightx"), 401),
        (Some("Basic right"), 401),
        (Some("right"), 401),
        (Some("Bearer right"), 200),
        (Some("bearer right"), 200),
    ] {
        let mut request = Request::get("/v1/models").header("host", "gateway");
        if let Some(key) = key {
            request = request.header("authorization", key);
        }
        let mut client = Client::connect(gateway.address).await;
        let response = client.send(request.body(Full::default()).unwrap()).await;
        assert_eq!(response.status(), status, "{key:?}");
        assert!(response.headers().contains_key("x-request-id"));
        let body = http_body_util::BodyExt::collect(response.into_body())
            .await
            .unwrap()
            .to_bytes();
        assert_eq!(
            status == 401,
            String::from_utf8_lossy(&body).contains("invalid_api_key")
        );
    }
    assert_eq!(gateway.get("/metrics").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn requests_over_the_limit_get_429_with_retry_after() {
    let mut worker = ScriptedWorker::start(byte_model()).await;
    let gateway = Gateway::start(&[worker.address], &["--max-concurrent-requests", "1"]).await;
    let gateway = gateway.ready().await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("a")).await;
        request
    };
    let (mut stream, request) = tokio::join!(client.open(PATH, &body), serve);
    let answer = gateway.post(PATH, &chat(json!({}))).await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(answer.json()["error"]["code"], "rate_limit_exceeded");
    request.finish(&[], FinishReason::EndId).await;
    stream.rest().await;
    let serve = async {
        worker
            .next_request()
            .await
            .finish(&tokens("b"), FinishReason::EndId)
            .await
    };
    let request = json_request(PATH, &chat(json!({})));
    let (response, ()) = tokio::join!(client.send(request), serve);
    assert_eq!(response.status(), 200, "the place is free again");
}

#[tokio::test(start_paused = true)]
async fn probes_of_other_servers_find_an_answer() {
    let lost = std::net::SocketAddr::from(([127, 0, 0, 1], 9));
    let unready = Gateway::start(&[lost], &[]).await;
    let (_worker, ready) = pair().await;
    for (gateway, status, kserve) in [(&ready, 200, 200), (&unready, 503, 400)] {
        for path in ["/health", "/ping"] {
            assert_eq!(gateway.get(path).await.status, status, "{path}");
        }
        assert_eq!(gateway.get("/v2/health/ready").await.status, kserve);
        assert_eq!(gateway.get("/v2/health/live").await.status, 200);
        let version = gateway.get("/version").await.json();
        assert_eq!(version, json!({"version": env!("CARGO_PKG_VERSION")}));
    }
}
