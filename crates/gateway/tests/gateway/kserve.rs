//! KServe over HTTP, before scripted servers: what of a call reaches them, and what becomes of what they say.

use std::time::Duration;

use http::Request;
use http_body_util::Full;
use inflight_kserve::inference::{DataType, ModelConfig};
use inflight_testkit::triton::{Asked, ScriptedTriton};
use inflight_testkit::triton_models::{
    Need, add_input, add_output, config, text_model, text_response,
};
use inflight_testkit::worker::ScriptedWorker;
use serde_json::{Value, json};
use tonic::Status;

use crate::support::{Answer, Client, Gateway, byte_model, json_request};

const GENERATE: &str = "/v2/models/ensemble/generate";
const STREAM: &str = "/v2/models/ensemble/generate_stream";

/// What the guides of Triton's TensorRT-LLM backend send.
fn question() -> Value {
    json!({"text_input": "What is machine learning?", "max_tokens": 20, "bad_words": "", "stop_words": ""})
}

async fn front(
    models: impl IntoIterator<Item = ModelConfig>,
    extra: &[&str],
) -> (ScriptedTriton, Gateway) {
    let triton = ScriptedTriton::start(models).await;
    let gateway = Gateway::start(&[triton.address], extra).await;
    (triton, gateway.heard().await)
}

/// A model that has nothing to do with text.
fn adder() -> ModelConfig {
    let mut model = config("adder", 0, false);
    add_input(&mut model, "a", DataType::TypeFp32, Need::Must);
    add_input(&mut model, "names", DataType::TypeString, Need::May);
    add_output(&mut model, "sum", DataType::TypeFp32);
    model
}

async fn exchange(
    triton: &mut ScriptedTriton,
    gateway: &Gateway,
    (path, body): (&str, &Value),
    serve: impl AsyncFnOnce(Asked),
) -> Answer {
    let serve = async { serve(triton.next_request().await).await };
    let (answer, ()) = tokio::join!(gateway.post(path, body), serve);
    answer
}

#[tokio::test(start_paused = true)]
async fn servers_and_models_describe_themselves() {
    let (_triton, gateway) = front([adder()], &[]).await;
    let server = gateway.get("/v2").await.json();
    assert_eq!(server["name"], "inflight");
    assert!(
        server["extensions"]
            .as_array()
            .unwrap()
            .contains(&json!("binary_tensor_data"))
    );
    for (path, status) in [
        ("/v2/health/live", 200),
        ("/v2/health/ready", 200),
        ("/v2/models/adder/ready", 200),
        ("/v2/models/adder/versions/1/ready", 200),
        ("/v2/models/adder/versions/2/ready", 400),
        ("/v2/models/other/ready", 400),
        ("/v2/models/other", 404),
        ("/v2/models/adder/versions/2", 404),
        ("/v2/models/other/config", 404),
        ("/v2/models/other/stats", 404),
        ("/v2/models/adder/generate", 405),
        ("/v2/repository/index", 405),
        ("/v2/", 200),
        ("/v2/nothing", 404),
    ] {
        assert_eq!(gateway.get(path).await.status, status, "{path}");
    }
    // As the Open Inference Protocol has them.
    for (path, body) in [
        ("/v2/health/live", json!({"live": true})),
        ("/v2/health/ready", json!({"ready": true})),
        (
            "/v2/models/adder/ready",
            json!({"name": "adder", "ready": true}),
        ),
    ] {
        assert_eq!(gateway.get(path).await.json(), body, "{path}");
    }
    assert_eq!(
        gateway.get("/v2/models/adder").await.json(),
        json!({"name": "adder", "versions": ["1"], "platform": "python",
               "inputs": [{"name": "a", "datatype": "FP32", "shape": [-1]},
                          {"name": "names", "datatype": "BYTES", "shape": [-1]}],
               "outputs": [{"name": "sum", "datatype": "FP32", "shape": [-1]}]})
    );
    let config = gateway.get("/v2/models/adder/config").await.json();
    assert_eq!(config["input"][0]["data_type"], "TYPE_FP32");
    let statistics = gateway.get("/v2/models/stats").await.json();
    assert_eq!(statistics["model_stats"][0]["inference_count"], 3);
    assert_eq!(
        gateway
            .post("/v2/repository/index", &json!({"ready": true}))
            .await
            .json(),
        json!([{"name": "adder", "version": "1", "state": "READY"}])
    );
    let error = gateway.get("/v2/models/other").await.json();
    assert_eq!(
        error,
        json!({"error": "Request for unknown model: 'other' is not found"})
    );
}

#[tokio::test(start_paused = true)]
async fn infer_takes_and_gives_json_and_packed_tensors() {
    let (mut triton, gateway) = front([adder()], &[]).await;
    let input = |more: Value| {
        let mut input = json!({"name": "a", "datatype": "FP32", "shape": [2]});
        input
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"id": "i1", "inputs": [input], "outputs": [{"name": "sum", "parameters": {"binary_data": true}}]})
    };
    let serve = async |asked: Asked| {
        assert_eq!(asked.values::<f32>("a"), [1.5, 2.0]);
        assert_ne!(asked.message.id, "i1", "two clients may have one id");
        let mut response =
            inflight_kserve::tensor::ResponseBuilder::new("adder", asked.message.id.clone(), 0);
        response.push("sum", &[1], &[3.5_f32]);
        asked.finish(response).await;
    };
    let body = input(json!({"data": [1.5, 2]}));
    let answer = exchange(
        &mut triton,
        &gateway,
        ("/v2/models/adder/infer", &body),
        serve,
    )
    .await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let length: usize = answer.headers["inference-header-content-length"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    let head: Value = serde_json::from_slice(&answer.body[..length]).unwrap();
    assert_eq!(head["id"], "i1");
    assert_eq!(head["outputs"][0]["parameters"]["binary_data_size"], 4);
    assert_eq!(answer.body[length..], 3.5_f32.to_le_bytes());

    let mut body = input(json!({"parameters": {"binary_data_size": 8}}));
    body.as_object_mut().unwrap().remove("outputs");
    let head = body.to_string();
    let packed = [1.5_f32, 2.0].map(f32::to_le_bytes).concat();
    let request = Request::post("/v2/models/adder/infer")
        .header("host", "gateway")
        .header("content-type", "application/octet-stream")
        .header("inference-header-content-length", head.len())
        .body(Full::from([head.into_bytes(), packed].concat()))
        .unwrap();
    let mut client = Client::connect(gateway.address).await;
    let serve = async { serve(triton.next_request().await).await };
    let (answer, ()) = tokio::join!(client.whole(request), serve);
    assert_eq!(
        answer.json(),
        json!({"id": "i1", "model_name": "adder", "model_version": "",
               "outputs": [{"name": "sum", "datatype": "FP32", "shape": [1], "data": [3.5]}]})
    );
    let answer = gateway
        .post("/v2/models/adder/infer", &json!({"inputs": [{}]}))
        .await;
    assert_eq!(answer.status, 400);
    let answer = exchange(
        &mut triton,
        &gateway,
        ("/v2/models/adder/infer", &input(json!({"data": [1, 2]}))),
        async |asked| asked.fail_call(Status::unimplemented("not so")).await,
    )
    .await;
    assert_eq!(
        (answer.status, answer.json()),
        (501, json!({"error": "not so"}))
    );
}

#[tokio::test(start_paused = true)]
async fn generate_answers_once() {
    let (mut triton, gateway) = front([text_model("ensemble")], &[]).await;
    let answer = exchange(
        &mut triton,
        &gateway,
        (GENERATE, &question()),
        async |asked| {
            assert_eq!(asked.texts("text_input"), ["What is machine learning?"]);
            assert_eq!(asked.values::<i32>("max_tokens"), [20]);
            assert_eq!(asked.texts("bad_words"), [""]);
            let shapes = asked.shapes();
            assert_eq!(
                (&shapes["text_input"][..], &shapes["stop_words"][..]),
                (&[1, 1][..], &[1, 1][..])
            );
            let mut response = text_response("Learning.");
            response.bool_parameter("sequence_end", false);
            asked.respond(response).await;
            asked.finish_empty().await;
        },
    )
    .await;
    assert_eq!(
        (answer.status, answer.body),
        (
            200,
            r#"{"model_name":"","model_version":"","sequence_end":false,"text_output":"Learning."}"#.into()
        )
    );
    let answer = exchange(
        &mut triton,
        &gateway,
        (GENERATE, &question()),
        async |asked| {
            asked.respond(text_response("a")).await;
            asked.finish(text_response("b")).await;
        },
    )
    .await;
    assert_eq!(answer.status, 400);
    assert!(
        answer.json()["error"]
            .as_str()
            .unwrap()
            .starts_with("generate expects model")
    );
    let refused = json!({"text_input": "a", "max_tokens": "many"});
    let answer = gateway.post(GENERATE, &refused).await;
    let error =
        json!({"error": "`max_tokens`: a string is not a value of INT32 at line 1 column 6"});
    assert_eq!((answer.status, answer.json()), (400, error));
}

#[tokio::test(start_paused = true)]
async fn a_stream_has_an_event_for_each_response_and_no_end_mark() {
    let (mut triton, gateway) = front([text_model("ensemble")], &[]).await;
    let answer = exchange(
        &mut triton,
        &gateway,
        (STREAM, &question()),
        async |asked| {
            for text in ["a", "é\"\n"] {
                asked.respond(text_response(text)).await;
            }
            asked.finish_empty().await;
        },
    )
    .await;
    assert_eq!(
        answer.headers["content-type"],
        "text/event-stream; charset=utf-8"
    );
    assert_eq!(
        String::from_utf8(answer.body.to_vec()).unwrap(),
        "data: {\"model_name\":\"\",\"model_version\":\"\",\"text_output\":\"a\"}\n\n\
         data: {\"model_name\":\"\",\"model_version\":\"\",\"text_output\":\"é\\\"\\n\"}\n\n"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_fails_or_is_cut_says_so() {
    let (mut triton, gateway) = front([text_model("ensemble")], &[]).await;
    let first = r#"{"model_name":"","model_version":"","text_output":"a"}"#;
    for (kind, status, error) in [
        ("in band", 200, "broken"),
        ("status", 200, "gone"),
        ("cut", 200, "the stream ended before its last response"),
    ] {
        let answer = exchange(
            &mut triton,
            &gateway,
            (STREAM, &question()),
            async |asked| {
                asked.respond(text_response("a")).await;
                match kind {
                    "in band" => asked.fail("broken").await,
                    "status" => asked.fail_call(Status::internal("gone")).await,
                    _ => drop(asked),
                }
            },
        )
        .await;
        assert_eq!(answer.status, status, "{kind}");
        let error = json!({ "error": error }).to_string();
        assert_eq!(answer.events(), [first.to_owned(), error], "{kind}");
    }
    // Before the first response, the status tells.
    for (text, status) in [("broken", 500), ("exceeds maximum input length", 400)] {
        let answer = exchange(
            &mut triton,
            &gateway,
            (STREAM, &question()),
            async |asked| {
                asked.fail(text).await;
            },
        )
        .await;
        assert_eq!(
            (answer.status, answer.json()),
            (status, json!({"error": text}))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_response_that_is_damaged_is_an_error_and_no_empty_answer() {
    let (mut triton, gateway) = front([text_model("ensemble")], &[]).await;
    for path in [GENERATE, STREAM] {
        let body = question();
        let answer = exchange(&mut triton, &gateway, (path, &body), async |asked| {
            let mut damaged = text_response("a").build();
            // A text of four bytes, of which one is there.
            damaged.raw_output_contents = vec![vec![4, 0, 0, 0, b'a'].into()];
            asked.finish_message(damaged).await;
        });
        let answer = answer.await;
        assert_eq!(answer.status, 500, "{path}");
        let error = answer.json()["error"].clone();
        assert!(error.as_str().unwrap().contains("text_output"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_request_goes_to_another_server() {
    let mut servers = Vec::new();
    for _ in 0..2 {
        servers.push(ScriptedTriton::start([text_model("ensemble")]).await);
    }
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    let gateway = Gateway::start(&addresses, &[]).await.heard().await;
    let [one, two] = &mut servers[..] else {
        unreachable!()
    };
    for path in [GENERATE, STREAM] {
        for failure in [
            Status::unavailable("shutting down"),
            Status::resource_exhausted("full"),
        ] {
            let body = question();
            let serve = async {
                // Whichever has it first fails it.
                let (asked, other) = tokio::select! {
                    asked = one.next_request() => (asked, &mut *two),
                    asked = two.next_request() => (asked, &mut *one),
                };
                asked.fail_call(failure).await;
                let again = other.next_request().await;
                assert_eq!(again.texts("text_input"), ["What is machine learning?"]);
                again.finish(text_response("from the other")).await;
            };
            let (answer, ()) = tokio::join!(gateway.post(path, &body), serve);
            assert_eq!(answer.status, 200);
            assert!(String::from_utf8_lossy(&answer.body).contains("from the other"));
        }
    }
    let page = gateway.get("/metrics").await.body;
    let page = String::from_utf8_lossy(&page);
    assert!(
        page.contains("inflight_gateway_retries_total{reason=\"full\"} 2"),
        "{page}"
    );
}

#[tokio::test(start_paused = true)]
async fn requests_go_to_the_least_loaded_server() {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(ScriptedTriton::start([text_model("ensemble")]).await);
    }
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    let gateway = Gateway::start(&addresses, &[]).await.heard().await;
    let mut clients = Vec::new();
    let mut open = Vec::new();
    for _ in 0..6 {
        let mut client = Client::connect(gateway.address).await;
        let body = question();
        let [a, b, c] = &mut servers[..] else {
            unreachable!()
        };
        let serve = async {
            let (server, asked) = tokio::select! {
                asked = a.next_request() => (0, asked),
                asked = b.next_request() => (1, asked),
                asked = c.next_request() => (2, asked),
            };
            asked.respond(text_response("a")).await;
            (server, asked)
        };
        let (stream, asked) = tokio::join!(client.open(STREAM, &body), serve);
        clients.push((client, stream));
        open.push(asked);
    }
    for server in 0..3 {
        let count = open.iter().filter(|(at, _)| *at == server).count();
        assert_eq!(count, 2, "server {server}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_cancels_its_request() {
    let (mut triton, gateway) = front([text_model("ensemble")], &[]).await;
    let mut client = Client::connect(gateway.address).await;
    let body = question();
    let serve = async {
        let asked = triton.next_request().await;
        asked.respond(text_response("a")).await;
        asked
    };
    let (_stream, asked) = tokio::join!(client.open(STREAM, &body), serve);
    client.leave();
    asked.cancelled().await;

    // One that has got nothing yet.
    let mut client = Client::connect(gateway.address).await;
    let request = json_request(GENERATE, &question());
    let asked = {
        let send = client.send(request);
        tokio::pin!(send);
        tokio::select! {
            _ = &mut send => panic!("nothing was answered"),
            asked = triton.next_request() => asked,
        }
    };
    client.leave();
    asked.cancelled().await;
}

#[tokio::test(start_paused = true)]
async fn limits_hold_as_for_openai_s_clients() {
    let extra = [
        "--max-concurrent-requests",
        "1",
        "--max-body-bytes",
        "300",
        "--first-token-timeout-s",
        "1",
    ];
    let (mut triton, gateway) = front([text_model("ensemble")], &extra).await;
    let long = json!({"text_input": "a".repeat(400), "max_tokens": 1});
    let answer = gateway.post(GENERATE, &long).await;
    assert_eq!(answer.status, 413);
    assert!(answer.json()["error"].is_string());
    let mut client = Client::connect(gateway.address).await;
    let body = question();
    let serve = async {
        let asked = triton.next_request().await;
        asked.respond(text_response("a")).await;
        asked
    };
    let (mut stream, asked) = tokio::join!(client.open(STREAM, &body), serve);
    let answer = gateway.post(GENERATE, &question()).await;
    assert_eq!(
        (answer.status, &answer.headers["retry-after"]),
        (429, &"1".parse().unwrap())
    );
    assert!(answer.json()["error"].is_string());
    asked.finish_empty().await;
    stream.rest().await;
    // The place is free again, and what never begins is given up.
    let serve = async { triton.next_request().await };
    let (answer, asked) = tokio::join!(gateway.post(STREAM, &body), serve);
    assert_eq!(answer.status, 504);
    asked.cancelled().await;
    let mut request = json_request(GENERATE, &question());
    request
        .headers_mut()
        .insert("x-request-timeout-ms", "50".parse().unwrap());
    let mut client = Client::connect(gateway.address).await;
    let (answer, asked) = tokio::join!(client.whole(request), triton.next_request());
    assert_eq!(
        (answer.status, answer.json()),
        (504, json!({"error": "the request timed out"}))
    );
    asked.cancelled().await;
}

#[tokio::test(start_paused = true)]
async fn keys_are_asked_for_but_not_for_health() {
    let (_triton, gateway) = front_with_key().await;
    for (path, key, status) in [
        ("/v2/health/live", None, 200),
        ("/v2/health/ready", None, 200),
        ("/v2", None, 401),
        ("/v2/models/adder", None, 401),
        ("/v2/models/adder", Some("wrong"), 401),
        ("/v2/models/adder", Some("k"), 200),
    ] {
        let mut request = Request::get(path).header("host", "gateway");
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        // A refused connection is closed.
        let mut client = Client::connect(gateway.address).await;
        let answer = client.whole(request.body(Full::default()).unwrap()).await;
        assert_eq!(answer.status, status, "{path} {key:?}");
        if status != 200 {
            assert!(answer.json()["error"].is_string());
        }
    }
}

async fn front_with_key() -> (ScriptedTriton, Gateway) {
    let triton = ScriptedTriton::start([adder()]).await;
    let gateway = Gateway::start(&[triton.address], &["--api-key", "k"]).await;
    let poll = async {
        while gateway.get("/v2/health/ready").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::support::PATIENCE, poll)
        .await
        .unwrap();
    (triton, gateway)
}

#[tokio::test(start_paused = true)]
async fn curl_s_own_content_type_will_do_unless_a_page_sends_it() {
    let (mut triton, gateway) = front([text_model("ensemble")], &[]).await;
    let request = |origin: Option<&str>| {
        let mut request = Request::post(GENERATE)
            .header("host", "localhost")
            .header("content-type", "application/x-www-form-urlencoded");
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        request.body(Full::from(question().to_string())).unwrap()
    };
    let mut client = Client::connect(gateway.address).await;
    let serve = async { triton.next_request().await.finish(text_response("a")).await };
    let (answer, ()) = tokio::join!(client.whole(request(None)), serve);
    assert_eq!(answer.status, 200);
    let mut client = Client::connect(gateway.address).await;
    let answer = client.whole(request(Some("http://localhost"))).await;
    assert_eq!(answer.status, 415);
    let mut client = Client::connect(gateway.address).await;
    let answer = client.whole(request(Some("http://evil.example"))).await;
    assert_eq!(answer.status, 403);
}

#[tokio::test(start_paused = true)]
async fn a_lost_server_s_models_are_unavailable_and_not_unknown() {
    let (mut triton, gateway) = front([adder()], &[]).await;
    triton.kill();
    gateway.wait_for("/v2/health/ready", 400).await;
    let answer = gateway.get("/v2/models/adder").await;
    assert_eq!(
        (answer.status, &answer.headers["retry-after"]),
        (503, &"1".parse().unwrap())
    );
    assert_eq!(gateway.get("/v2/models/other").await.status, 404);
    triton.restart().await;
    gateway.wait_for("/v2/models/adder", 200).await;
}

#[tokio::test(start_paused = true)]
async fn inflight_workers_of_several_models_are_told_apart() {
    let mut other = byte_model();
    other.description.served_model_name = "n".to_owned();
    let workers = [
        ScriptedWorker::start(byte_model()).await,
        ScriptedWorker::start(other).await,
    ];
    let gateway = Gateway::start(&workers.each_ref().map(|worker| worker.address), &[]).await;
    let gateway = gateway.heard().await;
    let answer = gateway.get("/v2/models/tensorrt_llm").await;
    assert_eq!(answer.status, 400);
    assert!(
        answer.json()["error"]
            .as_str()
            .unwrap()
            .contains("`m:tensorrt_llm`, `n:tensorrt_llm`")
    );
    // The fake answers no such call; it was asked.
    let answer = gateway.get("/v2/models/n%3Atensorrt_llm").await;
    assert_eq!(answer.status, 501);
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_burst_is_lost() {
    let (mut triton, gateway) = front([text_model("ensemble")], &[]).await;
    let mut client = Client::connect(gateway.address).await;
    for round in 0..20 {
        let body = question();
        let serve = async {
            let asked = triton.next_request().await;
            for number in 0..200 {
                asked.respond(text_response(&number.to_string())).await;
            }
            asked.finish(text_response("last")).await;
        };
        let (mut stream, ()) = tokio::join!(client.open(STREAM, &body), serve);
        let events = stream.rest().await;
        assert_eq!(events.len(), 201, "round {round}");
        assert!(events[200].contains("\"text_output\":\"last\""));
    }
}

#[tokio::test(start_paused = true)]
async fn shared_memory_is_not_passed_on() {
    let (_triton, gateway) = front([adder()], &[]).await;
    let region = json!({"shared_memory_region": "r", "shared_memory_byte_size": 4});
    let input = json!({"name": "a", "datatype": "FP32", "shape": [1], "data": [1.0]});
    let mut placed = input.clone();
    placed["parameters"] = region.clone();
    placed.as_object_mut().unwrap().remove("data");
    for body in [
        json!({"inputs": [placed]}),
        json!({"inputs": [input], "outputs": [{"name": "sum", "parameters": region}]}),
    ] {
        let refused = gateway.post("/v2/models/adder/infer", &body).await;
        let text = refused.json()["error"].to_string();
        assert!(
            matches!(refused.status, 400 | 501),
            "{} {text}",
            refused.status
        );
        assert!(text.contains("memory"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_operator_may_leave_the_api_out() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let options = ["--kserve=false"];
    let gateway = Gateway::start(&[worker.address], &options).await;
    let gateway = gateway.ready().await;
    assert_eq!(gateway.get("/v2/health/ready").await.status, 200);
    for path in [
        "/v2",
        "/v2/models/tensorrt_llm",
        "/v2/models/tensorrt_llm/ready",
    ] {
        let answer = gateway.get(path).await;
        let error = answer.json()["error"].to_string();
        assert_eq!(answer.status, 404, "{path}");
        assert!(error.contains("--kserve=false"), "{error}");
    }
    let body = json!({"text_input": "Hi", "max_tokens": 9});
    let answer = gateway.post("/v2/models/ensemble/generate", &body).await;
    assert_eq!(answer.status, 404);
}
