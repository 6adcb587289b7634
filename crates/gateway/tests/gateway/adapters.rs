//! LoRA adapters by model name: which worker gets the request, with which task.

use inflight_kserve::assets::Adapter;
use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::step::FinishReason;
use inflight_testkit::model::tokens;
use inflight_testkit::worker::{ScriptedModel, ScriptedWorker};
use serde_json::{Value, json};
use tonic::Code;

use crate::support::{Gateway, byte_model, chat};

const PATH: &str = "/v1/chat/completions";

fn with_adapters(adapters: &[(&str, u64)]) -> ScriptedModel {
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

#[tokio::test(start_paused = true)]
async fn a_request_goes_to_a_worker_that_has_its_adapter() {
    let mut none = ScriptedWorker::start(byte_model()).await;
    let mut some = ScriptedWorker::start(with_adapters(&[("a:b", 9), ("support", 4)])).await;
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

#[tokio::test(start_paused = true)]
async fn an_adapter_that_no_worker_has_is_no_model() {
    let mut worker = ScriptedWorker::start(with_adapters(&[("support", 4)])).await;
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

async fn listed(gateway: &Gateway) -> Vec<String> {
    let listed = gateway.get("/v1/models").await.json();
    let cards = listed["data"].as_array().unwrap().iter();
    cards
        .map(|card| card["id"].as_str().unwrap().to_owned())
        .collect()
}

/// Status, error code and text of a call.
async fn told(gateway: &Gateway, path: &str, body: &Value) -> (u16, Value, String) {
    let answer = gateway.post(path, body).await;
    if answer.status == 200 {
        return (
            200,
            Value::Null,
            String::from_utf8(answer.body.to_vec()).unwrap(),
        );
    }
    let error = answer.json()["error"].clone();
    let text = error["message"].as_str().unwrap().to_owned();
    (answer.status, error["code"].clone(), text)
}

const LOAD: &str = "/v1/load_lora_adapter";
const UNLOAD: &str = "/v1/unload_lora_adapter";

#[tokio::test(start_paused = true)]
async fn an_adapter_is_loaded_at_every_worker_and_served_at_once() {
    let first = ScriptedWorker::start(with_adapters(&[])).await;
    let mut second = ScriptedWorker::start(with_adapters(&[("old", 4)])).await;
    let workers = [first.address, second.address];
    let gateway = Gateway::start(&workers, &["--allow-lora-loading"])
        .await
        .all_ready()
        .await;
    let body = json!({"lora_name": "support", "lora_path": "files"});
    let success = "Success: LoRA adapter 'support' added successfully.".to_owned();
    assert_eq!(
        told(&gateway, LOAD, &body).await,
        (200, Value::Null, success)
    );
    assert_eq!(listed(&gateway).await, ["m", "m:old", "m:support"]);
    // What all have is not loaded over by mistake.
    let (status, _, text) = told(&gateway, LOAD, &body).await;
    assert_eq!(status, 400);
    assert!(text.contains("`m:support` is loaded already"), "{text}");
    let again = json!({"lora_name": "m:support", "lora_path": "files", "load_inplace": true});
    assert_eq!(told(&gateway, LOAD, &again).await.0, 200);
    // Only the one that lacks it is asked.
    let (status, _, text) = told(
        &gateway,
        LOAD,
        &json!({"lora_name": "old", "lora_path": "bad"}),
    )
    .await;
    assert_eq!(status, 400);
    assert!(text.contains("loaded by 0 of 1 workers"), "{text}");
    assert!(
        text.contains(&format!("`{}`: `bad` is no adapter", first.address)),
        "{text}"
    );

    let body = to("m:old");
    let answer = gateway.post(PATH, &body);
    let serve = async {
        let request = second.next_request().await;
        request.finish(&tokens("ok"), FinishReason::EndId).await;
        task(&request.message)
    };
    let (answer, found) = tokio::join!(answer, serve);
    assert_eq!((answer.status, found), (200, Some(4)));

    for name in ["support", "m:old"] {
        let body = json!({"lora_name": name});
        assert_eq!(told(&gateway, UNLOAD, &body).await.0, 200, "{name}");
        let (status, code, _) = told(&gateway, UNLOAD, &body).await;
        assert_eq!((status, code), (404, json!("model_not_found")), "{name}");
    }
    assert_eq!(listed(&gateway).await, ["m"]);
    assert_eq!(gateway.post(PATH, &to("m:support")).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_away_is_told() {
    let mut away = ScriptedWorker::start(with_adapters(&[])).await;
    let there = ScriptedWorker::start(with_adapters(&[])).await;
    let workers = [away.address, there.address];
    let gateway = Gateway::start(&workers, &["--allow-lora-loading"])
        .await
        .all_ready()
        .await;
    away.kill();
    let body = json!({"lora_name": "support", "lora_path": "files"});
    let (status, _, text) = told(&gateway, LOAD, &body).await;
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("loaded by 1 of 2 workers"), "{text}");
    assert!(text.contains(&format!("`{}`", away.address)), "{text}");
    // It is served by the other one.
    assert_eq!(listed(&gateway).await, ["m", "m:support"]);
}

#[tokio::test(start_paused = true)]
async fn nobody_loads_adapters_unless_the_operator_allows_it() {
    let worker = ScriptedWorker::start(with_adapters(&[])).await;
    let gateway = Gateway::start(&[worker.address], &[]).await.ready().await;
    for path in [LOAD, UNLOAD] {
        let body = json!({"lora_name": "support", "lora_path": "files"});
        let (status, code, text) = told(&gateway, path, &body).await;
        assert_eq!((status, code), (403, json!("lora_loading_not_allowed")));
        assert!(text.contains("`--allow-lora-loading`"), "{text}");
    }
    assert_eq!(listed(&gateway).await, ["m"]);
}
