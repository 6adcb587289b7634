//! TensorRT-LLM's `llmapi` model: text in and out, no batches, each response the text so far.

use std::collections::BTreeMap;

use inflight_kserve::tensor::ResponseBuilder;
use inflight_testkit::triton::Asked;
use inflight_testkit::triton_models::llmapi_model;
use serde_json::{Value, json};

use super::{COMPLETIONS, choice, completion, exchange, front, open, shown};
use crate::support::Client;

/// A response of the text so far.
fn so_far(text: &str, reason: &str) -> ResponseBuilder {
    let mut response = ResponseBuilder::default();
    response
        .push_bytes("text_output", &[1], [text])
        .push_bytes("finish_reason", &[1], [reason]);
    response
}

#[tokio::test(start_paused = true)]
async fn the_request_has_the_names_of_sampling_params_and_no_batch() {
    let (mut triton, gateway) = front([llmapi_model("m")], &[]).await;
    for (asked_top_k, sent) in [(Some(3), Some(3)), (None, None), (Some(-1), None)] {
        let mut body = completion(json!({
            "max_tokens": 5, "temperature": 0.25, "top_p": 0.5, "seed": 9, "stream": true,
            "presence_penalty": 0.5,
        }));
        if let Some(top_k) = asked_top_k {
            body["top_k"] = json!(top_k);
        }
        let serve = async |asked: Asked| {
            let mut expected: BTreeMap<&str, Vec<i64>> = [
                "text_input",
                "streaming",
                "sampling_param_max_tokens",
                "sampling_param_exclude_input_from_output",
                "sampling_param_temperature",
                "sampling_param_top_p",
                "sampling_param_seed",
                "sampling_param_presence_penalty",
                "return_finish_reason",
            ]
            .into_iter()
            .map(|name| (name, vec![1]))
            .collect();
            // The LLM API has no number for "no limit".
            if let Some(top_k) = sent {
                expected.insert("sampling_param_top_k", vec![1]);
                assert_eq!(asked.values::<i32>("sampling_param_top_k"), [top_k]);
            }
            assert_eq!(asked.shapes(), expected);
            assert_eq!(asked.texts("text_input"), ["Hi"]);
            assert_eq!(asked.values::<i32>("sampling_param_max_tokens"), [5]);
            assert_eq!(asked.values::<u64>("sampling_param_seed"), [9]);
            assert_eq!(asked.values::<bool>("return_finish_reason"), [true]);
            let outputs = asked.message.outputs.iter().map(|output| &output.name);
            assert_eq!(
                outputs.collect::<Vec<_>>(),
                ["text_output", "finish_reason"]
            );
            asked.finish(so_far("a", "stop")).await;
        };
        let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), serve).await;
        assert_eq!(answer.status, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn the_text_so_far_is_shown_once_and_its_end_has_the_servers_reason() {
    let (mut triton, gateway) = front([llmapi_model("m")], &[]).await;
    for reason in ["stop", "length"] {
        let mut client = Client::connect(gateway.address).await;
        // Fewer responses than tokens asked for, and more: the server's word counts.
        for max_tokens in [1, 9] {
            let body = completion(json!({"stream": true, "max_tokens": max_tokens}));
            let request = (COMPLETIONS, &body);
            let (mut stream, asked) = open(&mut triton, &mut client, request, async |asked| {
                asked.respond(so_far("a", "None")).await;
            })
            .await;
            assert_eq!(shown(&mut stream).await, "a");
            asked.respond(so_far("ab", "None")).await;
            assert_eq!(shown(&mut stream).await, "b");
            asked.finish(so_far("abc", reason)).await;
            assert_eq!(shown(&mut stream).await, "c");
            assert_eq!(choice(&mut stream).await["finish_reason"], reason);
            assert_eq!(stream.rest().await, ["[DONE]"]);
        }
        let body = completion(json!({}));
        let serve = async |asked: Asked| {
            assert_eq!(asked.values::<bool>("streaming"), [false]);
            asked.finish(so_far("abc", reason)).await;
        };
        let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), serve).await;
        assert_eq!(answer.json()["choices"][0]["text"], "abc");
        assert_eq!(answer.json()["choices"][0]["finish_reason"], reason);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_no_end_of_an_answer_is_an_error() {
    let (mut triton, gateway) = front([llmapi_model("m")], &[]).await;
    // What comes after "ab", and the status and code of that.
    let cases = [
        ("abc", "timeout", 504, "timeout"),
        ("abc", "cancelled", 503, "service_unavailable"),
        ("abc", "a reason unheard of", 500, "server_error"),
        ("Xbc", "stop", 500, "server_error"),
        ("a", "stop", 500, "server_error"),
    ];
    for (text, reason, status, code) in cases {
        let body = completion(json!({}));
        let serve = async |asked: Asked| {
            asked.respond(so_far("ab", "None")).await;
            asked.finish(so_far(text, reason)).await;
        };
        let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), serve).await;
        assert_eq!(answer.status, status, "{text} {reason}");
        assert_eq!(answer.json()["error"]["code"], code);
        let mut client = Client::connect(gateway.address).await;
        let body = completion(json!({"stream": true}));
        let request = (COMPLETIONS, &body);
        let (mut stream, asked) = open(&mut triton, &mut client, request, async |asked| {
            asked.respond(so_far("ab", "None")).await;
        })
        .await;
        assert_eq!(shown(&mut stream).await, "ab");
        asked.finish(so_far(text, reason)).await;
        let rest = stream.rest().await;
        assert_eq!(rest.len(), 2, "{rest:?}");
        let error: Value = serde_json::from_str(&rest[0]).unwrap();
        assert_eq!(error["error"]["code"], code, "{text} {reason}");
        assert_eq!(rest[1], "[DONE]");
    }
}
