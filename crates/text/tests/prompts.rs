//! Chat templates render what transformers renders (see make_fixtures.py), within limits.
#![allow(clippy::unwrap_used, reason = "helpers of tests may, like tests")]

use inflight_text::{ChatTemplate, TemplateError, TemplateInput, TemplateLimits};
use serde_json::{Map, Value, json};

#[path = "support/fixtures.rs"]
mod fixtures;

fn template(source: &str, special_tokens: &Value) -> ChatTemplate {
    ChatTemplate::new(
        vec![("default".to_owned(), source.to_owned())],
        special_tokens.as_object().cloned().unwrap_or_default(),
    )
}

fn input(variables: &Value) -> TemplateInput {
    let mut extra = variables.as_object().cloned().unwrap_or_default();
    TemplateInput {
        messages: extra.shift_remove("messages").unwrap_or(json!([])),
        tools: extra.shift_remove("tools"),
        add_generation_prompt: extra
            .shift_remove("add_generation_prompt")
            .is_none_or(|value| value == true),
        extra,
    }
}

/// Where the engine is known to differ: it panics on `[][::-1]`, which becomes an error. Clients do not
/// get this far with an empty conversation.
const KNOWN: [(&str, &str); 1] = [("thinking", "empty")];

/// What went otherwise than expected, if anything.
fn difference(result: &Result<String, TemplateError>, expected: &Value) -> Option<String> {
    let agrees = match result {
        Ok(text) => expected["text"] == text.as_str(),
        Err(TemplateError::Raised { message }) => expected["raised"] == message.as_str(),
        Err(TemplateError::Failed { .. }) => expected["failed"].is_string(),
        Err(TemplateError::Syntax { .. }) => expected["failed"] == "TemplateSyntaxError",
        Err(_) => false,
    };
    (!agrees).then(|| format!("expected {expected:#}\n     got {result:#?}"))
}

#[test]
fn conversations_render_as_in_transformers() {
    let prompts = fixtures::json("prompts.json");
    let mut differences = Vec::new();
    for (name, cases) in prompts["templates"].as_object().unwrap() {
        let source = fixtures::bytes(&format!("templates/{name}.jinja"));
        let source = String::from_utf8(source).unwrap();
        let template = template(&source, &prompts["special_tokens"]);
        for (conversation, expected) in cases.as_object().unwrap() {
            let result = template.render(&input(&prompts["conversations"][conversation]));
            if KNOWN.contains(&(name, conversation)) {
                assert!(matches!(result, Err(TemplateError::Failed { .. })));
                continue;
            }
            differences.extend(
                difference(&result, expected).map(|text| format!("{name} {conversation}: {text}")),
            );
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

#[test]
fn expressions_print_as_in_jinja() {
    let prompts = fixtures::json("prompts.json");
    let mut differences = Vec::new();
    for case in prompts["expressions"].as_array().unwrap() {
        let source = case["template"].as_str().unwrap();
        let result = template(source, &prompts["special_tokens"]).render(&input(&prompts["data"]));
        differences
            .extend(difference(&result, &case["expected"]).map(|text| format!("{source}\n{text}")));
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

#[test]
fn arguments_of_tool_calls_are_objects() {
    let source =
        "{% for c in messages[0].tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}";
    let call = |arguments: Value| json!({"function": {"name": "f", "arguments": arguments}});
    let calls = json!([
        call(json!("{\"b\": 1, \"a\": \"é\"}")),
        call(json!("not json")),
        call(json!("7")),
        call(json!({"z": 1})),
    ]);
    let messages = json!([{"role": "assistant", "content": null, "tool_calls": calls}]);
    let result = template(source, &json!({})).render(&input(&json!({"messages": messages})));
    assert_eq!(
        result.unwrap(),
        r#"{"b": 1, "a": "é"}"not json""7"{"z": 1}"#
    );
}

#[test]
fn tools_choose_their_template() {
    let named = |names: &[&str]| {
        let sources = names
            .iter()
            .map(|name| ((*name).to_owned(), format!("is {name}")));
        ChatTemplate::new(sources.collect(), Map::new())
    };
    let tools = json!({"tools": [{"type": "function"}]});
    let cases: [(&[&str], &Value, Result<&str, &str>); 7] = [
        (&["default", "tool_use"], &json!({}), Ok("is default")),
        (&["default", "tool_use"], &tools, Ok("is tool_use")),
        (
            &["default", "tool_use"],
            &json!({"tools": []}),
            Ok("is default"),
        ),
        (
            &["default", "tool_use"],
            &json!({"tools": null}),
            Ok("is default"),
        ),
        (&["default", "rag"], &tools, Ok("is default")),
        (&["rag"], &tools, Ok("is rag")),
        (&["rag", "other"], &tools, Err("`rag`, `other`")),
    ];
    for (names, variables, expected) in cases {
        match (named(names).render(&input(variables)), expected) {
            (Ok(text), Ok(expected)) => assert_eq!(text, expected),
            (Err(TemplateError::NoDefault { names }), Err(expected)) => {
                assert_eq!(names, expected);
            }
            (result, _) => panic!("{names:?}: {result:?}"),
        }
    }
}

#[test]
fn a_template_that_does_not_parse_is_an_error_of_each_request() {
    for source in [
        "{% if %}",
        "{{ 'open",
        "{% endfor %}",
        "{{ a..b }}",
        &"(".repeat(5000),
    ] {
        let source = format!("line\n{{{{ {source}");
        let template = template(&source, &json!({}));
        let error = template.render(&input(&json!({}))).unwrap_err();
        assert!(matches!(error, TemplateError::Syntax { .. }), "{error}");
        assert!(error.is_models_fault());
    }
}

#[test]
fn limits_hold() {
    let deep = (0..200).fold(json!(1), |inner, _| json!([inner]));
    let loop_source =
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}";
    type Case = (&'static str, Value, fn(&TemplateError) -> bool);
    let cases: [Case; 7] = [
        (loop_source, json!({}), |e| {
            matches!(e, TemplateError::OutOfFuel { .. })
        }),
        (
            "{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
            json!({}),
            |e| matches!(e, TemplateError::OutputTooLarge { .. }),
        ),
        ("{{ x }}", json!({"x": deep}), |e| {
            matches!(e, TemplateError::TooDeep { .. })
        }),
        (
            "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
            json!({}),
            |e| matches!(e, TemplateError::Failed { .. }),
        ),
        (
            "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns | tojson }}",
            json!({}),
            |e| matches!(e, TemplateError::Failed { .. }),
        ),
        ("{{ 'x' * 999999999 }}", json!({}), |e| {
            matches!(e, TemplateError::Failed { .. })
        }),
        ("{% include 'default' %}", json!({}), |e| {
            matches!(e, TemplateError::Failed { .. })
        }),
    ];
    for (source, variables, expected) in cases {
        let template = ChatTemplate::with_limits(
            vec![("default".to_owned(), source.to_owned())],
            Map::new(),
            TemplateLimits {
                fuel: 200_000,
                output_bytes: 1 << 20,
                ..TemplateLimits::default()
            },
        );
        let error = template.render(&input(&variables)).unwrap_err();
        assert!(expected(&error), "{source}: {error}");
        assert!(!error.is_models_fault());
    }
}

#[test]
fn long_conversations_fit_the_default_limits() {
    let source = fixtures::bytes("templates/thinking.jinja");
    let template = template(&String::from_utf8(source).unwrap(), &json!({}));
    let turns: Vec<Value> = (0..4000)
        .map(|turn| json!({"role": if turn % 2 == 0 { "user" } else { "assistant" }, "content": "x".repeat(1000)}))
        .collect();
    let text = template
        .render(&input(&json!({"messages": turns})))
        .unwrap();
    assert!(text.len() > 4_000_000, "{}", text.len());
}

#[test]
fn the_date_is_a_date() {
    let text = template("{{ strftime_now('%Y-%m-%d') }}", &json!({}))
        .render(&input(&json!({})))
        .unwrap();
    assert_eq!(text.len(), 10);
    assert!(text.starts_with("20"), "{text}");
}
