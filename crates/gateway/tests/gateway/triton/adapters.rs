//! LoRA adapters of a plain Triton: by the task that their weights were sent under.

use inflight_kserve::inference::{DataType, ModelConfig};
use inflight_testkit::model::{END, tokens};
use inflight_testkit::triton_models::{
    Need, add_input, text_model, text_response, token_model, tokens_response,
};
use serde_json::json;

use super::{COMPLETIONS, completion, exchange, front_with_tokenizer};

fn with_lora(mut model: ModelConfig) -> ModelConfig {
    add_input(&mut model, "lora_task_id", DataType::TypeUint64, Need::May);
    model
}

#[tokio::test(start_paused = true)]
async fn a_task_is_sent_where_the_model_takes_one() {
    let models = [
        with_lora(token_model("tokens")),
        with_lora(text_model("text")),
        token_model("without"),
    ];
    let (mut triton, gateway) = front_with_tokenizer(models).await;
    for (model, sent) in [
        ("tokens:7", &[7][..]),
        ("tokens", &[]),
        ("text:8", &[8]),
        ("text", &[]),
    ] {
        let body = completion(json!({"model": model}));
        let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), async |asked| {
            assert_eq!(asked.values::<u64>("lora_task_id"), sent, "{model}");
            if model.starts_with("tokens") {
                let ids: Vec<i32> = tokens("ok").into_iter().chain([END]).collect();
                asked.finish(tokens_response(&ids)).await;
            } else {
                asked.finish(text_response("ok")).await;
            }
        })
        .await;
        assert_eq!(
            (answer.status, &answer.json()["model"]),
            (200, &json!(model))
        );
    }
    for model in ["without:7", "tokens:support"] {
        let body = completion(json!({"model": model}));
        let answer = gateway.post(COMPLETIONS, &body).await;
        let code = &answer.json()["error"]["code"];
        assert_eq!(
            (answer.status, code),
            (404, &json!("model_not_found")),
            "{model}"
        );
    }
}
