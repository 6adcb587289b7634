//! What a model of token ids demands and what it lacks.

use inflight_kserve::inference::{DataType, ModelTransactionPolicy};
use inflight_testkit::model::{END, byte_model_files, tokens};
use inflight_testkit::triton::Asked;
use inflight_testkit::triton_models::{
    Need, add_input, remove_input, token_model, tokens_response,
};
use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, Directory, completion, exchange, front, front_with_tokenizer};
use crate::support::{Gateway, chat};

#[tokio::test(start_paused = true)]
async fn a_model_that_demands_its_settings_gets_values_that_change_nothing() {
    let mut model = token_model("m");
    for input in &mut model.input {
        input.optional = ["stop", "num_return_sequences"].contains(&input.name.as_str());
    }
    let files = byte_model_files().into_iter();
    let files = files.filter(|(name, _)| name != "generation_config.json");
    let directory = Directory::with(files.collect());
    let options = ["--tokenizer", directory.path(), "--max-seq-len", "64"];
    let demanded: Vec<String> = {
        let inputs = model.input.iter().filter(|input| !input.optional);
        inputs.map(|input| input.name.clone()).collect()
    };
    for decoupled in [true, false] {
        model.model_transaction_policy = Some(ModelTransactionPolicy { decoupled });
        let (mut triton, gateway) = front([model.clone()], &options).await;
        let serve = async |asked: Asked| {
            let shapes = asked.shapes();
            for name in &demanded {
                assert!(shapes.contains_key(name.as_str()), "{name}");
            }
            assert_eq!(shapes["stop_words_list"][..2], [1, 2]);
            assert_eq!(shapes["embedding_bias"], [1, 0]);
            assert_eq!(asked.values::<f32>("repetition_penalty"), [1.0]);
            for name in ["presence_penalty", "frequency_penalty"] {
                assert_eq!(asked.values::<f32>(name), [0.0], "{name}");
            }
            assert_eq!(asked.values::<i32>("min_tokens"), [0]);
            assert_eq!(asked.values::<i32>("end_id"), [-1]);
            assert_eq!(asked.values::<i32>("pad_id"), [-1]);
            for name in ["return_log_probs", "streaming"] {
                assert_eq!(asked.values::<bool>(name), [false], "{name}");
            }
            asked.finish(tokens_response(&[97])).await;
        };
        let body = completion(json!({"ignore_eos": true}));
        let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), serve).await;
        assert_eq!(answer.status, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_would_begin_with_the_prompt_is_streamed() {
    let mut model = token_model("m");
    remove_input(&mut model, "exclude_input_in_output");
    let (mut triton, gateway) = front_with_tokenizer([model]).await;
    let serve = async |asked: Asked| {
        assert_eq!(asked.values::<bool>("streaming"), [true]);
        asked.respond(tokens_response(&tokens("a"))).await;
        asked.finish(tokens_response(&[END])).await;
    };
    let body = completion(json!({}));
    let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), serve).await;
    assert_eq!(answer.json()["choices"][0]["text"], "a");
}

#[tokio::test(start_paused = true)]
async fn token_ids_that_no_vocabulary_has_are_refused() {
    let directory = Directory::with(byte_model_files());
    let (_triton, gateway) = front([token_model("m")], &["--tokenizer", directory.path()]).await;
    for id in [u32::MAX, 1 << 31] {
        let body = completion(json!({"prompt": [97, id]}));
        let answer = gateway.post(COMPLETIONS, &body).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["param"]), (400, &json!("prompt")));
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_model_has_no_input_for_is_refused_by_field() {
    let mut model = token_model("m");
    for input in [
        "runtime_top_k",
        "runtime_top_p",
        "temperature",
        "seed",
        "min_tokens",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "embedding_bias",
        "stop_words_list",
        "return_log_probs",
    ] {
        remove_input(&mut model, input);
    }
    let (mut triton, gateway) = front_with_tokenizer([model.clone()]).await;
    for (field, value, named) in [
        ("top_k", json!(2), "`runtime_top_k`"),
        ("top_p", json!(0.5), "`runtime_top_p`"),
        ("temperature", json!(0.5), "`temperature`"),
        ("n", json!(2), "`seed`"),
        ("seed", json!(1), "`seed`"),
        ("min_tokens", json!(1), "`min_tokens`"),
        ("repetition_penalty", json!(1.5), "`repetition_penalty`"),
        ("presence_penalty", json!(0.5), "`presence_penalty`"),
        ("frequency_penalty", json!(0.5), "`frequency_penalty`"),
        ("logit_bias", json!({"97": 1}), "`embedding_bias`"),
        ("stop_token_ids", json!([97]), "`stop_words_list`"),
        ("logprobs", json!(true), "`return_log_probs`"),
        ("min_p", json!(0.5), "`m`"),
    ] {
        refused(&gateway, &chat(json!({field: value})), field, named).await;
    }
    // Greedy is said in top-k's words.
    add_input(&mut model, "temperature", DataType::TypeFp32, Need::May);
    let (_greedy, greedy) = front_with_tokenizer([model]).await;
    let body = chat(json!({"temperature": 0}));
    refused(&greedy, &body, "temperature", "`runtime_top_k`").await;
    // What no client asked for is only left out.
    let body = chat(json!({}));
    let serve = async |asked: Asked| {
        assert!(!asked.shapes().contains_key("temperature"));
        asked.finish(tokens_response(&tokens("ok"))).await;
    };
    let answer = exchange(&mut triton, &gateway, (CHAT, &body), serve).await;
    assert_eq!(answer.status, 200);
}

async fn refused(gateway: &Gateway, body: &Value, field: &str, named: &str) {
    let answer = gateway.post(CHAT, body).await;
    let error = &answer.json()["error"];
    assert_eq!(
        (answer.status, &error["param"]),
        (400, &json!(field)),
        "{body}"
    );
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(named), "{message}");
}
