//! Chat bodies in, requests or errors out: tables over every field.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::fields::{FIELDS, Treatment};
use crate::{Extensions, GuideKind, Sampling, Truncation};

fn with(extra: Value) -> Vec<u8> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]});
    let map = body.as_object_mut().unwrap();
    for (name, value) in extra.as_object().unwrap() {
        map.insert(name.clone(), value.clone());
    }
    serde_json::to_vec(&body).unwrap()
}

fn accept(extra: Value) -> Parsed<ChatRequest> {
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

fn ignored(extra: Value) -> String {
    accept(extra).ignored.header_value().unwrap_or_default()
}

#[test]
fn an_absent_field_stays_absent() {
    let parsed = accept(json!({}));
    assert!(parsed.ignored.is_empty());
    assert_eq!(parsed.request.messages.len(), 1);
    assert_eq!(
        parsed.request.generation,
        Generation {
            model: "m".into(),
            n: 1,
            ..Generation::default()
        }
    );
}

#[test]
fn every_applied_field_reaches_the_request() {
    let parsed = accept(json!({
        "max_completion_tokens": 9, "temperature": 0.5, "top_p": 0.9, "n": 3, "stop": ["a", "b"],
        "seed": -5, "presence_penalty": -2, "frequency_penalty": 2.0, "logprobs": true,
        "logit_bias": {"7": 1.5, "3": -100}, "top_logprobs": 4, "stream": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true}, "user": "u", "top_k": 40, "min_p": 0.1,
        "repetition_penalty": 1.1, "min_tokens": 2, "ignore_eos": true, "stop_token_ids": [5, 6],
        "skip_special_tokens": false, "add_special_tokens": true,
        "chat_template_kwargs": {"enable_thinking": true}, "add_generation_prompt": false
    }));
    assert_eq!(parsed.ignored.header_value(), None);
    assert_eq!(parsed.request.logprobs, Some(4));
    let template = parsed.request.template;
    assert!(!template.add_generation_prompt && !template.continue_final_message);
    assert_eq!(
        Value::from(template.kwargs),
        json!({"enable_thinking": true})
    );
    assert_eq!(
        parsed.request.generation,
        Generation {
            model: "m".into(),
            max_tokens: Some(9),
            fits_context: false,
            n: 3,
            stop: vec!["a".into(), "b".into()],
            stream: true,
            include_usage: true,
            continuous_usage: true,
            skip_special_tokens: Some(false),
            add_special_tokens: Some(true),
            sampling: Sampling {
                temperature: Some(0.5),
                top_p: Some(0.9),
                top_k: Some(40),
                min_p: Some(0.1),
                repetition_penalty: Some(1.1),
                presence_penalty: Some(-2.0),
                frequency_penalty: Some(2.0),
                seed: Some(-5),
                logit_bias: vec![(3, -100.0), (7, 1.5)],
                min_tokens: Some(2),
                ignore_eos: true,
                stop_token_ids: vec![5, 6],
            },
            extensions: None,
        }
    );
}

#[test]
fn the_newer_name_of_max_tokens_wins_and_the_other_is_reported() {
    for (old, new, reported) in [(50, 1, Some("max_tokens")), (9, 9, None)] {
        let parsed = accept(json!({"max_tokens": old, "max_completion_tokens": new}));
        assert_eq!(parsed.request.generation.max_tokens, Some(new));
        assert_eq!(parsed.ignored.header_value().as_deref(), reported);
    }
}

#[test]
fn usage_in_every_event_needs_usage_at_all() {
    let parsed =
        accept(json!({"stream": true, "stream_options": {"continuous_usage_stats": true}}));
    let generation = parsed.request.generation;
    assert!(!generation.include_usage && !generation.continuous_usage);
}

#[test]
fn every_applied_field_of_the_table_is_read() {
    // A value that no field takes: a parser that does not look at its field would let it pass.
    for field in FIELDS {
        let chat = crate::fields::find(Endpoint::Chat, field.name).is_some();
        if chat && matches!(field.treatment, Treatment::Applied(_)) {
            let value = match field.name {
                // Any object is one.
                "chat_template_kwargs" | "guided_json" | "json_schema" | "structural_tag" => {
                    json!(["no such value"])
                }
                _ => json!({"no": ["such", "value"]}),
            };
            let error = refuse(json!({field.name: value}));
            let param = error.param.unwrap();
            assert!(param.starts_with(field.name), "{} {param}", field.name);
            assert_eq!(error.kind.status(), 400);
        }
    }
}

#[test]
fn null_is_absent_for_every_field() {
    for field in FIELDS {
        let required = field.name == "messages";
        if !required && !field.name.contains('.') {
            assert_eq!(ignored(json!({field.name: null})), "", "{}", field.name);
        }
    }
}

#[test]
fn bad_values_are_named_with_openai_words() {
    let long = "x".repeat(2000);
    let many: Vec<String> = (0..17).map(|index| index.to_string()).collect();
    for (extra, param, code) in [
        (
            json!({"messages": null}),
            "messages",
            "missing_required_parameter",
        ),
        (json!({"model": ""}), "model", "invalid_value"),
        (json!({"model": 5}), "model", "invalid_type"),
        (json!({"model": long}), "model", "string_above_max_length"),
        (json!({"temperature": "hot"}), "temperature", "invalid_type"),
        (
            json!({"temperature": 2.1}),
            "temperature",
            "decimal_above_max_value",
        ),
        (
            json!({"temperature": -0.1}),
            "temperature",
            "decimal_below_min_value",
        ),
        (json!({"temperature": true}), "temperature", "invalid_type"),
        (json!({"top_p": 0}), "top_p", "invalid_value"),
        (json!({"top_p": 1.01}), "top_p", "decimal_above_max_value"),
        (
            json!({"presence_penalty": 3}),
            "presence_penalty",
            "decimal_above_max_value",
        ),
        (
            json!({"frequency_penalty": -3}),
            "frequency_penalty",
            "decimal_below_min_value",
        ),
        (json!({"n": 0}), "n", "integer_below_min_value"),
        (json!({"n": 129}), "n", "integer_above_max_value"),
        (json!({"n": 1e30}), "n", "integer_above_max_value"),
        (json!({"n": 1.5}), "n", "invalid_type"),
        (json!({"n": "2"}), "n", "invalid_type"),
        (
            json!({"max_tokens": 0}),
            "max_tokens",
            "integer_below_min_value",
        ),
        (
            json!({"max_tokens": -1}),
            "max_tokens",
            "integer_below_min_value",
        ),
        (
            json!({"max_tokens": 1e18}),
            "max_tokens",
            "integer_above_max_value",
        ),
        (
            json!({"max_completion_tokens": 0}),
            "max_completion_tokens",
            "integer_below_min_value",
        ),
        (
            json!({"min_tokens": 5, "max_tokens": 4}),
            "min_tokens",
            "invalid_value",
        ),
        (json!({"stop": 5}), "stop", "invalid_type"),
        (json!({"stop": ""}), "stop", "invalid_value"),
        (json!({"stop": ["a", ""]}), "stop", "invalid_value"),
        (json!({"stop": ["a", 5]}), "stop", "invalid_type"),
        (json!({"stop": long}), "stop", "string_above_max_length"),
        (json!({"stop": many}), "stop", "array_above_max_length"),
        (json!({"seed": 1e19}), "seed", "integer_above_max_value"),
        (json!({"seed": -1e19}), "seed", "integer_below_min_value"),
        (json!({"seed": "a"}), "seed", "invalid_type"),
        (
            json!({"logit_bias": {"x": 1}}),
            "logit_bias",
            "invalid_value",
        ),
        (
            json!({"logit_bias": {"-1": 1}}),
            "logit_bias",
            "invalid_value",
        ),
        (
            json!({"logit_bias": {"9999999999": 1}}),
            "logit_bias",
            "invalid_value",
        ),
        (
            json!({"logit_bias": {"5": 101}}),
            "logit_bias.5",
            "decimal_above_max_value",
        ),
        (json!({"logit_bias": [1]}), "logit_bias", "invalid_type"),
        (json!({"logprobs": 5}), "logprobs", "invalid_type"),
        (json!({"top_logprobs": 2}), "top_logprobs", "invalid_value"),
        (
            json!({"logprobs": true, "top_logprobs": 21}),
            "top_logprobs",
            "integer_above_max_value",
        ),
        (json!({"stream": "yes"}), "stream", "invalid_type"),
        (
            json!({"stream_options": {"include_usage": true}}),
            "stream_options",
            "invalid_value",
        ),
        (
            json!({"stream": true, "stream_options": []}),
            "stream_options",
            "invalid_type",
        ),
        (
            json!({"stream": true, "stream_options": {"include_usage": 1}}),
            "stream_options.include_usage",
            "invalid_type",
        ),
        (json!({"top_k": -2}), "top_k", "integer_below_min_value"),
        (json!({"min_p": 1.5}), "min_p", "decimal_above_max_value"),
        (
            json!({"repetition_penalty": 0}),
            "repetition_penalty",
            "decimal_below_min_value",
        ),
        (json!({"ignore_eos": 1}), "ignore_eos", "invalid_type"),
        (
            json!({"stop_token_ids": [1, -1]}),
            "stop_token_ids[1]",
            "integer_below_min_value",
        ),
        (
            json!({"stop_token_ids": 1}),
            "stop_token_ids",
            "invalid_type",
        ),
        (json!({"top_logprobs": 0}), "top_logprobs", "invalid_value"),
        (
            json!({"chat_template_kwargs": [1]}),
            "chat_template_kwargs",
            "invalid_type",
        ),
        (
            json!({"chat_template_kwargs": {"messages": []}}),
            "chat_template_kwargs.messages",
            "invalid_value",
        ),
        (
            json!({"continue_final_message": true}),
            "continue_final_message",
            "invalid_value",
        ),
        (
            json!({"continue_final_message": true, "add_generation_prompt": true, "messages": [
                {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
            ]}),
            "continue_final_message",
            "invalid_value",
        ),
        (
            json!({"messages": null}),
            "messages",
            "missing_required_parameter",
        ),
        (json!({"messages": "Hi"}), "messages", "invalid_type"),
        (json!({"messages": []}), "messages", "empty_array"),
        (json!({"messages": [5]}), "messages[0]", "invalid_type"),
        (
            json!({"messages": [{}]}),
            "messages[0].role",
            "missing_required_parameter",
        ),
        (
            json!({"messages": [{"role": "a wizard", "content": ""}]}),
            "messages[0].role",
            "invalid_value",
        ),
        (
            json!({"messages": [{"role": "asistant", "content": ""}]}),
            "messages[0].role",
            "invalid_value",
        ),
        (
            json!({"messages": [{"role": "user"}]}),
            "messages[0].content",
            "missing_required_parameter",
        ),
        (
            json!({"messages": [{"role": "user", "content": 5}]}),
            "messages[0].content",
            "invalid_type",
        ),
        (
            json!({"messages": [{"role": "user", "content": [5]}]}),
            "messages[0].content[0]",
            "invalid_type",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
            "messages[0].content[0].text",
            "missing_required_parameter",
        ),
        (
            json!({"messages": [{"role": "user", "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}
            ]}]}),
            "messages[0].content[1]",
            "unsupported_value",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
            ]}]}),
            "messages[0].content[0]",
            "unsupported_value",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content[0].image_url",
            "missing_required_parameter",
        ),
        (
            json!({"messages": [{"role": "user", "content": [
                {"type": "image_url", "image_url": 5}
            ]}]}),
            "messages[0].content[0].image_url",
            "invalid_type",
        ),
        (
            json!({"messages": [{"role": "user", "content": [
                {"type": "image_url", "image_url": {}}
            ]}]}),
            "messages[0].content[0].image_url.url",
            "missing_required_parameter",
        ),
        (
            json!({"messages": [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "data:", "detail": "most"}}
            ]}]}),
            "messages[0].content[0].image_url.detail",
            "invalid_value",
        ),
        (
            json!({"messages": [{"role": "user", "content": [
                {"type": "input_image", "file_id": "file-1"}
            ]}]}),
            "messages[0].content[0].file_id",
            "unsupported_parameter",
        ),
        (
            json!({"messages": [{"role": "tool", "content": "5"}]}),
            "messages[0].tool_call_id",
            "missing_required_parameter",
        ),
        (
            json!({"messages": [{"role": "function", "content": "5"}]}),
            "messages[0].name",
            "missing_required_parameter",
        ),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}),
            "messages[0].tool_calls[0].function",
            "missing_required_parameter",
        ),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{"type": "custom"}]}]}),
            "messages[0].tool_calls[0].custom",
            "missing_required_parameter",
        ),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{"type": "shell"}]}]}),
            "messages[0].tool_calls[0]",
            "unsupported_value",
        ),
        (
            json!({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}),
            "messages[0].audio",
            "unsupported_parameter",
        ),
    ] {
        let error = refuse(extra.clone());
        assert_eq!(error.param.as_deref(), Some(param), "{extra}: {error}");
        assert_eq!(error.code(), Some(code), "{extra}: {error}");
        assert_eq!(error.status(), 400);
        assert!(error.message.contains('`'), "{}", error.message);
        assert!(error.message.len() < 600, "{}", error.message);
    }
}

#[test]
fn messages_say_what_failed_and_what_to_do() {
    assert_eq!(
        refuse(json!({"temperature": "hot"})).message,
        "Invalid type for `temperature`: expected a number, but got the string `\"hot\"` instead."
    );
    assert_eq!(
        refuse(json!({"n": 500})).message,
        "Invalid value for `n`: `500`. Send a value from 1 to 128."
    );
}

#[test]
fn bodies_that_are_not_json_objects_are_refused() {
    for (body, start) in [
        (b"".as_slice(), "The request body is empty."),
        (b" \n", "The request body is empty."),
        (b"{", "The request body is not valid JSON: EOF"),
        (
            b"{\"model\": }",
            "The request body is not valid JSON: expected value at line 1 column 11",
        ),
        (
            b"{} x",
            "The request body is not valid JSON: trailing characters",
        ),
        (b"[]", "The request body must be a JSON object"),
        (b"5", "The request body must be a JSON object"),
        (b"\"\"", "The request body must be a JSON object"),
        (
            b"{\"model\": \"\xff\"}",
            "The request body is not valid UTF-8 at byte `11`",
        ),
    ] {
        let error = parse(body).unwrap_err();
        assert!(error.message.starts_with(start), "{}", error.message);
        assert_eq!((error.status(), error.param), (400, None));
    }
}

#[test]
fn depth_and_width_are_bounded() {
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    for name in [
        "messages",
        "stop",
        "metadata",
        "tools",
        "unknown",
        "temperature",
    ] {
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"Hi"}}],"{name}":{deep}}}"#
        );
        // No stack overflow; what the answer is depends on the field.
        let _ = parse(body.as_bytes());
    }
    let wide: String = (0..100_000)
        .map(|index| format!(",\"f{index}\":1"))
        .collect();
    let body = format!(r#"{{"model":"m"{wide}}}"#);
    assert_eq!(parse(body.as_bytes()).unwrap_err().status(), 400);
    let some: String = (0..129).map(|index| format!(",\"f{index}\":1")).collect();
    let error = parse(format!(r#"{{"model":"m"{some}}}"#).as_bytes()).unwrap_err();
    assert!(error.message.starts_with("Too many fields"), "{error}");
}

#[test]
fn a_lone_surrogate_is_explained() {
    let body = br#"{"model":"m","messages":[{"role":"user","content":"\ud800"}]}"#;
    let error = parse(body).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("messages[0].content"));
    assert!(error.message.contains("surrogate"), "{error}");
}

#[test]
fn a_repeated_name_takes_the_last_value() {
    let body = br#"{"model":"a","model":"b","messages":[{"role":"user","content":"Hi"}]}"#;
    assert_eq!(parse(body).unwrap().request.generation.model, "b");
}

#[test]
fn neutral_values_count_as_applied() {
    for extra in [
        json!({"tools": [], "tool_choice": "none", "functions": [], "function_call": "none"}),
        json!({"tool_choice": "auto", "function_call": "auto"}),
        json!({"response_format": {"type": "text"}, "modalities": ["text"], "store": false}),
        json!({"metadata": {}, "service_tier": "auto", "verbosity": "medium", "n": 1}),
        json!({"logit_bias": {}, "stop": [], "stop_token_ids": [], "user": "u"}),
        json!({"detokenize": true, "num_beams": 1, "length_penalty": 1.0, "echo": false}),
        json!({"parallel_tool_calls": true, "reasoning_effort": "none", "top_k": -1}),
        json!({"stream": true, "stream_options": {"include_obfuscation": false}}),
    ] {
        assert_eq!(ignored(extra.clone()), "", "{extra}");
    }
}

#[test]
fn fields_that_would_change_the_answer_are_refused_by_name() {
    for (extra, param) in [
        (json!({"functions": [{"name": "f"}]}), "functions"),
        (json!({"modalities": ["text", "audio"]}), "modalities"),
        (json!({"audio": {"voice": "x"}}), "audio"),
        (
            json!({"web_search_options": {"search_context_size": "low"}}),
            "web_search_options",
        ),
        (json!({"moderation": {"model": "x"}}), "moderation"),
        (
            json!({"guided_whitespace_pattern": "x"}),
            "guided_whitespace_pattern",
        ),
        (
            json!({"structured_outputs": {"regex": "x", "whitespace_pattern": " "}}),
            "structured_outputs.whitespace_pattern",
        ),
        (json!({"detokenize": false}), "detokenize"),
        (json!({"reasoning": {"effort": "low"}}), "reasoning"),
        (json!({"lora_request": {"lora_name": "a"}}), "lora_request"),
        (json!({"stop_words": ["x"]}), "stop_words"),
        (json!({"max_token": 5}), "max_token"),
        (json!({"Temperature": 0.5}), "Temperature"),
    ] {
        let error = refuse(extra.clone());
        assert_eq!(error.param.as_deref(), Some(param), "{extra}");
        assert_eq!(error.code(), Some("unsupported_parameter"), "{extra}");
    }
}

/// The guide of a request, by type and text.
fn guide(extra: Value) -> Option<(GuideKind, String)> {
    let generation = accept(extra).request.generation;
    let guide = generation.extensions?.guide?;
    Some((guide.kind, guide.text.to_string()))
}

#[test]
fn every_form_of_a_guide_is_read() {
    use GuideKind::*;
    let any = r#"{"type":"object","additionalProperties":true}"#;
    let schema = json!({"type": "integer"});
    let written = r#"{"type":"integer"}"#;
    let tags = json!({"structures": [], "triggers": []});
    let format = |format: Value| json!({"response_format": format});
    let outputs = |outputs: Value| json!({"structured_outputs": outputs});
    for (extra, kind, text) in [
        (format(json!({"type": "json_object"})), JsonSchema, any),
        (
            format(json!({"type": "json_object", "schema": schema})),
            JsonSchema,
            written,
        ),
        (
            format(json!({"type": "json", "schema": schema})),
            JsonSchema,
            written,
        ),
        (
            format(
                json!({"type": "json_schema", "json_schema": {"name": "a", "strict": true, "schema": schema}}),
            ),
            JsonSchema,
            written,
        ),
        (
            format(
                json!({"type": "json_schema", "json_schema": {"name": "a", "description": "b"}}),
            ),
            JsonSchema,
            any,
        ),
        // As in trtllm-serve.
        (
            format(json!({"type": "json_schema", "json_schema": schema})),
            JsonSchema,
            written,
        ),
        // As in guidance, which sends both.
        (
            json!({"guided_regex": "a+", "structured_outputs": {"regex": "a+"}}),
            Regex,
            "a+",
        ),
        (format(json!({"type": "regex", "regex": "a+"})), Regex, "a+"),
        (
            format(json!({"type": "ebnf", "ebnf": "root ::= \"a\""})),
            Grammar,
            "root ::= \"a\"",
        ),
        (outputs(json!({"json": schema})), JsonSchema, written),
        (outputs(json!({"json": written})), JsonSchema, written),
        (outputs(json!({"json_object": true})), JsonSchema, any),
        (outputs(json!({"regex": "a+"})), Regex, "a+"),
        (
            outputs(json!({"choice": ["a", "b.c", "d\n"]})),
            Regex,
            "(a|b\\.c|d\\n)",
        ),
        (
            outputs(json!({"grammar": "root ::= x"})),
            Grammar,
            "root ::= x",
        ),
        (json!({"guided_json": schema}), JsonSchema, written),
        (json!({"guided_json": {}}), JsonSchema, "{}"),
        (json!({"json_schema": written}), JsonSchema, written),
        (json!({"guided_regex": "a+"}), Regex, "a+"),
        (json!({"regex": "a+"}), Regex, "a+"),
        (json!({"guided_choice": ["a"]}), Regex, "(a)"),
        (json!({"guided_grammar": "g"}), Grammar, "g"),
        (json!({"ebnf": "g"}), Grammar, "g"),
        (
            json!({"structural_tag": tags}),
            StructuralTag,
            r#"{"structures":[],"triggers":[]}"#,
        ),
    ] {
        assert_eq!(
            guide(extra.clone()),
            Some((kind, text.to_owned())),
            "{extra}"
        );
    }
    for extra in [
        format(json!({"type": "text"})),
        outputs(json!({})),
        json!({"user": "u"}),
    ] {
        assert_eq!(guide(extra), None);
    }
    let tag = json!({"type": "structural_tag", "structures": [], "triggers": []});
    assert_eq!(guide(format(tag)).unwrap().0, StructuralTag);
}

#[test]
fn guides_that_are_malformed_or_several_are_refused_by_name() {
    for (extra, param) in [
        (
            json!({"response_format": {"type": "xml"}}),
            "response_format.type",
        ),
        (
            json!({"response_format": {"type": "json"}}),
            "response_format.schema",
        ),
        (
            json!({"response_format": {"type": "regex", "regex": ""}}),
            "response_format.regex",
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}),
            "response_format.json_schema.name",
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}}),
            "response_format.json_schema.name",
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": [1]}}}),
            "response_format.json_schema.schema",
        ),
        (json!({"guided_choice": []}), "guided_choice"),
        (json!({"guided_choice": [1]}), "guided_choice[0]"),
        (json!({"guided_json": "not JSON"}), "guided_json"),
        (json!({"guided_regex": "x".repeat(70_000)}), "guided_regex"),
        (
            json!({"structured_outputs": {"disable_fallback": true}}),
            "structured_outputs",
        ),
        (
            json!({"structured_outputs": {"regex": "a", "choice": ["a"]}}),
            "structured_outputs",
        ),
        (
            json!({"guided_regex": "a", "guided_choice": ["a"]}),
            "guided_choice",
        ),
        (
            json!({"response_format": {"type": "json_object"}, "regex": "a"}),
            "regex",
        ),
        (json!({"guided_regex": "a", "num_beams": 2}), "guided_regex"),
    ] {
        let error = refuse(extra);
        assert_eq!(error.param.as_deref(), Some(param), "{error}");
        assert!(error.message.len() < 600, "{error}");
    }
}

#[test]
fn beams_have_the_names_of_the_field() {
    let beams = |extra: Value| {
        let extensions = accept(extra).request.generation.extensions;
        let search = extensions.and_then(|extensions| extensions.beams);
        search.map(|search| (search.width, search.length_penalty, search.early_stopping))
    };
    for (extra, expected) in [
        (
            json!({"use_beam_search": true, "n": 3}),
            Some((3, 1.0, false)),
        ),
        (
            json!({"use_beam_search": true, "n": 3, "best_of": 1}),
            Some((3, 1.0, false)),
        ),
        (
            json!({"use_beam_search": true, "best_of": 4, "n": 2}),
            Some((4, 1.0, false)),
        ),
        (json!({"use_beam_search": true}), Some((1, 1.0, false))),
        (
            json!({"num_beams": 2, "length_penalty": 0.5}),
            Some((2, 0.5, false)),
        ),
        (
            json!({"beam_width": 2, "early_stopping": true}),
            Some((2, 1.0, true)),
        ),
        (
            json!({"num_beams": 1, "length_penalty": 1, "early_stopping": false}),
            None,
        ),
        (json!({"use_beam_search": false, "best_of": 1}), None),
    ] {
        assert_eq!(beams(extra.clone()), expected, "{extra}");
    }
    for (extra, param) in [
        (json!({"num_beams": 2, "n": 3}), "num_beams"),
        (
            json!({"use_beam_search": true, "best_of": 2, "n": 3}),
            "best_of",
        ),
        (
            json!({"use_beam_search": false, "num_beams": 2}),
            "use_beam_search",
        ),
        (json!({"num_beams": 2, "beam_width": 3}), "beam_width"),
        (json!({"best_of": 2}), "best_of"),
        (json!({"length_penalty": 0.5}), "length_penalty"),
        (json!({"early_stopping": true}), "early_stopping"),
    ] {
        assert_eq!(refuse(extra).param.as_deref(), Some(param));
    }
}

#[test]
fn extensions_are_read_and_bounded() {
    let extensions = accept(json!({
        "bad_words": ["x"], "allowed_token_ids": [3, 4], "logprobs": true, "logprob_token_ids": [9, 3, 9],
        "thinking_token_budget": 0,
        "no_repeat_ngram_size": 2, "cache_salt": "s",
        "priority": -3, "include_stop_str_in_output": true, "truncate_prompt_tokens": 5,
        "truncation_side": "right", "return_token_ids": true, "return_tokens_as_token_ids": true, "prompt_logprobs": 0
    }));
    assert_eq!(
        *extensions.request.generation.extensions.unwrap(),
        Extensions {
            bad_words: vec!["x".into()],
            allowed_token_ids: vec![3, 4],
            logprob_token_ids: vec![9, 3],
            thinking_token_budget: Some(0),
            no_repeat_ngram_size: Some(2),
            cache_salt: Some("s".into()),
            priority: -3,
            include_stop_str_in_output: true,
            truncate_prompt_tokens: Some(Truncation::Last(5)),
            truncates_end: true,
            return_token_ids: true,
            return_tokens_as_token_ids: true,
            prompt_logprobs: Some(0),
            ..Extensions::default()
        }
    );
    let neutral = json!({"bad_words": [], "allowed_token_ids": [], "no_repeat_ngram_size": 0, "priority": 0,
        "include_stop_str_in_output": false, "metadata": {}});
    assert_eq!(accept(neutral).request.generation.extensions, None);
    for (extra, param) in [
        (json!({"bad_words": [" "]}), "bad_words"),
        (json!({"bad_words": vec!["x"; 257]}), "bad_words"),
        (json!({"cache_salt": ""}), "cache_salt"),
        (json!({"truncation_side": "top"}), "truncation_side"),
        (json!({"priority": 50}), "priority"),
        (json!({"priority": 0.5}), "priority"),
        (
            json!({"truncate_prompt_tokens": 0}),
            "truncate_prompt_tokens",
        ),
        (json!({"allowed_token_ids": [-1]}), "allowed_token_ids"),
        (
            json!({"logprobs": true, "logprob_token_ids": []}),
            "logprob_token_ids",
        ),
        (
            json!({"logprobs": true, "logprob_token_ids": vec![1; 101]}),
            "logprob_token_ids",
        ),
        (
            json!({"logprobs": true, "logprob_token_ids": [-1]}),
            "logprob_token_ids",
        ),
        (
            json!({"thinking_token_budget": -1}),
            "thinking_token_budget",
        ),
        (
            json!({"thinking_token_budget": 9, "response_format": {"type": "json_object"}}),
            "thinking_token_budget",
        ),
        (
            json!({"thinking_token_budget": 9, "num_beams": 2}),
            "thinking_token_budget",
        ),
        // Nothing says that it is wanted.
        (json!({"logprob_token_ids": [1]}), "logprob_token_ids"),
        (json!({"prompt_logprobs": 21}), "prompt_logprobs"),
        (
            json!({"prompt_logprobs": 1, "stream": true}),
            "prompt_logprobs",
        ),
    ] {
        assert_eq!(refuse(extra).param.as_deref(), Some(param));
    }
}

#[test]
fn hints_are_ignored_by_name_in_the_order_sent() {
    for (extra, names) in [
        (
            json!({"store": true, "metadata": {"a": "b"}}),
            "store, metadata",
        ),
        (
            json!({"service_tier": "flex", "verbosity": "low"}),
            "service_tier, verbosity",
        ),
        (
            json!({"prediction": {"type": "content", "content": "x"}}),
            "prediction",
        ),
        (json!({"tomorrow's field": 1}), "tomorrow's_field"),
        (json!({"prompt": "x", "suffix": "y"}), "prompt, suffix"),
        (json!({"user": {"id": 7}}), "user"),
        (
            json!({"stream": true, "stream_options": {"include_obfuscation": true, "new": 1}}),
            "stream_options.include_obfuscation, stream_options.new",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x", "weight": 1}]}),
            "messages.weight",
        ),
    ] {
        assert_eq!(ignored(extra.clone()), names, "{extra}");
    }
    let labels = accept(json!({"store": true, "secret": 1})).ignored;
    assert_eq!(labels.labels(), ["store", "other"]);
}

#[test]
fn messages_are_kept_as_templates_read_them() {
    for (message, seen) in [
        (
            json!({"role": "system", "content": "S"}),
            json!({"role": "system", "content": "S"}),
        ),
        (
            json!({"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
            json!({"role": "developer", "content": "a\nb"}),
        ),
        (
            json!({"role": "user", "content": null}),
            json!({"role": "user", "content": ""}),
        ),
        (
            json!({"role": "user", "content": "x", "name": "Ann"}),
            json!({"role": "user", "content": "x", "name": "Ann"}),
        ),
        (
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"b\":1,\"a\":2}"}},
                {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "not json"}}
            ]}),
            json!({"role": "assistant", "content": "", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": 2}}},
                {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "not json"}}
            ]}),
        ),
        (
            json!({"role": "assistant", "function_call": {"name": "f"}}),
            json!({"role": "assistant", "content": "", "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": {}}}
            ]}),
        ),
        (
            json!({"role": "assistant", "content": null, "refusal": "No."}),
            json!({"role": "assistant", "content": "No."}),
        ),
        (
            json!({"role": "tool", "content": "5", "tool_call_id": "c1"}),
            json!({"role": "tool", "content": "5", "tool_call_id": "c1"}),
        ),
    ] {
        let parsed = accept(json!({"messages": [message]}));
        let kept = serde_json::to_string(&parsed.request.messages[0]).unwrap();
        assert_eq!(kept, serde_json::to_string(&seen).unwrap());
        assert!(parsed.ignored.is_empty());
    }
}

proptest! {
    #[test]
    fn any_bytes_give_a_request_or_a_400(body in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Err(error) = parse(&body) {
            prop_assert_eq!(error.status(), 400);
        }
    }

    #[test]
    fn any_value_of_any_field_gives_a_request_or_a_400_that_names_it(
        field in 0..FIELDS.len(),
        value in "(null|true|-?[1-9][0-9]{0,24}|-?1e[0-9]{1,3}|\"[a-z]{0,5}\"|\\[(1|\"a\"|\\{\\}|null)?\\]|\\{(\"a\":1|\"role\":\"user\")?\\})",
    ) {
        let name = FIELDS[field].name;
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"Hi"}}],"{name}":{value}}}"#
        );
        if let Err(error) = parse(body.as_bytes()) {
            prop_assert_eq!(error.status(), 400);
            prop_assert!(error.param.unwrap().starts_with(name));
        }
    }
}

#[test]
fn images_keep_their_places_among_the_texts() {
    let parsed = accept(json!({"messages": [
        {"role": "user", "content": [
            {"type": "text", "text": "What"},
            {"type": "image_url", "image_url": {"url": "https://a/b.png", "detail": "low"}},
            {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "auto"},
            {"type": "text", "text": "is this?"},
        ]},
        {"role": "user", "content": [{"type": "text", "text": "So"}, {"type": "text", "text": "so."}]},
    ]}));
    let [first, second] = parsed.request.messages.as_slice() else {
        panic!("not two messages");
    };
    let images: Vec<(&str, &str)> = first
        .images()
        .map(|image| (image.path.as_str(), image.url.as_str()))
        .collect();
    assert_eq!(
        images,
        [
            ("messages[0].content[1]", "https://a/b.png"),
            ("messages[0].content[2]", "data:image/png;base64,AA"),
        ]
    );
    // As text: what knows nothing of images reads this.
    assert_eq!(first.content, "What\nis this?");
    assert_eq!(
        serde_json::to_value(first).unwrap(),
        json!({"role": "user", "content": [
            {"type": "text", "text": "What"},
            {"type": "image"},
            {"type": "image"},
            {"type": "text", "text": "is this?"},
        ]})
    );
    assert_eq!(
        serde_json::to_value(second).unwrap(),
        json!({"role": "user", "content": "So\nso."})
    );
    assert_eq!(
        parsed.ignored.header_value().as_deref(),
        Some("messages.content.image_url.detail")
    );
}
