//! Several workers: which one is chosen, and what happens when one is lost or comes back.

use inflight_kserve::step::FinishReason;
use inflight_testkit::model::tokens;
use inflight_testkit::worker::ScriptedWorker;
use serde_json::{Value, json};

use crate::support::{Client, Gateway, byte_model, chat, pair};

const PATH: &str = "/v1/chat/completions";

#[tokio::test(start_paused = true)]
async fn before_any_worker_is_ready_the_answer_is_503_and_says_why() {
    let gateway = Gateway::start(&["127.0.0.1:9".parse().unwrap()], &[]).await;
    let answer = gateway.post(PATH, &chat(json!({}))).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.headers["retry-after"], "1");
    let health = gateway.get("/health/ready").await;
    assert_eq!(health.status, 503);
    assert_eq!(health.json()["status"], "not_ready");
    assert_eq!(health.json()["workers"][0]["ready"], false);
    assert_eq!(gateway.get("/health/live").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_server_without_step_batching_is_named_as_such() {
    let mut model = byte_model();
    model.extensions = vec!["classification".to_owned()];
    let worker = ScriptedWorker::start(model).await;
    let gateway = Gateway::start(&[worker.address], &[]).await;
    let reason = gateway.refusal().await;
    assert!(reason.contains("inflight_step_batching_v1"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn models_are_those_of_the_workers() {
    let (_worker, gateway) = pair().await;
    let card = json!({"id": "m", "object": "model", "created": 1_700_000_000,
                      "owned_by": "inflight", "max_model_len": 64, "root": "m"});
    let list = gateway.get("/v1/models").await.json();
    assert_eq!(list, json!({"object": "list", "data": [card]}));
    assert_eq!(gateway.get("/v1/models/m").await.json(), card);
    // The probe of SGLang's and TensorRT-LLM's servers.
    assert_eq!(gateway.get("/health_generate").await.status, 200);
    // openai_trtllm's, which says nothing of workers.
    assert_eq!(gateway.get("/health_check").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn the_worker_with_fewest_requests_is_chosen() {
    let mut workers = [
        ScriptedWorker::start(byte_model()).await,
        ScriptedWorker::start(byte_model()).await,
    ];
    let addresses = [workers[0].address, workers[1].address];
    let gateway = Gateway::start(&addresses, &[]).await.all_ready().await;
    // Two streams that stay open land on one worker each, whichever comes first.
    let body = chat(json!({"stream": true}));
    let (mut first, mut second) = (
        Client::connect(gateway.address).await,
        Client::connect(gateway.address).await,
    );
    let [one, two] = &mut workers;
    let serve = async {
        let (a, b) = tokio::join!(one.next_request(), two.next_request());
        a.tokens(&tokens("a")).await;
        b.tokens(&tokens("b")).await;
        (a, b)
    };
    let (mut stream, _other, (a, b)) =
        tokio::join!(first.open(PATH, &body), second.open(PATH, &body), serve);
    // Whichever worker is free again gets the next ones, every time.
    a.finish(&[], FinishReason::EndId).await;
    let idle = stream.next().await.and(stream.next().await).unwrap();
    if idle.contains("\"a\"") {
        stream.rest().await;
    }
    loop {
        let metrics = gateway.get("/metrics").await;
        let text = String::from_utf8(metrics.body.to_vec()).unwrap();
        let line = format!(
            "inflight_gateway_worker_active{{worker=\"{}\"}} 0",
            addresses[0]
        );
        if text.contains(&line) {
            break;
        }
        tokio::task::yield_now().await;
    }
    for _ in 0..3 {
        let serve = async {
            one.next_request()
                .await
                .finish(&tokens("c"), FinishReason::EndId)
                .await
        };
        let body = chat(json!({}));
        let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "c");
    }
    drop(b);
}

#[tokio::test(start_paused = true)]
async fn a_worker_killed_before_the_first_token_gives_503_and_comes_back() {
    let (mut worker, gateway) = pair().await;
    let body = chat(json!({"stream": true}));
    let serve = async {
        worker.next_request().await;
        worker.kill();
    };
    let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
    assert_eq!(answer.status, 503);
    assert_eq!(answer.headers["retry-after"], "1");
    gateway.wait_for_readiness(503).await;
    // The model is known still: not 404.
    assert_eq!(gateway.post(PATH, &body).await.status, 503);
    let worker = ScriptedWorker::start_at(byte_model(), worker.address).await;
    let gateway = gateway.ready().await;
    let _worker = worker.answer_all(tokens("back"), FinishReason::EndId);
    let answer = gateway.post(PATH, &chat(json!({}))).await;
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "back");
}

#[tokio::test(start_paused = true)]
async fn a_worker_killed_mid_stream_ends_the_stream_with_an_error_event() {
    let (mut worker, gateway) = pair().await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("a")).await;
        request
    };
    let (mut stream, _request) = tokio::join!(client.open(PATH, &body), serve);
    assert_eq!(stream.text().await, "");
    assert_eq!(stream.text().await, "a");
    worker.kill();
    let rest = stream.rest().await;
    assert_eq!(rest.len(), 2, "{rest:?}");
    let error: Value = serde_json::from_str(&rest[0]).unwrap();
    assert_eq!(error["error"]["code"], "service_unavailable");
    assert_eq!(rest[1], "[DONE]");
}
