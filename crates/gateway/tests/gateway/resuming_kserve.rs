//! KServe's streams that have begun and continue at another Triton server, which repeats them.

use std::time::Duration;

use inflight_kserve::client::{InferenceClient, TransportOptions, connect, inference_client};
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::inference::{ModelConfig, ModelInferRequest, ModelInferResponse};
use inflight_kserve::names;
use inflight_kserve::tensor::{RequestBuilder, ResponseBuilder, Tensors};
use inflight_testkit::memory::network;
use inflight_testkit::triton::{Asked, ScriptedTriton};
use inflight_testkit::triton_models::{set_parameter, text_model, text_response};
use inflight_testkit::worker::ScriptedWorker;
use serde_json::{Value, json};
use tonic::Status;

use crate::resuming::{WorkerFile, resuming_model};
use crate::support::{Client, Gateway, PATIENCE};

const STREAM: &str = "/v2/models/ensemble/generate_stream";

async fn front(extra: &[&str]) -> ([ScriptedTriton; 2], Gateway) {
    front_of(text_model("ensemble"), extra).await
}

async fn front_of(model: ModelConfig, extra: &[&str]) -> ([ScriptedTriton; 2], Gateway) {
    let servers = [
        ScriptedTriton::start([model.clone()]).await,
        ScriptedTriton::start([model]).await,
    ];
    let addresses = servers.each_ref().map(|server| server.address);
    let gateway = Gateway::start(&addresses, extra).await;
    (servers, gateway.heard().await)
}

async fn either(servers: &mut [ScriptedTriton; 2]) -> (usize, Asked) {
    let [one, two] = servers;
    tokio::select! {
        asked = one.next_request() => (0, asked),
        asked = two.next_request() => (1, asked),
    }
}

fn question() -> Value {
    json!({"text_input": "Hi", "max_tokens": 20, "id": "q"})
}

/// The texts of a stream's events, and its error.
fn heard(events: &[String]) -> (Vec<String>, Option<String>) {
    let events = events.iter().map(|event| {
        let event: Value = serde_json::from_str(event).expect("an event is JSON");
        assert!(event.get("id").is_none_or(|id| id == "q"), "{event}");
        event
    });
    let (failed, texts): (Vec<Value>, Vec<Value>) =
        events.partition(|event| event.get("error").is_some());
    let text = |event: Value| event["text_output"].as_str().map(str::to_owned);
    let error = failed
        .first()
        .and_then(|event| event["error"].as_str().map(str::to_owned));
    (texts.into_iter().filter_map(text).collect(), error)
}

async fn counts(gateway: &Gateway, line: &str) -> bool {
    let page = gateway.get("/metrics").await.body;
    String::from_utf8_lossy(&page).contains(&format!("inflight_gateway_{line}\n"))
}

/// How the first server is lost.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Killed,
    Failed,
    Cut,
}

#[tokio::test(start_paused = true)]
async fn another_server_repeats_what_was_said_and_the_rest_is_passed_on() {
    for loss in [Loss::Killed, Loss::Failed, Loss::Cut] {
        let (mut servers, gateway) = front(&[]).await;
        let mut client = Client::connect(gateway.address).await;
        let body = question();
        let serve = async {
            let (place, asked) = either(&mut servers).await;
            asked.respond(text_response("Hel")).await;
            (place, asked)
        };
        let (mut stream, (place, first)) = tokio::join!(client.open(STREAM, &body), serve);
        let mut events = vec![stream.next().await.unwrap()];
        let sent = first.message.clone();
        match loss {
            Loss::Killed => servers[place].kill(),
            Loss::Failed => first.fail_call(Status::unavailable("shutting down")).await,
            Loss::Cut => drop(first),
        }
        let serve = async {
            let again = servers[1 - place].next_request().await;
            assert_eq!(again.message.inputs, sent.inputs, "{loss:?}");
            assert_eq!(again.message.raw_input_contents, sent.raw_input_contents);
            for text in ["H", "ello w", "orld"] {
                again.respond(text_response(text)).await;
            }
            again.finish_empty().await;
        };
        let (rest, ()) = tokio::join!(stream.rest(), serve);
        events.extend(rest);
        let (texts, error) = heard(&events);
        assert_eq!(error, None, "{loss:?}");
        assert_eq!(texts, ["Hel", "lo w", "orld"], "{loss:?}");
        assert!(counts(&gateway, "resumes_total{reason=\"unavailable\"} 1").await);
    }
}

#[tokio::test(start_paused = true)]
async fn another_answer_ends_the_stream_with_an_error_that_says_so() {
    for (again, expected) in [("Help", "another answer"), ("Hel", "another answer")] {
        let (mut servers, gateway) = front(&[]).await;
        let mut client = Client::connect(gateway.address).await;
        let body = question();
        let serve = async {
            let (place, asked) = either(&mut servers).await;
            asked.respond(text_response("Hello")).await;
            (place, asked)
        };
        let (mut stream, (place, first)) = tokio::join!(client.open(STREAM, &body), serve);
        let mut events = vec![stream.next().await.unwrap()];
        first.fail_call(Status::unavailable("gone")).await;
        let serve = async {
            let asked = servers[1 - place].next_request().await;
            asked.finish(text_response(again)).await;
        };
        let (rest, ()) = tokio::join!(stream.rest(), serve);
        events.extend(rest);
        let (texts, error) = heard(&events);
        assert_eq!(texts, ["Hello"]);
        let error = error.expect("the stream ends with an error");
        assert!(error.contains(expected), "{error}");
        assert!(counts(&gateway, "resumes_failed_total 1").await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_may_not_continue_ends_with_its_servers_error() {
    let (mut servers, gateway) = front(&["--max-resumes", "0"]).await;
    let mut client = Client::connect(gateway.address).await;
    let body = question();
    let serve = async {
        let (_, asked) = either(&mut servers).await;
        asked.respond(text_response("Hel")).await;
        asked.fail_call(Status::unavailable("gone")).await;
    };
    let (mut stream, ()) = tokio::join!(client.open(STREAM, &body), serve);
    let (texts, error) = heard(&stream.rest().await);
    assert_eq!((texts, error), (vec!["Hel".into()], Some("gone".into())));
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_only_server_is_restarted_waits_for_it() {
    // Before its first response, and after it.
    for begins in [false, true] {
        let mut server = ScriptedTriton::start([text_model("ensemble")]).await;
        let gateway = Gateway::start(&[server.address], &[]).await.heard().await;
        let mut client = Client::connect(gateway.address).await;
        let body = question();
        let open = client.open(STREAM, &body);
        let serve = async {
            let asked = server.next_request().await;
            if begins {
                asked.respond(text_response("Hel")).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            server.kill();
            gateway.wait_for("/v2/health/ready", 400).await;
            server.restart().await;
            let again = server.next_request().await;
            again.respond(text_response("Hello")).await;
            again.finish_empty().await;
        };
        let (mut stream, ()) = tokio::join!(open, serve);
        let (texts, error) = heard(&stream.rest().await);
        assert_eq!((texts.concat(), error), ("Hello".to_owned(), None));
    }
}

/// The microseconds that a server is given.
fn timeout(asked: &Asked) -> i64 {
    let parameter = asked.message.parameters.get("timeout").cloned();
    match parameter.and_then(|parameter| parameter.parameter_choice) {
        Some(ParameterChoice::Int64Param(microseconds)) => microseconds,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_again_has_the_rest_of_its_clients_time() {
    const WHOLE: i64 = 20_000_000;
    // Lost before its first response, and after it.
    for has_begun in [false, true] {
        let (mut servers, gateway) = front(&[]).await;
        let mut client = Client::connect(gateway.address).await;
        let mut body = question();
        body["parameters"] = json!({"timeout": WHOLE});
        let serve = async {
            let (place, first) = either(&mut servers).await;
            assert_eq!(timeout(&first), WHOLE);
            if has_begun {
                first.respond(text_response("Hel")).await;
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
            first.fail_call(Status::unavailable("gone")).await;
            let again = servers[1 - place].next_request().await;
            let left = timeout(&again);
            again.finish(text_response("Hello")).await;
            left
        };
        let asking = async { client.open(STREAM, &body).await.rest().await };
        let (events, left) = tokio::join!(asking, serve);
        assert_eq!(heard(&events).0.concat(), "Hello");
        assert_eq!(left, WHOLE - 5_000_000);
    }
}

#[tokio::test(start_paused = true)]
async fn texts_so_far_are_continued_by_longer_ones() {
    let mut model = text_model("ensemble");
    set_parameter(&mut model, "accumulate_tokens", "true");
    let (mut servers, gateway) = front_of(model, &[]).await;
    // Then its configuration has been read.
    let gateway = gateway.ready().await;
    let mut client = Client::connect(gateway.address).await;
    let body = question();
    let serve = async {
        let (place, first) = either(&mut servers).await;
        for text in ["Hel", "Hello"] {
            first.respond(text_response(text)).await;
        }
        first.fail_call(Status::unavailable("gone")).await;
        let again = servers[1 - place].next_request().await;
        for text in ["He", "Hello", "Hello wor", "Hello world"] {
            again.respond(text_response(text)).await;
        }
        again.finish_empty().await;
    };
    let asking = async { client.open(STREAM, &body).await.rest().await };
    let (events, ()) = tokio::join!(asking, serve);
    let (texts, error) = heard(&events);
    assert_eq!(error, None);
    assert_eq!(texts, ["Hel", "Hello", "Hello wor", "Hello world"]);
}

/// A client of the gateway's port for gRPC.
async fn grpc(gateway: &Gateway) -> InferenceClient {
    let options = TransportOptions {
        network: Some(network()),
        ..TransportOptions::default()
    };
    let address = gateway.grpc.expect("it has the port").to_string();
    let channel = connect(&address, &options).await;
    inference_client(channel.unwrap(), &options)
}

/// The responses to one request over gRPC, none of which is an error.
async fn responses(
    client: &mut InferenceClient,
    request: ModelInferRequest,
) -> Vec<ModelInferResponse> {
    let answers = client.model_stream_infer(tokio_stream::once(request));
    let mut answers = answers.await.unwrap().into_inner();
    let mut responses = Vec::new();
    while let Some(answer) = answers.message().await.unwrap() {
        assert_eq!(answer.error_message, "");
        responses.extend(answer.infer_response);
    }
    responses
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_its_last_response_whatever_becomes_of_its_server() {
    let (mut servers, gateway) = front(&["--grpc-port", "0"]).await;
    let mut client = grpc(&gateway).await;
    let mut request = RequestBuilder::new("ensemble", "q", 64);
    request.push_bytes("text_input", &[1, 1], ["Hi"]);
    request.scalar("max_tokens", 4_i32);
    let serve = async {
        let (_, asked) = either(&mut servers).await;
        asked.respond(text_response("Hel")).await;
        asked.respond_last(text_response("lo")).await;
        asked.fail_call(Status::unavailable("gone")).await;
    };
    let reading = responses(&mut client, request.build());
    let read = tokio::time::timeout(PATIENCE, async { tokio::join!(reading, serve).0 });
    let texts = read
        .await
        .expect("the stream ends")
        .iter()
        .map(text)
        .collect::<String>();
    assert_eq!(texts, "Hello");
    assert!(counts(&gateway, "resumes_total{reason=\"unavailable\"} 0").await);
}

fn text(response: &ModelInferResponse) -> String {
    let outputs = Tensors::outputs(response).unwrap();
    outputs
        .require("text_output")
        .unwrap()
        .string()
        .unwrap()
        .to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_stopped_while_it_is_repeated_ends_well() {
    let (mut servers, gateway) = front(&[]).await;
    let mut client = Client::connect(gateway.address).await;
    let body = question();
    let serve = async {
        let (place, asked) = either(&mut servers).await;
        asked.respond(text_response("Hello")).await;
        (place, asked)
    };
    let (mut stream, (place, first)) = tokio::join!(client.open(STREAM, &body), serve);
    let mut events = vec![stream.next().await.unwrap()];
    first.fail_call(Status::unavailable("gone")).await;
    let mut stop = question();
    stop["parameters"] = json!({"stop": true});
    let serve = async {
        let again = servers[1 - place].next_request().await;
        again.respond(text_response("He")).await;
        let stopping = gateway.post("/v2/models/ensemble/generate", &stop);
        let stopped = async {
            let stop = servers[1 - place].next_request().await;
            assert_eq!(stop.message.id, again.message.id);
            stop.finish_empty().await;
        };
        tokio::join!(stopping, stopped);
        again.finish_empty().await;
    };
    let (rest, ()) = tokio::join!(stream.rest(), serve);
    events.extend(rest);
    let (texts, error) = heard(&events);
    assert_eq!((texts.concat(), error), ("Hello".to_owned(), None));
}

/// The tokens that a request of the core model says were generated.
fn generated(message: &ModelInferRequest) -> Vec<i32> {
    let inputs = Tensors::inputs(message).unwrap();
    let tokens = inputs.values(names::GENERATED_IDS).unwrap();
    tokens.unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_worker_was_taken_out_before_moves_with_its_first_response() {
    let mut workers = [
        ScriptedWorker::start(resuming_model()).await,
        ScriptedWorker::start(resuming_model()).await,
    ];
    let file = WorkerFile::new("before_kserve");
    file.write(&workers);
    let gateway = file.gateway(&["--grpc-port", "0"]).await;
    let mut client = grpc(&gateway).await;
    let mut request = RequestBuilder::new("tensorrt_llm", "", 64);
    request.push("input_ids", &[1, 2], &[1, 2]);
    request.push("request_output_len", &[1, 1], &[9]);
    request.push("streaming", &[1, 1], &[true]);
    let response = |asked: &Asked, token: i32| {
        let mut response = ResponseBuilder::new("tensorrt_llm", &*asked.message.id, 64);
        response.push("output_ids", &[1, 1, 1], &[token]);
        response.push("sequence_length", &[1, 1], &[1]);
        response
    };
    let serve = async {
        let [one, two] = &mut workers;
        let (place, first) = tokio::select! {
            asked = one.next_call() => (0, asked),
            asked = two.next_call() => (1, asked),
        };
        file.write([&workers[1 - place]]);
        // It has heard of that before its prompt is computed.
        tokio::time::sleep(Duration::from_secs(2)).await;
        first.respond(response(&first, 5)).await;
        let second = workers[1 - place].next_call().await;
        assert_eq!(generated(&second.message), [5]);
        let last = response(&second, 6);
        second.finish(last).await;
        first
    };
    let reading = responses(&mut client, request.build());
    let (read, _first) = tokio::join!(reading, serve);
    let tokens = read.iter().flat_map(|response| {
        let outputs = Tensors::outputs(response).unwrap();
        outputs.values::<i32>("output_ids").unwrap().unwrap()
    });
    assert_eq!(tokens.collect::<Vec<_>>(), [5, 6]);
}
