//! Releases of Triton's backend whose answers repeat the prompt, because no request can say otherwise: 0.7, 0.8 and
//! 0.11, whose core model has a parameter for it.

use inflight_kserve::inference::model_config::SchedulingChoice;
use inflight_kserve::inference::model_ensembling::Step;
use inflight_kserve::inference::{ModelConfig, ModelEnsembling, ModelTransactionPolicy};
use inflight_testkit::model::tokens;
use inflight_testkit::triton_models::{
    remove_input, set_parameter, text_model, text_response, token_model, tokens_response,
};
use serde_json::json;

use super::{CHAT, COMPLETIONS, Directory, completion, exchange, front, front_with_tokenizer};
use crate::support::chat;

/// As releases without the input have it, and not decoupled.
fn old(mut model: ModelConfig) -> ModelConfig {
    remove_input(&mut model, "exclude_input_in_output");
    model.model_transaction_policy = Some(ModelTransactionPolicy { decoupled: false });
    model
}

/// An ensemble or BLS model before a core model with this parameter.
fn repository(ensemble: bool, excludes: &str) -> [ModelConfig; 2] {
    let mut core = old(token_model("tensorrt_llm"));
    set_parameter(&mut core, "exclude_input_in_output", excludes);
    let mut model = old(text_model("m"));
    if ensemble {
        let step = Step {
            model_name: core.name.clone(),
            ..Step::default()
        };
        model.platform = "ensemble".to_owned();
        model.scheduling_choice = Some(SchedulingChoice::EnsembleScheduling(ModelEnsembling {
            step: vec![step],
            ..ModelEnsembling::default()
        }));
    }
    [model, core]
}

#[tokio::test(start_paused = true)]
async fn a_text_that_repeats_the_prompt_is_shown_without_it() {
    let directory = Directory::new();
    let options = ["--tokenizer", directory.path()];
    for ensemble in [true, false] {
        for (excludes, answered) in [
            ("True", " there"),
            ("true", "Hi there"),
            ("false", "Hi there"),
            ("${exclude_input_in_output}", " Hi there"),
        ] {
            let is_kept = excludes.eq_ignore_ascii_case("true");
            let expected = if is_kept { answered } else { " there" };
            let models = repository(ensemble, excludes);
            let (mut triton, gateway) = front(models, &options).await;
            for stream in [false, true] {
                let body = completion(json!({"stream": stream, "max_tokens": 40}));
                let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), async |asked| {
                    asked.finish(text_response(answered)).await;
                });
                let answer = answer.await;
                let first = match stream {
                    true => serde_json::from_str(&answer.events()[0]).unwrap(),
                    false => answer.json(),
                };
                assert_eq!(
                    first["choices"][0]["text"], expected,
                    "{excludes} {ensemble}"
                );
                if !stream {
                    // The prompt is no part of the answer's tokens either.
                    let count = answer.json()["usage"]["completion_tokens"].clone();
                    assert_eq!(count, expected.len());
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn special_tokens_of_a_prompt_may_be_missing_in_what_is_repeated() {
    let files = Directory::new();
    let template = "--chat-template=chatml";
    let options = ["--tokenizer", files.path(), template];
    let (mut triton, gateway) = front(repository(true, "false"), &options).await;
    // `<|end|>` is special in the tokenizer, and postprocessing leaves it out.
    let body = completion(json!({"prompt": "A<|end|>B", "max_tokens": 9}));
    let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), async |asked| {
        assert_eq!(asked.texts("text_input"), ["A<|end|>B"]);
        asked.finish(text_response("AB!")).await;
    });
    assert_eq!(answer.await.json()["choices"][0]["text"], "!");
    // What cannot be told from the prompt is no answer; the log and nobody else learns how to change that.
    let body = chat(json!({"max_tokens": 9}));
    let answer = exchange(&mut triton, &gateway, (CHAT, &body), async |asked| {
        asked.finish(text_response("something else")).await;
    });
    assert_eq!(answer.await.status, 500);
}

#[tokio::test(start_paused = true)]
async fn token_ids_that_repeat_the_prompt_are_cut() {
    for (excludes, answered) in [("true", "lo"), ("false", "Hilo")] {
        let mut model = old(token_model("m"));
        set_parameter(&mut model, "exclude_input_in_output", excludes);
        let (mut triton, gateway) = front_with_tokenizer([model]).await;
        let body = completion(json!({"max_tokens": 2}));
        let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), async |asked| {
            asked.finish(tokens_response(&tokens(answered))).await;
        });
        let answer = answer.await.json();
        assert_eq!(answer["choices"][0]["text"], "lo");
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], 2);
    }
}
