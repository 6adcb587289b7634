//! Tables over every field: a request's JSON in, the core model's tensors out.

use std::collections::BTreeMap;
use std::sync::Arc;

use inflight_kserve::assets::ModelDescription;
use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::tensor::{DataType, Tensors};
use inflight_models::served::{Protocol, ServedModel};
use inflight_openai::{ApiError, chat, completions};
use inflight_testkit::model::{VOCABULARY, byte_model_files};
use inflight_text::TextModel;
use inflight_upstream::handles::Handle;
use inflight_upstream::inflight::request::infer_request;
use inflight_upstream::prompt_request::PromptRequest;
use serde_json::{Value, json};

use super::requested::Requested;
use super::resolve::resolve;

const FRESH_SEED: u64 = 77;
/// A first use of slot 5.
const HANDLE: u64 = 1 << 32 | 5;
const PROMPT: [i32; 3] = [97, 98, 99];

fn model(generation: &str) -> ServedModel {
    let mut files: BTreeMap<String, Vec<u8>> = byte_model_files()
        .into_iter()
        .map(|(name, data)| (name, data.to_vec()))
        .collect();
    files.insert(
        "generation_config.json".to_owned(),
        generation.as_bytes().to_vec(),
    );
    let capabilities = [
        "log_probs",
        "top_log_probs",
        "log_prob_ids",
        "prompt_log_probs",
        "min_p",
        "penalties",
        "min_tokens",
        "embedding_bias",
        "num_return_sequences",
        "bad_words",
        "no_repeat_ngram_size",
        "cache_salt",
        "priority",
        "beam_search",
        "guided_decoding",
    ];
    ServedModel {
        description: ModelDescription {
            max_seq_len: 64,
            max_input_len: 63,
            max_beam_width: 4,
            vocab_size: VOCABULARY,
            capabilities: capabilities.map(str::to_owned).to_vec(),
            ..ModelDescription::default()
        },
        text: Some(Arc::new(TextModel::load(&files).unwrap())),
        template: None,
        protocol: Protocol::StepBatching,
    }
}

/// The model that most cases use: says nothing of sampling, has two end tokens.
fn plain() -> ServedModel {
    model(r#"{"eos_token_id":[256,257]}"#)
}

fn translated(model: &ServedModel, requested: &Requested) -> Result<ModelInferRequest, ApiError> {
    let params = resolve(requested, model, Some(PROMPT.len()), FRESH_SEED)?;
    let prompt = PromptRequest {
        phases: inflight_upstream::phases::Phases::Both,
        params: &params,
        tokens: &PROMPT,
        text: "",
        stop: &[],
        is_counted: true,
        request_id: "id",
        trace: None,
        timeout: None,
        generated: &[],
    };
    let request = infer_request("tensorrt_llm", &prompt, Handle::new(HANDLE));
    Ok(request.decode().unwrap())
}

fn chat_request(fields: &Value) -> Requested {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "x"}]});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    Requested::chat(&chat::parse(body.to_string().as_bytes()).unwrap().request)
}

fn completion_request(fields: &Value) -> Requested {
    let mut body = json!({"model": "m", "prompt": "x"});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    Requested::completion(
        &completions::parse(body.to_string().as_bytes())
            .unwrap()
            .request,
    )
}

/// Each input as its values, and the outputs asked for beyond those of every request.
fn readable(request: &ModelInferRequest) -> (BTreeMap<String, Value>, Vec<String>) {
    let tensors = Tensors::inputs(request).unwrap();
    let inputs = tensors.iter().map(|tensor| {
        let values = match tensor.datatype {
            DataType::Int32 => json!(tensor.values::<i32>().unwrap()),
            DataType::Uint64 => json!(tensor.values::<u64>().unwrap()),
            DataType::Fp32 => json!(tensor.values::<f32>().unwrap()),
            DataType::Bool => json!(tensor.values::<bool>().unwrap()),
            DataType::Bytes => json!(tensor.strings().unwrap()),
            other => panic!("no input is {other:?}"),
        };
        (tensor.name.to_owned(), values)
    });
    let always = ["output_ids", "inflight_finish_reason"];
    let outputs = request.outputs.iter().map(|output| output.name.clone());
    let outputs = outputs
        .filter(|name| !always.contains(&name.as_str()))
        .collect();
    (inputs.collect(), outputs)
}

#[test]
fn a_bare_request_sends_everything_the_sampler_reads() {
    let request = translated(&plain(), &chat_request(&json!({}))).unwrap();
    assert_eq!(
        (request.model_name.as_str(), request.id.as_str()),
        ("tensorrt_llm", "id")
    );
    let (inputs, outputs) = readable(&request);
    let expected = json!({
        "inflight_handle": [HANDLE],
        "input_ids": PROMPT,
        "input_lengths": [3],
        "request_output_len": [61],
        "streaming": [false],
        "exclude_input_in_output": [true],
        "temperature": [1.0],
        "runtime_top_k": [0],
        "runtime_top_p": [1.0],
        "seed": [FRESH_SEED],
        "end_id": [256],
        "pad_id": [256],
        "stop_words_list": [257, 1],
    });
    assert_eq!(json!(inputs), expected);
    assert_eq!(outputs, ["inflight_cached_tokens"]);
    let stop_words = request
        .inputs
        .iter()
        .find(|input| input.name == "stop_words_list")
        .unwrap();
    assert_eq!(stop_words.shape, [1, 2, 1]);
    let ids = request
        .inputs
        .iter()
        .find(|input| input.name == "input_ids")
        .unwrap();
    assert_eq!(ids.shape, [1, 3]);
}

#[test]
fn each_field_becomes_its_tensor() {
    // The fields, and how the inputs differ from those of a bare request (null: not sent).
    let cases = [
        (json!({"temperature": 0.25}), json!({"temperature": [0.25]})),
        (json!({"temperature": 0}), json!({"runtime_top_k": [1]})),
        (
            json!({"temperature": 0, "top_k": 7, "top_p": 0.5, "min_p": 0.5}),
            json!({"runtime_top_k": [1]}),
        ),
        (json!({"top_p": 0.5}), json!({"runtime_top_p": [0.5]})),
        (json!({"top_k": 7}), json!({"runtime_top_k": [7]})),
        (json!({"top_k": -1}), json!({})),
        (json!({"min_p": 0.25}), json!({"inflight_min_p": [0.25]})),
        (json!({"min_p": 0}), json!({})),
        (json!({"seed": 3}), json!({"seed": [3]})),
        (json!({"seed": -1}), json!({"seed": [u64::MAX]})),
        (
            json!({"repetition_penalty": 1.5}),
            json!({"repetition_penalty": [1.5]}),
        ),
        (json!({"repetition_penalty": 1}), json!({})),
        (
            json!({"presence_penalty": 0.5}),
            json!({"presence_penalty": [0.5]}),
        ),
        (
            json!({"frequency_penalty": -0.5}),
            json!({"frequency_penalty": [-0.5]}),
        ),
        (
            json!({"presence_penalty": 0, "frequency_penalty": 0}),
            json!({}),
        ),
        (json!({"min_tokens": 4}), json!({"min_tokens": [4]})),
        (json!({"min_tokens": 0}), json!({})),
        (json!({"max_tokens": 9}), json!({"request_output_len": [9]})),
        (
            json!({"max_completion_tokens": 9}),
            json!({"request_output_len": [9]}),
        ),
        (json!({"max_tokens": 61}), json!({})),
        (json!({"n": 3}), json!({"num_return_sequences": [3]})),
        (json!({"n": 1}), json!({})),
        (json!({"stream": true}), json!({"streaming": [true]})),
        (json!({"stop": ["x"]}), json!({"streaming": [true]})),
        (
            json!({"logit_bias": {"7": 1.5, "2": -100}}),
            json!({"inflight_logit_bias_ids": [2, 7], "inflight_logit_bias_values": [-100.0, 1.5]}),
        ),
        (
            json!({"ignore_eos": true}),
            json!({"end_id": null, "pad_id": null, "stop_words_list": null}),
        ),
        (
            json!({"stop_token_ids": [9, 256, 257, 9]}),
            json!({"stop_words_list": [257, 9, 1, 2]}),
        ),
        (
            json!({"stop_token_ids": [9], "ignore_eos": true}),
            json!({"end_id": null, "pad_id": null, "stop_words_list": [9, 1]}),
        ),
        (
            json!({"logprobs": true}),
            json!({"return_log_probs": [true]}),
        ),
        (
            json!({"logprobs": true, "top_logprobs": 2}),
            json!({"return_log_probs": [true], "inflight_num_top_log_probs": [2]}),
        ),
        (
            json!({"no_repeat_ngram_size": 2}),
            json!({"no_repeat_ngram_size": [2]}),
        ),
        (
            json!({"cache_salt": "s"}),
            json!({"inflight_cache_salt": ["s"]}),
        ),
        // A byte is a token here; both forms of the word, each with its end, then padding.
        (
            json!({"bad_words": ["ab"]}),
            json!({"bad_words_list": [97, 98, 32, 97, 98, 2, 5, -1, -1, -1]}),
        ),
        (
            json!({"guided_regex": "a+"}),
            json!({"guided_decoding_guide_type": ["regex"], "guided_decoding_guide": ["a+"]}),
        ),
        (
            json!({"response_format": {"type": "json_object"}}),
            json!({"guided_decoding_guide_type": ["json_schema"],
                   "guided_decoding_guide": [r#"{"type":"object","additionalProperties":true}"#]}),
        ),
        // A search draws no token, arrives in one piece, and reports all its beams where one is asked for.
        (
            json!({"num_beams": 3, "stream": true, "temperature": 0, "length_penalty": 0.5}),
            json!({"beam_width": [3], "len_penalty": [0.5], "early_stopping": [false]}),
        ),
        (
            json!({"use_beam_search": true, "n": 2, "early_stopping": true}),
            json!({"beam_width": [2], "len_penalty": [1.0], "early_stopping": [true],
                   "num_return_sequences": [2]}),
        ),
        (
            json!({"use_beam_search": true, "temperature": 0.5}),
            json!({"runtime_top_k": [1]}),
        ),
        (
            json!({"user": "u", "metadata": {"a": "b"}, "best_of": 1}),
            json!({}),
        ),
    ];
    let model = plain();
    let (bare, _) = readable(&translated(&model, &chat_request(&json!({}))).unwrap());
    for (fields, difference) in cases {
        let (inputs, _) = readable(&translated(&model, &chat_request(&fields)).unwrap());
        let mut expected = bare.clone();
        for (name, value) in difference.as_object().unwrap() {
            match value {
                Value::Null => expected.remove(name),
                value => expected.insert(name.clone(), value.clone()),
            };
        }
        assert_eq!(json!(inputs), json!(expected), "{fields}");
    }
}

#[test]
fn allowed_tokens_and_priorities_are_sent() {
    let model = plain();
    let fields = json!({"allowed_token_ids": [7, 9], "priority": -3});
    let request = translated(&model, &chat_request(&fields)).unwrap();
    let (inputs, _) = readable(&request);
    let bias = inputs["embedding_bias"].as_array().unwrap();
    assert_eq!(bias.len(), VOCABULARY as usize);
    // JSON has no infinity.
    let allowed: Vec<usize> = (0..bias.len()).filter(|id| !bias[*id].is_null()).collect();
    assert_eq!(allowed, [7, 9]);
    assert_eq!(
        request.parameters["priority"].parameter_choice,
        Some(ParameterChoice::Int64Param(47))
    );
    let bare = translated(&model, &chat_request(&json!({"priority": 0}))).unwrap();
    assert!(!bare.parameters.contains_key("priority"));
}

#[test]
fn tokens_whose_log_probabilities_are_wanted_are_named() {
    let fields = json!({"logprobs": true, "top_logprobs": 5, "logprob_token_ids": [9, 7]});
    let request = translated(&plain(), &chat_request(&fields)).unwrap();
    let (inputs, outputs) = readable(&request);
    assert_eq!(inputs["inflight_log_prob_ids"], json!([9, 7]));
    assert_eq!(inputs["inflight_num_top_log_probs"], json!([2]));
    assert!(
        outputs
            .iter()
            .any(|name| *name == "inflight_top_log_prob_ids")
    );
    let mut best_only = plain();
    let capabilities = &mut best_only.description.capabilities;
    capabilities.retain(|name| name != "log_prob_ids");
    let error = translated(&best_only, &chat_request(&fields)).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("logprob_token_ids"), "{error}");
}

#[test]
fn what_the_executor_lacks_or_cannot_have_together_is_refused_by_name() {
    let fields = [
        (
            json!({"response_format": {"type": "json_object"}}),
            "response_format",
        ),
        (json!({"guided_choice": ["a"]}), "guided_choice"),
        (json!({"num_beams": 2}), "use_beam_search"),
        (json!({"bad_words": ["a"]}), "bad_words"),
        (json!({"allowed_token_ids": [1]}), "allowed_token_ids"),
        (json!({"no_repeat_ngram_size": 2}), "no_repeat_ngram_size"),
        (json!({"cache_salt": "s"}), "cache_salt"),
        (json!({"priority": 1}), "priority"),
    ];
    let mut bare = plain();
    bare.description.capabilities.clear();
    for (extra, param) in fields {
        assert!(
            translated(&plain(), &chat_request(&extra)).is_ok(),
            "{extra}"
        );
        let error = translated(&bare, &chat_request(&extra)).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param));
        assert_eq!(error.code(), Some("unsupported_parameter"), "{error}");
    }
    for (extra, param) in [
        (json!({"num_beams": 5}), "use_beam_search"),
        (json!({"num_beams": 2, "top_p": 0.5}), "top_p"),
        (
            json!({"num_beams": 2, "logprobs": true, "top_logprobs": 1}),
            "top_logprobs",
        ),
        (
            json!({"allowed_token_ids": [VOCABULARY]}),
            "allowed_token_ids",
        ),
        (
            json!({"logprobs": true, "logprob_token_ids": [VOCABULARY]}),
            "logprob_token_ids",
        ),
        (
            json!({"num_beams": 2, "logprobs": true, "logprob_token_ids": [1]}),
            "logprob_token_ids",
        ),
    ] {
        let error = translated(&plain(), &chat_request(&extra)).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param), "{error}");
    }
}

#[test]
fn outputs_are_named_when_they_are_wanted() {
    let cases = [
        (chat_request(&json!({"stream": true})), vec![]),
        (
            chat_request(&json!({"stream": true, "stream_options": {"include_usage": true}})),
            vec!["inflight_cached_tokens"],
        ),
        (
            chat_request(&json!({"stream": true, "logprobs": true})),
            vec!["output_log_probs"],
        ),
        (
            completion_request(&json!({"stream": true, "logprobs": 2})),
            vec![
                "output_log_probs",
                "inflight_top_log_prob_ids",
                "inflight_top_log_probs",
            ],
        ),
        (
            completion_request(&json!({"stream": true, "echo": true})),
            vec![],
        ),
        (
            completion_request(&json!({"stream": true, "echo": true, "logprobs": 0})),
            vec!["output_log_probs", "inflight_prompt_log_probs"],
        ),
        (
            completion_request(&json!({"stream": true, "echo": true, "logprobs": 1})),
            vec![
                "output_log_probs",
                "inflight_top_log_prob_ids",
                "inflight_top_log_probs",
                "inflight_prompt_log_probs",
                "inflight_prompt_top_log_prob_ids",
                "inflight_prompt_top_log_probs",
            ],
        ),
    ];
    for (requested, expected) in cases {
        let (_, outputs) = readable(&translated(&plain(), &requested).unwrap());
        assert_eq!(outputs, expected, "{requested:?}");
    }
}

#[test]
fn absent_fields_take_the_models_own_defaults() {
    let sampled = r#"{"eos_token_id":2,"pad_token_id":0,"do_sample":true,"temperature":0.5,
        "top_k":20,"top_p":0.75,"min_p":0.25,"repetition_penalty":1.5}"#;
    let greedy = r#"{"eos_token_id":2,"do_sample":false,"temperature":0.5,"top_k":20}"#;
    let cases = [
        (
            sampled,
            json!({}),
            json!({"temperature": [0.5], "runtime_top_k": [20], "runtime_top_p": [0.75],
                   "inflight_min_p": [0.25], "repetition_penalty": [1.5], "pad_id": [0]}),
        ),
        (
            sampled,
            json!({"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1}),
            json!({"temperature": [1.0], "runtime_top_k": [0], "runtime_top_p": [1.0], "pad_id": [0]}),
        ),
        (
            greedy,
            json!({}),
            json!({"temperature": [1.0], "runtime_top_k": [1], "runtime_top_p": [1.0], "pad_id": [2]}),
        ),
        (
            greedy,
            json!({"temperature": 0.75}),
            json!({"temperature": [0.75], "runtime_top_k": [20], "runtime_top_p": [1.0], "pad_id": [2]}),
        ),
    ];
    for (config, fields, expected) in cases {
        let (inputs, _) = readable(&translated(&model(config), &chat_request(&fields)).unwrap());
        let sampling: BTreeMap<_, _> = inputs
            .into_iter()
            .filter(|(name, _)| {
                name.starts_with("runtime_")
                    || [
                        "temperature",
                        "inflight_min_p",
                        "repetition_penalty",
                        "pad_id",
                    ]
                    .contains(&name.as_str())
            })
            .collect();
        assert_eq!(json!(sampling), expected, "{config} {fields}");
    }
}

#[test]
fn a_default_that_the_executor_lacks_is_left_out_and_an_asked_one_refused() {
    let defaults = r#"{"eos_token_id":256,"do_sample":true,"min_p":0.1,"repetition_penalty":1.2}"#;
    let mut model = model(defaults);
    let sent = |model: &ServedModel| {
        let (tensors, _) = readable(&translated(model, &chat_request(&json!({}))).unwrap());
        let names = ["inflight_min_p", "repetition_penalty"];
        names.map(|name| tensors.contains_key(name))
    };
    assert_eq!(sent(&model), [true, true]);
    model.description.capabilities.clear();
    assert_eq!(sent(&model), [false, false]);
    for field in ["min_p", "repetition_penalty"] {
        let error = translated(&model, &chat_request(&json!({ field: 0.5 }))).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(field));
    }
}

#[test]
fn a_request_that_does_not_fit_is_refused_with_its_field() {
    let short = ServedModel {
        description: ModelDescription {
            max_seq_len: 3,
            ..plain().description
        },
        ..plain()
    };
    let cases = [
        (
            plain(),
            chat_request(&json!({"max_tokens": 62})),
            "messages",
        ),
        (
            plain(),
            completion_request(&json!({"max_tokens": 62})),
            "prompt",
        ),
        (
            plain(),
            completion_request(&json!({"max_tokens": 2_147_483_647})),
            "prompt",
        ),
        (short, chat_request(&json!({})), "messages"),
    ];
    for (model, requested, param) in cases {
        let error = translated(&model, &requested).unwrap_err();
        assert_eq!(error.code(), Some("context_length_exceeded"));
        assert_eq!(error.param.as_deref(), Some(param));
    }
}
