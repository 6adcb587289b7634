//! Which models of a server are served: as it has them now, and only those that can be.

use std::time::Duration;

use inflight_kserve::inference::{DataType, ModelConfig, ModelTransactionPolicy};
use inflight_testkit::model::{END, tokens};
use inflight_testkit::triton::{Asked, ScriptedTriton};
use inflight_testkit::triton_models::{
    Need, add_input, config, remove_input, text_model, text_response, token_model, tokens_response,
};
use serde_json::json;

use super::{CHAT, COMPLETIONS, completion, exchange, front, front_with_tokenizer, open, shown};
use crate::support::{Client, Gateway, PATIENCE, chat};

async fn models(gateway: &Gateway) -> Vec<String> {
    let list = gateway.get("/v1/models").await.json();
    let cards = list["data"].as_array().unwrap().iter();
    cards
        .map(|card| card["id"].as_str().unwrap().to_owned())
        .collect()
}

/// Polls until the gateway lists exactly these; it looks at the server once a second.
async fn listed(gateway: &Gateway, expected: &[&str]) {
    let poll = async {
        while models(gateway).await != expected {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, poll).await;
    assert!(found.is_ok(), "{:?}", models(gateway).await);
}

#[tokio::test(start_paused = true)]
async fn models_are_those_that_generate_and_follow_the_server() {
    let preprocessing = config("preprocessing", 8, false);
    let (mut triton, gateway) = front_with_tokenizer([token_model("m"), preprocessing]).await;
    assert_eq!(models(&gateway).await, ["m"]);
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let begin = async |asked: &Asked| asked.respond(tokens_response(&tokens("a"))).await;
    let (mut stream, asked) = open(&mut triton, &mut client, (CHAT, &body), begin).await;
    assert_eq!(shown(&mut stream).await, "");
    assert_eq!(shown(&mut stream).await, "a");

    triton.load(text_model("t"));
    listed(&gateway, &["m", "t"]).await;
    let body = completion(json!({"model": "t"}));
    let serve = async |asked: Asked| {
        assert_eq!(asked.message.model_name, "t");
        asked.finish(text_response("text")).await;
    };
    let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), serve).await;
    assert_eq!(answer.json()["choices"][0]["text"], "text");
    asked.respond(tokens_response(&tokens("b"))).await;
    assert_eq!(shown(&mut stream).await, "b");

    triton.unload("t");
    listed(&gateway, &["m"]).await;
    assert_eq!(gateway.post(COMPLETIONS, &body).await.status, 404);
    asked.respond(tokens_response(&tokens("c"))).await;
    assert_eq!(shown(&mut stream).await, "c");

    // Also what is taken away is answered to its end.
    triton.load(token_model("n"));
    triton.unload("m");
    listed(&gateway, &["n"]).await;
    asked.respond(tokens_response(&tokens("d"))).await;
    assert_eq!(shown(&mut stream).await, "d");
    asked.finish(tokens_response(&[END])).await;
    assert_eq!(stream.rest().await.last().unwrap(), "[DONE]");

    // A server without models is as good as lost, and its last models stay known.
    triton.unload("n");
    gateway.wait_for_readiness(503).await;
    let answer = gateway.post(CHAT, &chat(json!({"model": "n"}))).await;
    assert_eq!(answer.status, 503);
    triton.load(token_model("n"));
    gateway.wait_for_readiness(200).await;
}

#[tokio::test(start_paused = true)]
async fn a_model_that_tells_no_configuration_leaves_the_others_alone() {
    let triton = ScriptedTriton::start([text_model("a"), text_model("b")]).await;
    triton.hide("a", true);
    let gateway = Gateway::start(&[triton.address], &[]).await.ready().await;
    assert_eq!(models(&gateway).await, ["b"]);
    triton.hide("a", false);
    listed(&gateway, &["a", "b"]).await;
    triton.hide("b", true);
    listed(&gateway, &["a"]).await;
    // With nothing left there is a reason.
    triton.hide("a", true);
    gateway.wait_for_readiness(503).await;
    let health = gateway.get("/health/ready").await.json();
    let reason = health["workers"][0]["reason"].as_str().unwrap();
    assert!(
        reason.contains("`a`: its configuration cannot be read"),
        "{reason}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_model_that_is_loaded_with_another_configuration_is_asked_anew() {
    let (mut triton, gateway) = front_with_tokenizer([token_model("m"), token_model("n")]).await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let begin = async |asked: &Asked| asked.respond(tokens_response(&tokens("a"))).await;
    let (mut stream, asked) = open(&mut triton, &mut client, (CHAT, &body), begin).await;
    assert_eq!(shown(&mut stream).await, "");
    assert_eq!(shown(&mut stream).await, "a");
    // The index is as it was; the model is another.
    let mut renewed = token_model("m");
    remove_input(&mut renewed, "seed");
    triton.load(renewed);
    let refuses = async {
        let body = chat(json!({"seed": 1, "max_tokens": 1000}));
        loop {
            let answer = gateway.post(CHAT, &body).await.json();
            if answer["error"]["param"] == "seed" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, refuses).await;
    found.expect("the configuration is read again in time");
    // What was asked of the model before is answered by it.
    asked.finish(tokens_response(&tokens("b"))).await;
    assert_eq!(shown(&mut stream).await, "b");
    assert_eq!(stream.rest().await.last().unwrap(), "[DONE]");
}

#[tokio::test(start_paused = true)]
async fn a_model_among_thousands_is_served_and_of_too_many_the_first_are() {
    let many = |count: usize| (0..count).map(|number| config(&format!("x{number}"), 0, false));
    let (_triton, gateway) = front(many(5000).chain([text_model("m")]), &[]).await;
    assert_eq!(models(&gateway).await, ["m"]);
    let late = many(5000).chain([text_model("z"), text_model("a")]);
    let (_triton, gateway) = front(late, &[]).await;
    assert_eq!(models(&gateway).await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_model_that_cannot_be_served_is_named_with_why() {
    let with = |mut model: ModelConfig, change: fn(&mut ModelConfig)| {
        change(&mut model);
        model
    };
    let cases = [
        (token_model("m"), "--tokenizer"),
        (
            with(text_model("m"), |model| {
                add_input(model, "image", DataType::TypeFp16, Need::Must);
            }),
            "`image`",
        ),
        (
            with(text_model("m"), |model| {
                add_input(model, "max_tokens", DataType::TypeInt64, Need::Must);
            }),
            "`max_tokens` must be TYPE_INT32, got TYPE_INT64",
        ),
        (
            with(text_model("m"), |model| {
                model.output[0].data_type = DataType::TypeInt32 as i32;
            }),
            "`text_output`",
        ),
        (
            with(text_model("m"), |model| {
                model.model_transaction_policy = Some(ModelTransactionPolicy { decoupled: false });
            }),
            "neither streams nor counts",
        ),
    ];
    for (model, words) in cases {
        // Neither is served alone, and beside another model each is only left out.
        let triton = ScriptedTriton::start([model.clone()]).await;
        let gateway = Gateway::start(&[triton.address], &[]).await;
        let reason = gateway.refusal().await;
        assert!(reason.contains("`m`") && reason.contains(words), "{reason}");
        assert_eq!(gateway.get("/health/ready").await.status, 503);
        let (_triton, beside) = front([model, text_model("good")], &[]).await;
        assert_eq!(models(&beside).await, ["good"]);
        // To send it again would not help, and the client is told what would.
        for gateway in [gateway, beside] {
            let answer = gateway.post(COMPLETIONS, &completion(json!({}))).await;
            let error = &answer.json()["error"];
            assert_eq!(
                (answer.status, &error["code"]),
                (404, &json!("model_not_found"))
            );
            assert!(
                error["message"].as_str().unwrap().contains(words),
                "{error}"
            );
        }
    }
}
