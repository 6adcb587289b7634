//! LoRA adapters by model name: which worker gets the request, with which task.

use inflight_kserve::assets::Adapter;
use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::step::FinishReason;
use inflight_testkit::model::tokens;
use inflight_testkit::worker::{FakeModel, FakeWorker};
use serde_json::{Value, json};
use tonic::Code;

use crate::support::{Gateway, byte_model, chat};

const PATH: &str = "/v1/chat/completions";

fn with_adapters(adapters: &[(&str, u64)]) -> FakeModel {
    let mut model = byte_model();
    let description = &mut model.description;
    description.capabilities.push("lora".to_owned());
    let announced = adapters.iter().map(|(name, task_id)| Adapter {
        name: (*name).to_owned(),
        lora_task_id: *task_id,
    });
    description.adapters = announced.collect();
    model
}

/// The task that a request asks for.
fn task(message: &ModelInferRequest) -> Option<u64> {
    let mut inputs = message.inputs.iter();
    let place = inputs.position(|input| input.name == "lora_task_id")?;
    let bytes = message.raw_input_contents[place].as_ref();
    Some(u64::from_le_bytes(bytes.try_into().unwrap()))
}

fn to(model: &str) -> Value {
    chat(json!({"model": model}))
}

#[tokio::test]
async fn a_request_goes_to_a_worker_that_has_its_adapter() {
    let mut none = FakeWorker::start(byte_model()).await;
    let mut some = FakeWorker::start(with_adapters(&[("a:b", 9), ("support", 4)])).await;
    let workers = [none.address, some.address];
    let gateway = Gateway::start(&workers, &[]).await.all_ready().await;
    for (model, expected) in [("m:support", 4), ("m:a:b", 9), ("m:17", 17)] {
        let body = to(model);
        let answer = gateway.post(PATH, &body);
        let serve = async {
            let request = some.next_request().await;
            request.finish(&tokens("ok"), FinishReason::EndId).await;
            task(&request.message)
        };
        let (answer, found) = tokio::join!(answer, serve);
        assert_eq!((answer.status, found), (200, Some(expected)), "{model}");
        assert_eq!(answer.json()["model"], model);
    }
    // The one that has had fewer turns, and no task.
    let body = to("m");
    let answer = gateway.post(PATH, &body);
    let serve = async {
        let request = none.next_request().await;
        request.finish(&tokens("ok"), FinishReason::EndId).await;
        task(&request.message)
    };
    let (answer, found) = tokio::join!(answer, serve);
    assert_eq!((answer.status, found), (200, None));

    let listed = gateway.get("/v1/models").await.json();
    let cards = listed["data"].as_array().unwrap().iter();
    let cards: Vec<_> = cards.map(|card| (&card["id"], &card["parent"])).collect();
    let parent = json!("m");
    assert_eq!(
        cards,
        [
            (&json!("m"), &Value::Null),
            (&json!("m:a:b"), &parent),
            (&json!("m:support"), &parent)
        ]
    );
    let card = gateway.get("/v1/models/m:support").await;
    assert_eq!((card.status, &card.json()["parent"]), (200, &parent));
}

#[tokio::test]
async fn an_adapter_that_no_worker_has_is_no_model() {
    let mut worker = FakeWorker::start(with_adapters(&[("support", 4)])).await;
    let gateway = Gateway::start(&[worker.address], &[]).await.ready().await;
    for model in ["m:sales", "m:", ":support", "n:support", "m:support:"] {
        let answer = gateway.post(PATH, &to(model)).await;
        let error = &answer.json()["error"];
        assert_eq!(
            (answer.status, &error["code"]),
            (404, &json!("model_not_found")),
            "{model}"
        );
        let text = error["message"].as_str().unwrap();
        assert!(text.contains("`m`, `m:support`"), "{text}");
    }
    // A number may have had its weights sent to the worker, which alone can tell.
    let body = to("m:7");
    let refused = "LoRA task 7 not found in cache. Please send LoRA weights with request";
    let answer = gateway.post(PATH, &body);
    let serve = async {
        let request = worker.next_request().await;
        request.fail(Code::InvalidArgument, refused).await;
    };
    let (answer, ()) = tokio::join!(answer, serve);
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
}
