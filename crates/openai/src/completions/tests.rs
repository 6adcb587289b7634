//! Completions bodies in, requests or errors out: the forms of the prompt, and what chat does not have.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::fields::{FIELDS, Treatment};

fn with(extra: Value) -> Vec<u8> {
    let mut body = json!({"model": "m", "prompt": "Hi"});
    let map = body.as_object_mut().unwrap();
    for (name, value) in extra.as_object().unwrap() {
        map.insert(name.clone(), value.clone());
    }
    serde_json::to_vec(&body).unwrap()
}

fn accept(extra: Value) -> Parsed<CompletionRequest> {
    let body = with(extra);
    parse(&body).unwrap_or_else(|error| panic!("{}: {error:?}", String::from_utf8_lossy(&body)))
}

fn refuse(extra: Value) -> ApiError {
    let body = with(extra);
    match parse(&body) {
        Err(error) => error,
        Ok(parsed) => panic!("{} gave {parsed:?}", String::from_utf8_lossy(&body)),
    }
}

#[test]
fn the_four_forms_of_a_prompt() {
    let text = |text: &str| Prompt::Text(text.to_owned());
    for (prompt, prompts) in [
        (json!("a"), vec![text("a")]),
        (json!(""), vec![text("")]),
        (json!(["a", ""]), vec![text("a"), text("")]),
        (
            json!([1, 2, 2147483647]),
            vec![Prompt::Tokens(vec![1, 2, 2147483647])],
        ),
        (
            json!([[1], [2, 3]]),
            vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])],
        ),
    ] {
        assert_eq!(accept(json!({"prompt": prompt})).request.prompts, prompts);
    }
}

#[test]
fn bad_values_are_named_with_openai_words() {
    for (extra, param, code) in [
        (
            json!({"prompt": null}),
            "prompt",
            "missing_required_parameter",
        ),
        (json!({"prompt": 5}), "prompt", "invalid_type"),
        (json!({"prompt": {}}), "prompt", "invalid_type"),
        (json!({"prompt": []}), "prompt", "empty_array"),
        (json!({"prompt": [[1], []]}), "prompt[1]", "empty_array"),
        (json!({"prompt": [1, "a"]}), "prompt", "invalid_type"),
        (json!({"prompt": ["a", 1]}), "prompt", "invalid_type"),
        (json!({"prompt": [1, [1]]}), "prompt", "invalid_type"),
        (json!({"prompt": [-1]}), "prompt", "invalid_type"),
        (json!({"prompt": [1.5]}), "prompt", "invalid_type"),
        (json!({"prompt": [2147483648u32]}), "prompt", "invalid_type"),
        (json!({"prompt": [[[1]]]}), "prompt", "invalid_type"),
        (
            json!({"prompt": vec!["a"; 2049]}),
            "prompt",
            "array_above_max_length",
        ),
        (
            json!({"prompt": vec!["a"; 17], "n": 128}),
            "prompt",
            "array_above_max_length",
        ),
        (json!({"logprobs": true}), "logprobs", "invalid_type"),
        (
            json!({"logprobs": 21}),
            "logprobs",
            "integer_above_max_value",
        ),
        (json!({"echo": "yes"}), "echo", "invalid_type"),
        (json!({"best_of": 0}), "best_of", "integer_below_min_value"),
        (
            json!({"best_of": 3, "n": 2}),
            "best_of",
            "unsupported_parameter",
        ),
        (json!({"suffix": "end"}), "suffix", "unsupported_parameter"),
        (
            json!({"max_tokens": 0}),
            "max_tokens",
            "integer_below_min_value",
        ),
    ] {
        let error = refuse(extra.clone());
        assert_eq!(error.param.as_deref(), Some(param), "{error}");
        assert_eq!(error.code(), Some(code), "{error}");
        assert!(error.message.len() < 600, "{}", error.message);
    }
}

#[test]
fn every_applied_field_of_the_table_is_read() {
    for field in FIELDS {
        let here = crate::fields::find(Endpoint::Completions, field.name).is_some();
        if here && matches!(field.treatment, Treatment::Applied(_)) {
            let value = match field.name {
                // Any object is one.
                "guided_json" | "json_schema" | "structural_tag" => json!(["no such value"]),
                _ => json!({"no": ["such", "value"]}),
            };
            let error = refuse(json!({field.name: value}));
            let param = error.param.unwrap();
            assert!(param.starts_with(field.name), "{} {param}", field.name);
        }
    }
}

#[test]
fn what_only_completions_have() {
    let request = accept(json!({"echo": true, "logprobs": 0})).request;
    assert!(request.echo);
    assert_eq!(request.logprobs, Some(0));
    assert_eq!(accept(json!({})).request.logprobs, None);
}

#[test]
fn neutral_values_count_as_applied() {
    for extra in [
        json!({"best_of": 1}),
        json!({"best_of": 2, "n": 2}),
        json!({"best_of": 1, "n": 2}),
        json!({"suffix": ""}),
        json!({"suffix": null, "echo": null, "logprobs": null}),
    ] {
        assert!(accept(extra.clone()).ignored.is_empty(), "{extra}");
    }
}

#[test]
fn chat_fields_are_ignored_by_name() {
    let parsed = accept(json!({"messages": [1], "chat_template_kwargs": {"a": 1}}));
    assert_eq!(
        parsed.ignored.header_value().unwrap(),
        "messages, chat_template_kwargs"
    );
    for (field, meant) in [
        ("max_completion_tokens", "max_tokens"),
        ("top_logprobs", "logprobs"),
    ] {
        let error = refuse(json!({field: 5}));
        assert_eq!(error.param.as_deref(), Some(field));
        assert!(error.message.contains(&format!("`{meant}`")), "{error}");
    }
}

#[test]
fn nothing_is_generated_only_where_the_prompt_is_scored() {
    let request = accept(json!({"echo": true, "max_tokens": 0, "logprobs": 1})).request;
    assert_eq!(request.generation.max_tokens, Some(0));
    let error = refuse(json!({"max_tokens": 0}));
    assert!(error.message.contains("`echo`"), "{error}");
}

proptest! {
    #[test]
    fn any_bytes_give_a_request_or_a_400(body in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Err(error) = parse(&body) {
            prop_assert_eq!(error.status(), 400);
        }
    }

    #[test]
    fn any_prompt_gives_a_request_or_a_400_that_names_it(
        prompt in "(\\[|\\]|,|1|\"a\"|-1|null|\\{\\}| ){0,12}",
    ) {
        let body = format!(r#"{{"model":"m","prompt":{prompt}}}"#);
        match parse(body.as_bytes()) {
            Ok(parsed) => prop_assert!(!parsed.request.prompts.is_empty()),
            Err(error) => prop_assert_eq!(error.status(), 400),
        }
    }
}
