//! `/v1/models` for the clients of both APIs, which share its paths.

use http::Request;
use http_body_util::Full;
use inflight_kserve::step::FinishReason;
use inflight_testkit::model::tokens;
use inflight_testkit::worker::ScriptedWorker;
use serde_json::{Value, json};

use crate::support::{Answer, Client, Gateway, byte_model, pair, two_models};

/// Asks as Anthropic's clients do.
async fn ask(gateway: &Gateway, path: &str) -> Answer {
    let request = Request::get(path)
        .header("host", "gateway")
        .header("anthropic-version", "2023-06-01")
        .body(Full::default())
        .unwrap();
    Client::connect(gateway.address).await.whole(request).await
}

fn ids(page: &Value) -> Vec<&str> {
    let models = page["data"].as_array().unwrap();
    let ids = models.iter().map(|model| model["id"].as_str().unwrap());
    ids.collect()
}

#[tokio::test(start_paused = true)]
async fn anthropics_clients_get_pages_in_their_form() {
    let mut workers = Vec::new();
    for name in ["a", "org/b", "c"] {
        let mut model = byte_model();
        model.description.served_model_name = name.to_owned();
        workers.push(ScriptedWorker::start(model).await);
    }
    let addresses: Vec<_> = workers.iter().map(|worker| worker.address).collect();
    let gateway = Gateway::start(&addresses, &[]).await.all_ready().await;
    let answer = ask(&gateway, "/v1/models").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["request-id"], answer.headers["x-request-id"]);
    assert!(!answer.headers.contains_key("openai-version"));
    let page = answer.json();
    assert_eq!(ids(&page), ["a", "c", "org/b"]);
    assert_eq!(
        page["data"][0],
        json!({
            "type": "model", "id": "a", "display_name": "a", "created_at": "2023-11-14T22:13:20Z",
            "lifecycle": "active", "max_input_tokens": 64, "max_tokens": 64,
        })
    );
    assert_eq!(
        (&page["has_more"], &page["first_id"], &page["last_id"]),
        (&json!(false), &json!("a"), &json!("org/b"))
    );
    let page = ask(&gateway, "/v1/models?limit=1&after_id=a").await.json();
    assert_eq!((ids(&page), &page["has_more"]), (vec!["c"], &json!(true)));
    let page = ask(&gateway, "/v1/models?limit=1&before_id=org%2Fb").await;
    let page = page.json();
    assert_eq!((ids(&page), &page["has_more"]), (vec!["c"], &json!(true)));
    let model = ask(&gateway, "/v1/models/org%2Fb").await.json();
    assert_eq!(
        (&model["type"], &model["id"]),
        (&json!("model"), &json!("org/b"))
    );
    for (path, status, kind) in [
        ("/v1/models?limit=0", 400, "invalid_request_error"),
        ("/v1/models?after_id=x", 400, "invalid_request_error"),
        ("/v1/models/x", 404, "not_found_error"),
    ] {
        let answer = ask(&gateway, path).await;
        let body = answer.json();
        assert_eq!((answer.status, &body["type"]), (status, &json!("error")));
        assert_eq!(body["error"]["type"], kind, "{path}");
    }
    // The same paths in OpenAI's form for everybody else.
    let list = gateway.get("/v1/models?limit=0").await.json();
    assert_eq!((ids(&list).len(), &list["object"]), (3, &json!("list")));
    let missing = gateway.get("/v1/models/x").await.json();
    assert_eq!(missing["error"]["code"], "model_not_found");
}

/// Requests that name no model, with where the answer names it.
fn unnamed() -> [(&'static str, Value, &'static str); 10] {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    [
        (
            "/v1/chat/completions",
            json!({"messages": messages}),
            "/model",
        ),
        ("/v1/completions", json!({"prompt": "Hi"}), "/model"),
        (
            "/v1/responses",
            json!({"input": "Hi", "model": null}),
            "/model",
        ),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 9}),
            "/model",
        ),
        (
            "/v1/messages/count_tokens",
            json!({"messages": messages}),
            "",
        ),
        (
            "/v1/chat/completions/input_tokens",
            json!({"messages": messages}),
            "",
        ),
        ("/v1/responses/input_tokens", json!({"input": "Hi"}), ""),
        ("/tokenize", json!({"messages": messages}), ""),
        ("/v1/tokenize", json!({"messages": messages}), ""),
        ("/detokenize", json!({"tokens": tokens("Hi")}), ""),
    ]
}

#[tokio::test(start_paused = true)]
async fn the_only_model_need_not_be_named() {
    let (worker, gateway) = pair().await;
    let worker = worker.answer_all(tokens("yes"), FinishReason::Length);
    for (path, body, named) in unnamed() {
        let answer = gateway.post(path, &body).await;
        assert_eq!(answer.status, 200, "{path} {:?}", answer.body);
        if !named.is_empty() {
            assert_eq!(answer.json().pointer(named), Some(&json!("m")), "{path}");
        }
    }
    worker.abort();
}

#[tokio::test(start_paused = true)]
async fn one_of_several_models_must_be_named() {
    let (_workers, gateway) = two_models().await;
    for (path, body, _) in unnamed() {
        let answer = gateway.post(path, &body).await;
        let message = answer.json()["error"]["message"].to_string();
        assert_eq!(answer.status, 400, "{path}");
        assert!(
            message.contains("`model`") && message.contains("`m`, `n`"),
            "{message}"
        );
    }
}
