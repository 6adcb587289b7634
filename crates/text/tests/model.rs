//! Which file of a model says what.
#![allow(clippy::unwrap_used, reason = "helpers of tests may, like tests")]

use inflight_text::{
    GenerationConfig, ModelFiles, TemplateError, TemplateInput, TextError, TextModel,
};
use serde_json::{Value, json};

#[path = "support/fixtures.rs"]
mod fixtures;

fn files(entries: &[(&str, Value)]) -> ModelFiles {
    let mut files = ModelFiles::new();
    files.insert(
        "tokenizer.json".to_owned(),
        fixtures::bytes("tokenizers/byte_level.json"),
    );
    for (name, value) in entries {
        let bytes = match value {
            Value::String(text) => text.clone().into_bytes(),
            value => serde_json::to_vec(value).unwrap(),
        };
        files.insert((*name).to_owned(), bytes);
    }
    files
}

fn render(files: &ModelFiles, tools: Option<Value>) -> Result<String, TemplateError> {
    let model = TextModel::load(files).unwrap();
    model.chat_template().unwrap().render(&TemplateInput {
        messages: json!([{"role": "user", "content": "hi"}]),
        tools,
        add_generation_prompt: true,
        extra: serde_json::Map::new(),
    })
}

#[test]
fn end_ids_come_from_the_first_file_that_has_them() {
    let tokenizer = TextModel::load(&files(&[])).unwrap();
    let end = tokenizer.tokenizer().token_id("<|end|>").unwrap();
    let config = (
        "tokenizer_config.json",
        json!({"eos_token": {"content": "<|end|>"}}),
    );
    type Case<'a> = (&'a [(&'a str, Value)], Vec<u32>);
    let cases: [Case<'_>; 8] = [
        (&[], vec![]),
        (std::slice::from_ref(&config), vec![end]),
        (
            &[("special_tokens_map.json", json!({"eos_token": "<|end|>"}))],
            vec![end],
        ),
        (
            &[("config.json", json!({"eos_token_id": 5})), config.clone()],
            vec![5],
        ),
        (
            &[("config.json", json!({"text_config": {"eos_token_id": [6]}}))],
            vec![6],
        ),
        (
            &[
                ("generation_config.json", json!({"eos_token_id": [3, 4, 3]})),
                ("config.json", json!({"eos_token_id": 5})),
            ],
            vec![3, 4],
        ),
        (
            &[("generation_config.json", json!({"eos_token_id": 3}))],
            vec![3],
        ),
        (
            &[
                ("generation_config.json", json!({"eos_token_id": null})),
                ("config.json", json!({"eos_token_id": -1})),
                config.clone(),
            ],
            vec![end],
        ),
    ];
    for (entries, expected) in cases {
        let model = TextModel::load(&files(entries)).unwrap();
        assert_eq!(model.generation().eos_token_ids, expected, "{entries:?}");
    }
}

#[test]
fn sampling_defaults_are_read() {
    let model = TextModel::load(&files(&[
        (
            "generation_config.json",
            json!({"do_sample": true, "temperature": 1, "top_k": 20, "top_p": 0.8, "min_p": 0.05,
                   "repetition_penalty": 1.05, "max_new_tokens": 64, "transformers_version": "5",
                   "bos_token_id": 1, "pad_token_id": [2]}),
        ),
        (
            "config.json",
            json!({"temperature": 9.0, "pad_token_id": 7}),
        ),
    ]))
    .unwrap();
    assert_eq!(
        *model.generation(),
        GenerationConfig {
            eos_token_ids: vec![],
            pad_token_id: Some(2),
            bos_token_id: Some(1),
            do_sample: Some(true),
            temperature: Some(1.0),
            top_k: Some(20),
            top_p: Some(0.8),
            min_p: Some(0.05),
            repetition_penalty: Some(1.05),
            max_new_tokens: Some(64),
        }
    );
}

#[test]
fn templates_are_found_in_their_order() {
    let list = json!({"chat_template": [
        {"name": "default", "template": "default"}, {"name": "tool_use", "template": "tools"}
    ]});
    let text = json!({"chat_template": "config"});
    let cases = [
        (
            files(&[("tokenizer_config.json", text.clone())]),
            "config",
            "config",
        ),
        (
            files(&[("tokenizer_config.json", list.clone())]),
            "default",
            "tools",
        ),
        (
            files(&[
                ("tokenizer_config.json", list),
                ("chat_template.jinja", json!("file")),
            ]),
            "file",
            "file",
        ),
    ];
    for (files, plain, with_tools) in cases {
        assert_eq!(render(&files, None).unwrap(), plain);
        let tools = Some(json!([{"type": "function"}]));
        assert_eq!(render(&files, tools).unwrap(), with_tools);
    }
    assert!(
        TextModel::load(&files(&[]))
            .unwrap()
            .chat_template()
            .is_none()
    );
}

#[test]
fn special_tokens_are_variables() {
    let files = files(&[
        (
            "tokenizer_config.json",
            json!({
                "bos_token": {"content": "<b>", "lstrip": false}, "eos_token": "<e>",
                "pad_token": null, "additional_special_tokens": ["<x>", {"content": "<y>"}],
                "extra_special_tokens": {"image_token": "<img>"}, "add_bos_token": true,
            }),
        ),
        (
            "special_tokens_map.json",
            json!({"eos_token": "<old>", "unk_token": "<u>"}),
        ),
        (
            "chat_template.jinja",
            json!(
                "{{ bos_token ~ eos_token ~ unk_token ~ image_token }} {{ pad_token is defined }} {{ additional_special_tokens[1] }}"
            ),
        ),
    ]);
    assert_eq!(render(&files, None).unwrap(), "<b><e><u><img> False <y>");
}

#[test]
fn a_broken_template_does_not_fail_the_model() {
    let files = files(&[("chat_template.jinja", json!("{% if %}"))]);
    assert!(matches!(
        render(&files, None),
        Err(TemplateError::Syntax { .. })
    ));
    let model = TextModel::load(&files).unwrap();
    assert!(
        !model
            .tokenizer()
            .encode("still works", true)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn broken_files_are_named() {
    for name in [
        "generation_config.json",
        "config.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
    ] {
        for content in ["{", "[1]", ""] {
            let error = TextModel::load(&files(&[(name, json!(content))])).unwrap_err();
            assert!(
                matches!(error, TextError::InvalidFile { name: named, .. } if named == name),
                "{error}"
            );
        }
    }
    assert!(matches!(
        TextModel::load(&ModelFiles::new()),
        Err(TextError::MissingFile {
            name: "tokenizer.json"
        })
    ));
}
