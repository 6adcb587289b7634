//! A model that takes and gives token ids: the gateway has the tokenizer.

use std::collections::BTreeMap;

use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::tensor::ResponseBuilder;
use inflight_testkit::model::{END, SECOND_END, VOCABULARY, byte_model_files, tokens};
use inflight_testkit::triton::{Asked, ScriptedTriton};
use inflight_testkit::triton_models::{token_model, tokens_response};
use serde_json::{Value, json};

use super::{
    CHAT, COMPLETIONS, Directory, choice, completion, exchange, front, front_with_tokenizer, open,
    shown,
};
use crate::support::{Client, chat};

#[tokio::test(start_paused = true)]
async fn a_streamed_answer_is_the_events_of_its_tokens() {
    let (mut triton, gateway) = front_with_tokenizer([token_model("m")]).await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let (mut stream, asked) = open(&mut triton, &mut client, (CHAT, &body), async |asked| {
        asked.respond(tokens_response(&tokens("a"))).await;
    })
    .await;
    assert_eq!(shown(&mut stream).await, "", "the role");
    assert_eq!(shown(&mut stream).await, "a");
    // Half a character shows nothing, and the other half comes with what follows.
    asked.respond(tokens_response(&[0xc3])).await;
    asked.respond(tokens_response(&[0xa9, 98])).await;
    let mut text = shown(&mut stream).await;
    if text == "é" {
        text += &shown(&mut stream).await;
    }
    assert_eq!(text, "éb");
    asked.finish(tokens_response(&[END])).await;
    let last = choice(&mut stream).await;
    assert_eq!(
        (&last["delta"], &last["finish_reason"]),
        (&json!({}), &json!("stop"))
    );
    let rest = stream.rest().await;
    let usage: Value = serde_json::from_str(&rest[0]).unwrap();
    let usage = &usage["usage"];
    assert_eq!(
        [
            &usage["prompt_tokens"],
            &usage["completion_tokens"],
            &usage["total_tokens"]
        ],
        [18, 5, 23]
    );
    assert_eq!(rest[1..], ["[DONE]"]);
}

#[tokio::test(start_paused = true)]
async fn why_an_answer_ended_is_told_by_its_last_token_or_by_their_number() {
    let (mut triton, gateway) = front_with_tokenizer([token_model("m")]).await;
    /// Tokens allowed; responses, of which the last is the last; what is told.
    type Case = (
        u32,
        &'static [&'static [i32]],
        &'static str,
        &'static str,
        u64,
    );
    let cases: [Case; 10] = [
        (9, &[&[97], &[98], &[END]], "ab", "stop", 3),
        (9, &[&[97, 98, SECOND_END]], "ab", "stop", 3),
        (3, &[&[97], &[98], &[END]], "ab", "stop", 3),
        // The end token may be kept back, and counts all the same.
        (9, &[&[97], &[98]], "ab", "stop", 3),
        (2, &[&[97], &[98]], "ab", "length", 2),
        (2, &[&[97, 98]], "ab", "length", 2),
        // The last response may be only the mark.
        (2, &[&[97], &[98], &[]], "ab", "length", 2),
        (9, &[&[97], &[98], &[]], "ab", "stop", 3),
        (9, &[&[97], &[END], &[]], "a", "stop", 2),
        (2, &[&[97, SECOND_END], &[]], "a", "stop", 2),
    ];
    for (max_tokens, responses, text, finish, count) in cases {
        for stream in [false, true] {
            let body = completion(json!({"max_tokens": max_tokens, "stream": stream}));
            let serve = async |asked: Asked| {
                let (last, before) = responses.split_last().unwrap();
                for tokens in before {
                    asked.respond(tokens_response(tokens)).await;
                }
                match last.is_empty() {
                    true => asked.finish_empty().await,
                    false => asked.finish(tokens_response(last)).await,
                }
            };
            let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), serve).await;
            let case = format!("{responses:?} of {max_tokens}, stream {stream}");
            assert_eq!(answer.status, 200, "{case}");
            if stream {
                let events = answer.events();
                let mut told = String::new();
                let mut reasons = Vec::new();
                for event in &events[..events.len() - 1] {
                    let event: Value = serde_json::from_str(event).unwrap();
                    let choice = &event["choices"][0];
                    told += choice["text"].as_str().unwrap();
                    reasons.extend(choice["finish_reason"].as_str().map(str::to_owned));
                }
                assert_eq!((told.as_str(), reasons), (text, vec![finish.to_owned()]));
                assert_eq!(events.last().unwrap(), "[DONE]", "{case}");
            } else {
                let answer = answer.json();
                let choice = &answer["choices"][0];
                assert_eq!(choice["text"], text, "{case}");
                assert_eq!(choice["finish_reason"], finish, "{case}");
                assert_eq!(answer["usage"]["completion_tokens"], count, "{case}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_lies_behind_the_sequence_length_is_no_token() {
    let (mut triton, gateway) = front_with_tokenizer([token_model("m")]).await;
    let body = completion(json!({}));
    let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), async |asked| {
        let mut response = ResponseBuilder::default();
        response
            .push("output_ids", &[1, 1, 4], &[97, END, -1, -1])
            .push("sequence_length", &[1, 1], &[2]);
        asked.finish(response).await;
    })
    .await;
    let answer = answer.json();
    assert_eq!(answer["choices"][0]["text"], "a");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["usage"]["completion_tokens"], 2);
}

#[tokio::test(start_paused = true)]
async fn the_request_has_the_tensors_of_the_core_model() {
    let (mut triton, gateway) = front_with_tokenizer([token_model("m")]).await;
    let body = chat(json!({
        "stream": true, "max_tokens": 5, "temperature": 0.25, "top_p": 0.5, "top_k": 3, "seed": 9,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.25,
        "min_tokens": 2, "stop_token_ids": [98],
    }));
    let serve = async |asked: Asked| {
        let prompt = tokens("user:Hi\nassistant:");
        let length = prompt.len() as i64;
        let scalars = [
            "input_lengths",
            "request_output_len",
            "streaming",
            "exclude_input_in_output",
            "temperature",
            "runtime_top_p",
            "runtime_top_k",
            "seed",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "min_tokens",
            "end_id",
            "pad_id",
        ];
        let scalars = scalars.map(|name| (name, vec![1, 1]));
        let mut expected = BTreeMap::from(scalars);
        expected.insert("input_ids", vec![1, length]);
        expected.insert("stop_words_list", vec![1, 2, 2]);
        assert_eq!(asked.shapes(), expected);
        assert_eq!(asked.values::<i32>("input_ids"), prompt);
        // The second end token and the client's: ids, then where each ends.
        assert_eq!(
            asked.values::<i32>("stop_words_list"),
            [SECOND_END, 98, 1, 2]
        );
        for (name, value) in [
            ("input_lengths", length as i32),
            ("request_output_len", 5),
            ("runtime_top_k", 3),
            ("min_tokens", 2),
            ("end_id", END),
            ("pad_id", 258),
        ] {
            assert_eq!(asked.values::<i32>(name), [value], "{name}");
        }
        for (name, value) in [
            ("temperature", 0.25f32),
            ("runtime_top_p", 0.5),
            ("repetition_penalty", 1.25),
            ("presence_penalty", 0.5),
            ("frequency_penalty", -0.5),
        ] {
            assert_eq!(asked.values::<f32>(name), [value], "{name}");
        }
        assert_eq!(asked.values::<u64>("seed"), [9]);
        for flag in ["streaming", "exclude_input_in_output"] {
            assert_eq!(asked.values::<bool>(flag), [true], "{flag}");
        }
        let outputs = asked.message.outputs.iter().map(|output| &output.name);
        assert_eq!(
            outputs.collect::<Vec<_>>(),
            ["output_ids", "sequence_length"]
        );
        let empty_final = &asked.message.parameters["triton_enable_empty_final_response"];
        assert_eq!(
            empty_final.parameter_choice,
            Some(ParameterChoice::BoolParam(true))
        );
        assert_eq!(asked.message.model_name, "m");
        asked.finish(tokens_response(&[END])).await;
    };
    let answer = exchange(&mut triton, &gateway, (CHAT, &body), serve).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test(start_paused = true)]
async fn log_probabilities_are_the_last_values_of_a_response() {
    let (mut triton, gateway) = front_with_tokenizer([token_model("m")]).await;
    // Each response's values with those before it, each with its own alone, and all in one.
    let cases: [&[(&[i32], &[f32])]; 3] = [
        &[
            (&[97], &[-0.5]),
            (&[98], &[-0.5, -0.25]),
            (&[END], &[-0.5, -0.25, -1.0]),
        ],
        &[(&[97], &[-0.5]), (&[98], &[-0.25]), (&[END], &[-1.0])],
        &[(&[97, 98, END], &[-0.5, -0.25, -1.0])],
    ];
    for responses in cases {
        let body = chat(json!({"logprobs": true, "stream": responses.len() > 1}));
        let serve = async |asked: Asked| {
            assert_eq!(asked.values::<bool>("return_log_probs"), [true]);
            let mut outputs = asked.message.outputs.iter();
            assert!(outputs.any(|output| output.name == "output_log_probs"));
            let (last, before) = responses.split_last().unwrap();
            let response = |(tokens, values): &(&[i32], &[f32])| {
                let mut response = tokens_response(tokens);
                response.push("output_log_probs", &[1, 1, values.len() as i64], values);
                response
            };
            for one in before {
                asked.respond(response(one)).await;
            }
            asked.finish(response(last)).await;
        };
        let answer = exchange(&mut triton, &gateway, (CHAT, &body), serve).await;
        let choices: Vec<Value> = match responses.len() {
            1 => vec![answer.json()["choices"][0].clone()],
            _ => {
                let events = answer.events();
                let events = events[..events.len() - 1].iter();
                let choice = |event: &String| {
                    let event: Value = serde_json::from_str(event).unwrap();
                    event["choices"][0].clone()
                };
                events.map(choice).collect()
            }
        };
        let mut told = Vec::new();
        for choice in &choices {
            for entry in choice["logprobs"]["content"]
                .as_array()
                .into_iter()
                .flatten()
            {
                told.push((entry["token"].clone(), entry["logprob"].clone()));
            }
        }
        let mut expected = vec![("a", -0.5), ("b", -0.25)];
        // The end token has its entry where the server reports it.
        if responses.iter().any(|(tokens, _)| tokens.contains(&END)) {
            expected.push(("<|end|>", -1.0));
        }
        let expected = expected.into_iter();
        let expected: Vec<_> = expected
            .map(|(token, value)| (json!(token), json!(value)))
            .collect();
        assert_eq!(told, expected, "{responses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bias_is_as_long_as_the_vocabulary() {
    let (mut triton, gateway) = front_with_tokenizer([token_model("m")]).await;
    let body = chat(json!({"logit_bias": {"97": 5, "258": -100}}));
    let serve = async |asked: Asked| {
        assert_eq!(asked.shapes()["embedding_bias"], [1, i64::from(VOCABULARY)]);
        let bias = asked.values::<f32>("embedding_bias");
        let biased = bias.iter().enumerate().filter(|(_, value)| **value != 0.0);
        assert_eq!(biased.collect::<Vec<_>>(), [(97, &5.0), (258, &-100.0)]);
        asked.finish(tokens_response(&[97])).await;
    };
    let answer = exchange(&mut triton, &gateway, (CHAT, &body), serve).await;
    assert_eq!(answer.status, 200);
    // Without a vocabulary's size there is no such tensor.
    let directory = Directory::with(byte_model_files());
    let (_triton, gateway) = front([token_model("m")], &["--tokenizer", directory.path()]).await;
    let body = completion(json!({"logit_bias": {"97": 5}}));
    let answer = gateway.post(COMPLETIONS, &body).await;
    let error = &answer.json()["error"];
    assert_eq!(
        (answer.status, &error["param"]),
        (400, &json!("logit_bias"))
    );
    assert!(error["message"].as_str().unwrap().contains("config.json"));
}

/// Takes `count` requests, which arrive in any order, in the order of their seeds.
async fn by_seed(triton: &mut ScriptedTriton, count: usize) -> Vec<Asked> {
    let mut asked = Vec::new();
    for _ in 0..count {
        asked.push(triton.next_request().await);
    }
    asked.sort_by_key(|asked| asked.values::<u64>("seed")[0]);
    asked
}

#[tokio::test(start_paused = true)]
async fn each_choice_is_a_request_of_its_own_with_its_own_seed() {
    let (mut triton, gateway) = front_with_tokenizer([token_model("m")]).await;
    for (seed, stream) in [(Some(7), false), (Some(7), true), (None, false)] {
        let mut body = chat(json!({"n": 3, "stream": stream}));
        if let Some(seed) = seed {
            body["seed"] = json!(seed);
        }
        let serve = async {
            let mut asked = by_seed(&mut triton, 3).await;
            let seeds: Vec<u64> = asked.iter().map(|asked| asked.values("seed")[0]).collect();
            match seed {
                Some(_) => assert_eq!(seeds, [7, 8, 9]),
                None => assert!(seeds[0] < seeds[1] && seeds[1] < seeds[2], "{seeds:?}"),
            }
            let mut ids: Vec<String> = asked.iter().map(|asked| asked.message.id.clone()).collect();
            ids.sort();
            ids.dedup();
            assert_eq!(ids.len(), 3, "a live id must not be used again");
            // The last choice first: indices are no order of arrival.
            for choice in (0..3).rev() {
                let text = format!("choice {choice}");
                let asked = asked.pop().unwrap();
                asked.finish(tokens_response(&tokens(&text))).await;
            }
        };
        let (answer, ()) = tokio::join!(gateway.post(CHAT, &body), serve);
        let mut texts = BTreeMap::new();
        if stream {
            for event in answer.events().iter().filter(|event| *event != "[DONE]") {
                let event: Value = serde_json::from_str(event).unwrap();
                let choice = &event["choices"][0];
                let text: &mut String = texts.entry(choice["index"].as_u64().unwrap()).or_default();
                *text += choice["delta"]["content"].as_str().unwrap_or_default();
            }
        } else {
            let answer = answer.json();
            assert_eq!(answer["usage"]["prompt_tokens"], 18);
            assert_eq!(answer["usage"]["completion_tokens"], 27);
            for choice in answer["choices"].as_array().unwrap() {
                let text = choice["message"]["content"].as_str().unwrap();
                texts.insert(choice["index"].as_u64().unwrap(), text.to_owned());
            }
        }
        if seed.is_some() {
            let expected = (0..3).map(|index| (index, format!("choice {index}")));
            assert_eq!(texts, expected.collect());
        } else {
            let mut texts: Vec<String> = texts.into_values().collect();
            texts.sort();
            assert_eq!(texts, ["choice 0", "choice 1", "choice 2"]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_prompt_of_a_list_has_its_choices() {
    let (mut triton, gateway) = front_with_tokenizer([token_model("m")]).await;
    let cases = [
        (json!(["x", "yz"]), [tokens("x"), tokens("yz")]),
        (json!([[120], [121, 122]]), [vec![120], vec![121, 122]]),
    ];
    for (prompts, expected) in cases {
        let body = completion(json!({"prompt": prompts, "n": 2, "seed": 4, "logprobs": null}));
        let serve = async {
            for _ in 0..4 {
                let asked = triton.next_request().await;
                let prompt = asked.values::<i32>("input_ids");
                let prompt = expected.iter().position(|one| *one == prompt).unwrap();
                let choice = asked.values::<u64>("seed")[0] - 4;
                let text = format!("{prompt}/{choice}");
                asked.finish(tokens_response(&tokens(&text))).await;
            }
        };
        let (answer, ()) = tokio::join!(gateway.post(COMPLETIONS, &body), serve);
        let answer = answer.json();
        let choices = answer["choices"].as_array().unwrap().iter();
        let texts: Vec<&str> = choices
            .map(|choice| choice["text"].as_str().unwrap())
            .collect();
        assert_eq!(texts, ["0/0", "0/1", "1/0", "1/1"]);
        assert_eq!(answer["usage"]["prompt_tokens"], 3);
    }
}
