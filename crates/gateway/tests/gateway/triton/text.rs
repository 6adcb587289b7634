//! A model that takes and gives text, as `ensemble` and `tensorrt_llm_bls` do: the server has the
//! tokenizer, and the gateway may have none.

use std::collections::BTreeMap;

use bytes::Bytes;
use inflight_kserve::inference::model_config::SchedulingChoice;
use inflight_kserve::inference::model_ensembling::Step;
use inflight_kserve::inference::{DataType, ModelConfig, ModelEnsembling, ModelTransactionPolicy};
use inflight_kserve::tensor::ResponseBuilder;
use inflight_testkit::model::byte_model_files;
use inflight_testkit::triton::Asked;
use inflight_testkit::triton_models::{
    Need, add_input, config, counting_model, remove_input, set_parameter, text_model,
    text_response, token_model,
};
use serde_json::{Value, json};

use super::{
    CHAT, COMPLETIONS, Directory, choice, completion, exchange, front, front_with_tokenizer, open,
    shown,
};
use crate::support::{Client, chat};

/// An ensemble of that name, which streams because its core model does.
fn ensemble(name: &str) -> [ModelConfig; 2] {
    let steps = ModelEnsembling {
        step: vec![Step {
            model_name: "core".to_owned(),
            ..Step::default()
        }],
        ..ModelEnsembling::default()
    };
    let ensemble = ModelConfig {
        platform: "ensemble".to_owned(),
        backend: String::new(),
        scheduling_choice: Some(SchedulingChoice::EnsembleScheduling(steps)),
        model_transaction_policy: None,
        ..text_model(name)
    };
    [ensemble, token_model("core")]
}

/// Without batches.
fn unbatched(mut model: ModelConfig) -> ModelConfig {
    model.max_batch_size = 0;
    model
}

/// With the names and the mandatory words of releases before 0.17.
fn old(mut model: ModelConfig) -> ModelConfig {
    remove_input(&mut model, "seed");
    remove_input(&mut model, "min_tokens");
    add_input(&mut model, "random_seed", DataType::TypeUint64, Need::May);
    add_input(&mut model, "min_length", DataType::TypeInt32, Need::May);
    for words in ["bad_words", "stop_words"] {
        add_input(&mut model, words, DataType::TypeString, Need::Must);
    }
    model
}

#[tokio::test(start_paused = true)]
async fn requests_have_the_shapes_and_names_that_the_model_has() {
    let cases: [(&str, Vec<ModelConfig>); 5] = [
        ("BLS", vec![text_model("m")]),
        ("ensemble", ensemble("m").into()),
        ("unbatched", vec![unbatched(text_model("m"))]),
        ("old", vec![old(text_model("m"))]),
        ("old, unbatched", vec![unbatched(old(text_model("m")))]),
    ];
    for (case, models) in cases {
        let is_old = case.starts_with("old");
        let batch: &[i64] = match models[0].max_batch_size {
            0 => &[],
            _ => &[1],
        };
        let shape = |length: i64| [batch, &[length]].concat();
        let (mut triton, gateway) = front(models, &[]).await;
        for stops in [&[][..], &["END", "."]] {
            let body = completion(json!({
                "max_tokens": 5, "temperature": 0.25, "top_p": 0.5, "top_k": 3, "seed": 9,
                "min_tokens": 2, "stream": true, "stop": stops,
            }));
            let serve = async |asked: Asked| {
                let (seed, min_tokens) = match is_old {
                    true => ("random_seed", "min_length"),
                    false => ("seed", "min_tokens"),
                };
                let mut expected: BTreeMap<&str, Vec<i64>> = [
                    "text_input",
                    "max_tokens",
                    "stream",
                    "exclude_input_in_output",
                    "temperature",
                    "top_p",
                    "top_k",
                    seed,
                    min_tokens,
                ]
                .into_iter()
                .map(|name| (name, shape(1)))
                .collect();
                if is_old {
                    expected.insert("bad_words", shape(1));
                    assert_eq!(asked.texts("bad_words"), [""], "{case}");
                }
                if !stops.is_empty() {
                    expected.insert("stop_words", shape(2));
                    assert_eq!(asked.texts("stop_words"), stops, "{case}");
                } else if is_old {
                    expected.insert("stop_words", shape(1));
                    assert_eq!(asked.texts("stop_words"), [""], "{case}");
                }
                assert_eq!(asked.shapes(), expected, "{case}");
                assert_eq!(asked.texts("text_input"), ["Hi"], "{case}");
                assert_eq!(asked.values::<u64>(seed), [9], "{case}");
                assert_eq!(asked.values::<i32>(min_tokens), [2], "{case}");
                assert_eq!(asked.values::<i32>("max_tokens"), [5], "{case}");
                assert_eq!(asked.values::<bool>("stream"), [true], "{case}");
                assert_eq!(asked.values::<f32>("temperature"), [0.25], "{case}");
                let outputs = asked.message.outputs.iter().map(|output| &output.name);
                assert_eq!(outputs.collect::<Vec<_>>(), ["text_output"], "{case}");
                asked.respond(text_response("a")).await;
                asked.finish_empty().await;
            };
            let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), serve).await;
            assert_eq!(answer.status, 200, "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_text_that_is_repeated_is_shown_once() {
    let mut model = text_model("m");
    set_parameter(&mut model, "accumulate_tokens", "true");
    let (mut triton, gateway) = front([model], &[]).await;
    let mut client = Client::connect(gateway.address).await;
    let body = completion(json!({"stream": true}));
    let (mut stream, asked) = open(
        &mut triton,
        &mut client,
        (COMPLETIONS, &body),
        async |asked| asked.respond(text_response("a")).await,
    )
    .await;
    assert_eq!(shown(&mut stream).await, "a");
    // Half a character waits for the rest.
    for (text, news) in [
        ("ab\u{fffd}", "b"),
        ("abé", "é"),
        ("abé\u{fffd}\u{fffd}c", "\u{fffd}\u{fffd}c"),
        ("abé\u{fffd}\u{fffd}cd\u{fffd}", "d"),
    ] {
        asked.respond(text_response(text)).await;
        assert_eq!(shown(&mut stream).await, news, "{text}");
    }
    // What is still in doubt at the end is what the model said.
    asked.finish_empty().await;
    assert_eq!(shown(&mut stream).await, "\u{fffd}");
    assert_eq!(choice(&mut stream).await["finish_reason"], "stop");
    assert_eq!(stream.rest().await, ["[DONE]"]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_string_is_found_across_responses_and_ends_the_work() {
    let mut unaware = text_model("m");
    remove_input(&mut unaware, "stop_words");
    for (case, model) in [("told", text_model("m")), ("not told", unaware)] {
        let (mut triton, gateway) = front([model], &[]).await;
        for stream in [false, true] {
            let body = completion(json!({"stream": stream, "stop": "END"}));
            let serve = async |asked: Asked| {
                // Without a tokenizer the steps are counted, and with stop strings looked at.
                assert_eq!(asked.values::<bool>("stream"), [true], "{case}");
                for text in ["abE", "N", "Dc"] {
                    asked.respond(text_response(text)).await;
                }
                asked.cancelled().await;
            };
            let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), serve).await;
            assert_eq!(answer.status, 200, "{case}");
            let mut text = String::new();
            let mut reason = Value::Null;
            let events = match stream {
                true => answer.events(),
                false => vec![answer.json().to_string()],
            };
            for event in events.iter().filter(|event| *event != "[DONE]") {
                let event: Value = serde_json::from_str(event).unwrap();
                text += event["choices"][0]["text"].as_str().unwrap();
                reason = event["choices"][0]["finish_reason"].clone();
            }
            assert_eq!((text.as_str(), &reason), ("ab", &json!("stop")), "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_at_a_stop_word_may_have_sent_it() {
    let (mut triton, gateway) = front_with_tokenizer([text_model("m")]).await;
    let body = completion(json!({"stop": "END"}));
    let serve = async |asked: Asked| {
        // A text in one piece is enough: the server ends it at the word, and the gateway can count.
        assert_eq!(asked.values::<bool>("stream"), [false]);
        asked.finish(text_response("abEND")).await;
    };
    let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), serve).await;
    let choice = &answer.json()["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&json!("ab"), &json!("stop"))
    );
}

#[tokio::test(start_paused = true)]
async fn without_a_count_there_is_no_usage() {
    let (mut triton, gateway) = front([text_model("m")], &[]).await;
    // Each response is a step, so that a cut answer can be told from a finished one.
    for (max_tokens, reason) in [(2, "length"), (3, "stop")] {
        let body = completion(json!({"max_tokens": max_tokens}));
        let serve = async |asked: Asked| {
            asked.respond(text_response("a")).await;
            asked.finish(text_response("b")).await;
        };
        let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), serve).await;
        let answer = answer.json();
        assert_eq!(answer["choices"][0]["text"], "ab");
        assert_eq!(answer["choices"][0]["finish_reason"], reason);
        assert!(
            !answer.as_object().unwrap().contains_key("usage"),
            "{answer}"
        );
    }
    let body = completion(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let answer = gateway.post(COMPLETIONS, &body).await;
    let error = &answer.json()["error"];
    assert_eq!(
        (answer.status, &error["param"]),
        (400, &json!("stream_options"))
    );
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("--tokenizer"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_counts_tells_the_usage() {
    let (mut triton, gateway) = front([counting_model("m")], &[]).await;
    let response = |text: &str, prompt: i32, generated: i32| {
        let mut response = text_response(text);
        response.push("num_input_tokens", &[1, 1], &[prompt]).push(
            "num_output_tokens",
            &[1, 1],
            &[generated],
        );
        response
    };
    for stream in [false, true] {
        let mut body = completion(json!({"max_tokens": 3, "stream": stream, "n": 2, "seed": 1}));
        if stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        let serve = async {
            for _ in 0..2 {
                let asked = triton.next_request().await;
                for flag in ["return_num_input_tokens", "return_num_output_tokens"] {
                    assert_eq!(asked.values::<bool>(flag), [true], "{flag}");
                }
                assert_eq!(asked.values::<bool>("stream"), [stream]);
                if stream {
                    asked.respond(response("a", 5, 1)).await;
                    asked.finish(response("bc", 5, 2)).await;
                } else {
                    asked.finish(response("abc", 5, 3)).await;
                }
            }
        };
        let (answer, ()) = tokio::join!(gateway.post(COMPLETIONS, &body), serve);
        let told: Value = if stream {
            let events = answer.events();
            serde_json::from_str(&events[events.len() - 2]).unwrap()
        } else {
            let answer = answer.json();
            assert_eq!(answer["choices"][1]["finish_reason"], "length");
            answer
        };
        let usage = &told["usage"];
        // The prompt of both choices is one and counts once.
        assert_eq!(usage["prompt_tokens"], 5, "stream {stream}: {told}");
        assert_eq!(usage["completion_tokens"], 6, "stream {stream}");
    }
}

#[tokio::test(start_paused = true)]
async fn with_a_tokenizer_the_gateway_counts() {
    let (mut triton, gateway) = front_with_tokenizer([text_model("m")]).await;
    for (max_tokens, reason) in [(3, "length"), (4, "stop")] {
        let body = completion(json!({"prompt": "four", "max_tokens": max_tokens}));
        let serve = async |asked: Asked| asked.finish(text_response("abc")).await;
        let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), serve).await;
        let answer = answer.json();
        assert_eq!(answer["usage"]["prompt_tokens"], 4);
        assert_eq!(answer["usage"]["completion_tokens"], 3);
        assert_eq!(answer["choices"][0]["finish_reason"], reason);
    }
}

#[tokio::test(start_paused = true)]
async fn what_only_token_ids_can_do_is_refused_by_field() {
    let (_triton, gateway) = front_with_tokenizer([text_model("m")]).await;
    for (field, value) in [
        ("prompt", json!([72, 105])),
        ("logit_bias", json!({"97": 1})),
        ("stop_token_ids", json!([97])),
        ("ignore_eos", json!(true)),
        ("skip_special_tokens", json!(false)),
        ("logprobs", json!(1)),
        ("min_p", json!(0.5)),
    ] {
        let body = completion(json!({field: value}));
        let answer = gateway.post(COMPLETIONS, &body).await;
        assert_eq!(answer.status, 400, "{field}");
        assert_eq!(answer.json()["error"]["param"], field);
    }
}

/// The byte model's files, with a first token that tokenizer and template both write.
fn files_with_first_token() -> Vec<(String, Bytes)> {
    let processor = r#""post_processor":{"type":"TemplateProcessing",
        "single":[{"SpecialToken":{"id":"<|pad|>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
        "pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],
        "special_tokens":{"<|pad|>":{"id":"<|pad|>","ids":[258],"tokens":["<|pad|>"]}}}"#;
    let files = byte_model_files().into_iter().map(|(name, content)| {
        let text = String::from_utf8(content.to_vec()).unwrap();
        let text = match name.as_str() {
            "tokenizer.json" => text.replace(r#""post_processor":null"#, processor),
            "chat_template.jinja" => format!("<|pad|>{text}"),
            _ => text,
        };
        (name, Bytes::from(text))
    });
    files.collect()
}

#[tokio::test(start_paused = true)]
async fn a_chats_first_token_is_written_once() {
    let directory = Directory::with(files_with_first_token());
    let preprocessing = |adds: &str| {
        let mut model = config("preprocessing", 8, false);
        set_parameter(&mut model, "add_special_tokens", adds);
        model
    };
    let rendered = "user:Hi\nassistant:";
    for (adds, chat_prompt) in [
        ("true", rendered.to_owned()),
        ("${add_special_tokens}", rendered.to_owned()),
        ("false", format!("<|pad|>{rendered}")),
    ] {
        let models = [text_model("m"), preprocessing(adds)];
        let (mut triton, gateway) = front(models, &["--tokenizer", directory.path()]).await;
        let cases = [
            (
                CHAT,
                chat(json!({"max_tokens": 5})),
                chat_prompt.as_str(),
                19,
            ),
            // A prompt is sent as it is, whoever adds what.
            (
                COMPLETIONS,
                completion(json!({"prompt": "<|pad|>a"})),
                "<|pad|>a",
                2,
            ),
        ];
        for (path, body, sent, mut tokens) in cases {
            let serve = async |asked: Asked| {
                assert_eq!(asked.texts("text_input"), [sent], "{adds}");
                asked.finish(text_response("b")).await;
            };
            let answer = exchange(&mut triton, &gateway, (path, &body), serve).await;
            if path == COMPLETIONS && adds != "false" {
                tokens += 1;
            }
            let usage = &answer.json()["usage"];
            assert_eq!(usage["prompt_tokens"], tokens, "{path} {adds}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_model_that_does_not_stream_answers_in_one_piece() {
    let mut model = counting_model("m");
    model.model_transaction_policy = Some(ModelTransactionPolicy { decoupled: false });
    let (mut triton, gateway) = front([model], &[]).await;
    for stream in [false, true] {
        let body = completion(json!({"max_tokens": 9, "stream": stream}));
        let serve = async |asked: Asked| {
            assert!(!asked.shapes().contains_key("stream"));
            assert_eq!(asked.values::<bool>("exclude_input_in_output"), [true]);
            let mut response = text_response("whole");
            response.push("num_input_tokens", &[1, 1], &[2]).push(
                "num_output_tokens",
                &[1, 1],
                &[5],
            );
            asked.finish(response).await;
        };
        let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), serve).await;
        let first: Value = match stream {
            true => serde_json::from_str(&answer.events()[0]).unwrap(),
            false => answer.json(),
        };
        assert_eq!(first["choices"][0]["text"], "whole");
    }
}

#[tokio::test(start_paused = true)]
async fn an_echoed_prompt_comes_before_the_servers_text() {
    let (mut triton, gateway) = front([text_model("m")], &[]).await;
    let body = completion(json!({"echo": true}));
    let serve = async |asked: Asked| {
        asked.respond(text_response(" there")).await;
        asked.finish(ResponseBuilder::default()).await;
    };
    let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), serve).await;
    assert_eq!(answer.json()["choices"][0]["text"], "Hi there");
}
