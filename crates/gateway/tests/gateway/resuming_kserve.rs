//! KServe's streams that have begun and continue at another Triton server, which repeats them.

use std::time::Duration;

use inflight_kserve::inference::ModelConfig;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_testkit::triton::{Asked, ScriptedTriton};
use inflight_testkit::triton_models::{set_parameter, text_model, text_response};
use serde_json::{Value, json};
use tonic::Status;

use crate::support::{Client, Gateway};

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
