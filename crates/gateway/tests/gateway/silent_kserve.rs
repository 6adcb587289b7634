//! KServe's calls at a server that says nothing more: how soon they leave it. HTTP/2's own probes take 20 s to notice a
//! silent connection, and 10 s one whose peer has been replaced.

use std::time::Duration;

use inflight_kserve::inference::ModelConfig;
use inflight_testkit::proxy::HoldingProxy;
use inflight_testkit::triton::ScriptedTriton;
use inflight_testkit::triton_models::{remove_input, text_model, text_response};
use inflight_testkit::worker::ScriptedWorker;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{Client, Gateway, byte_model};

/// A server is given up after six times the silence that makes it unready, 1.5 s.
const GIVEN_UP: Duration = Duration::from_secs(9);
/// Connections of a gateway to one server for KServe's calls.
const CONNECTIONS: usize = 4;

/// A server, reached through a proxy.
async fn server(model: &ModelConfig) -> (ScriptedTriton, HoldingProxy) {
    let triton = ScriptedTriton::start([model.clone()]).await;
    let proxy = HoldingProxy::start(triton.address);
    (triton, proxy)
}

/// That something took as long as it takes to give a server up.
fn given_up_after(took: Duration) {
    let longest = GIVEN_UP + Duration::from_secs(1);
    assert!(GIVEN_UP <= took && took < longest, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_repeated_leaves_its_silent_server_once_that_is_given_up() {
    let model = text_model("ensemble");
    let (mut one, first) = server(&model).await;
    let (mut two, second) = server(&model).await;
    let gateway = Gateway::start(&[first.address, second.address], &[]).await;
    let gateway = gateway.heard().await;
    let mut client = Client::connect(gateway.address).await;
    let body = json!({"text_input": "Hi", "max_tokens": 20});
    let path = "/v2/models/ensemble/generate_stream";
    let serve = async {
        let (asked, proxy, other) = tokio::select! {
            asked = one.next_request() => (asked, &first, &mut two),
            asked = two.next_request() => (asked, &second, &mut one),
        };
        asked.respond(text_response("Hel")).await;
        proxy.hold();
        let held = Instant::now();
        let again = other.next_request().await;
        given_up_after(held.elapsed());
        again.respond(text_response("Hello")).await;
        again.finish_empty().await;
        asked
    };
    let asking = async { client.open(path, &body).await.rest().await };
    let (events, _asked) = tokio::join!(asking, serve);
    let texts = events.iter().filter_map(|event| {
        let event: Value = serde_json::from_str(event).expect("an event is JSON");
        event["text_output"].as_str().map(str::to_owned)
    });
    assert_eq!(texts.collect::<String>(), "Hello");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_no_stream_ends_once_its_only_server_is_given_up() {
    let (mut triton, proxy) = server(&text_model("ensemble")).await;
    let gateway = Gateway::start(&[proxy.address], &[]).await.heard().await;
    let input = |name, datatype, value: Value| json!({"name": name, "datatype": datatype, "shape": [1, 1], "data": [value]});
    let body = json!({"inputs": [
        input("text_input", "BYTES", json!("Hi")),
        input("max_tokens", "INT32", json!(20)),
    ]});
    let serve = async {
        let asked = triton.next_request().await;
        proxy.hold();
        (asked, Instant::now())
    };
    let asking = gateway.post("/v2/models/ensemble/infer", &body);
    let (answer, (_asked, held)) = tokio::join!(asking, serve);
    given_up_after(held.elapsed());
    assert_eq!(answer.status, 503, "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_without_a_model_for_openais_clients_is_given_up_as_well() {
    let mut model = text_model("classifier");
    remove_input(&mut model, "text_input");
    let (mut triton, proxy) = server(&model).await;
    let gateway = Gateway::start(&[proxy.address], &[]).await.heard().await;
    assert!(gateway.refusal().await.contains("no supported model"));
    let input = json!({"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "data": [20]});
    let body = json!({"inputs": [input]});
    let asked_after = Duration::from_secs(2);
    for vanishes in [false, true] {
        let serve = async {
            let asked = triton.next_request().await;
            match vanishes {
                true => proxy.vanish(),
                false => proxy.hold(),
            }
            (asked, Instant::now())
        };
        let asking = gateway.post("/v2/models/classifier/infer", &body);
        let (answer, (_asked, held)) = tokio::join!(asking, serve);
        assert_eq!(answer.status, 503, "{answer:?}");
        // It is asked every 2 s which models it has, and has 10 s for the answer.
        let (took, least) = (held.elapsed(), Duration::from_secs(10));
        assert!(
            least <= took && took < least + asked_after + Duration::from_secs(1),
            "{took:?}"
        );
        // And it comes back.
        match vanishes {
            true => proxy.come_back(),
            false => proxy.release(),
        }
        while !gateway.refusal().await.contains("no supported model") {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_about_a_model_waits_for_no_machine_that_was_replaced() {
    let mut worker = ScriptedWorker::start(byte_model()).await;
    let proxy = HoldingProxy::start(worker.address);
    let gateway = Gateway::start(&[proxy.address], &[]).await.heard().await;
    let question = "/v2/models/tensorrt_llm/ready";
    // Then each of the connections is open.
    for _ in 0..CONNECTIONS {
        assert_eq!(gateway.get(question).await.status, 200);
    }
    proxy.vanish();
    let asked = Instant::now();
    let replace = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        worker.kill();
        let mut model = byte_model();
        model.description.created_unix_seconds += 1;
        let next = ScriptedWorker::start_at(model, worker.address).await;
        proxy.come_back();
        next
    };
    let (answer, _next) = tokio::join!(gateway.get(question), replace);
    assert_ne!(answer.status, 200);
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_clients_time_runs_while_its_silent_worker_is_asked_about_the_model() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let proxy = HoldingProxy::start(worker.address);
    let gateway = Gateway::start(&[proxy.address], &[]).await.heard().await;
    proxy.hold();
    for extra in ["", "_stream"] {
        let path = format!("/v2/models/tensorrt_llm/generate{extra}");
        let body = json!({"input_ids": [1, 2], "parameters": {"timeout": 300_000}});
        let asked = Instant::now();
        let answer = gateway.post(&path, &body).await;
        assert_eq!(answer.status, 504, "{answer:?}");
        let took = asked.elapsed();
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
}
