//! `/tokenize` and `/detokenize`: which model's tokenizer answers, and where there is none.

use inflight_testkit::model::tokens;
use inflight_testkit::triton::FakeTriton;
use inflight_testkit::triton_models::text_model;
use inflight_testkit::worker::FakeWorker;
use serde_json::json;

use crate::support::{Gateway, byte_model, pair};

#[tokio::test]
async fn the_only_model_need_not_be_named() {
    let (_worker, gateway) = pair().await;
    for model in [json!({}), json!({"model": "m"}), json!({"model": null})] {
        let mut body = json!({"prompt": "Hi", "add_special_tokens": false});
        body.as_object_mut()
            .unwrap()
            .extend(model.as_object().unwrap().clone());
        let answer = gateway.post("/tokenize", &body).await;
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.json(),
            json!({"count": 2, "max_model_len": 64, "tokens": tokens("Hi"), "token_strs": null})
        );
    }
    let body = json!({"tokens": tokens("Hi")});
    let answer = gateway.post("/detokenize", &body).await;
    assert_eq!(
        (answer.status, answer.json()),
        (200, json!({"prompt": "Hi"}))
    );
}

#[tokio::test]
async fn one_of_several_models_is_named() {
    let mut other = byte_model();
    other.description.served_model_name = "n".to_owned();
    let one = FakeWorker::start(byte_model()).await;
    let two = FakeWorker::start(other).await;
    let workers = [one.address, two.address];
    let gateway = Gateway::start(&workers, &[]).await.all_ready().await;
    for (path, input) in [("/tokenize", "prompt"), ("/detokenize", "tokens")] {
        let value = match input {
            "prompt" => json!("Hi"),
            _ => json!(tokens("Hi")),
        };
        let answer = gateway.post(path, &json!({input: value})).await;
        let param = &answer.json()["error"]["param"];
        assert_eq!((answer.status, param), (400, &json!("model")), "{path}");
        let answer = gateway
            .post(path, &json!({input: value, "model": "n"}))
            .await;
        assert_eq!(answer.status, 200, "{path}");
    }
}

#[tokio::test]
async fn a_server_that_tokenizes_itself_has_none_to_ask() {
    let triton = FakeTriton::start([text_model("t")]).await;
    let gateway = Gateway::start(&[triton.address], &[]).await.ready().await;
    for (path, body, param) in [
        ("/tokenize", json!({"prompt": "Hi"}), "prompt"),
        ("/detokenize", json!({"tokens": [1]}), "tokens"),
    ] {
        let answer = gateway.post(path, &body).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["param"]), (400, &json!(param)));
        let text = error["message"].as_str().unwrap();
        assert!(text.contains("`--tokenizer`"), "{text}");
    }
}
