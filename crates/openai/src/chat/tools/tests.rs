//! Tools and reasoning in chat bodies: what reaches the request, and what is refused by name.

use serde_json::{Map, Value, json};

use super::super::{ChatRequest, Reasoning, parse};
use super::*;
use crate::Parsed;

fn read(extra: Value) -> Result<Parsed<ChatRequest>, ApiError> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]});
    let map = body.as_object_mut().unwrap();
    map.extend(extra.as_object().unwrap().clone());
    parse(body.to_string().as_bytes())
}

fn tools(extra: Value) -> Option<Tools> {
    let parsed = read(extra).unwrap();
    assert!(parsed.ignored.is_empty());
    parsed.request.template.tools.map(|tools| *tools)
}

fn function(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name}})
}

#[test]
fn tools_are_kept_in_the_order_sent_and_shown_as_openai_has_them() {
    let schema = json!({"type": "object", "properties": {"z": {}, "a": {}}});
    let read = tools(json!({"tools": [
        {"type": "function", "function": {
            "strict": true, "parameters": schema, "description": "D", "name": "f"}},
        function("g"),
    ]}))
    .unwrap();
    assert_eq!(read.choice, ToolChoice::Auto);
    assert!(read.parallel && read.functions[0].strict && !read.functions[1].strict);
    assert_eq!(
        read.for_template().to_string(),
        json!([
            {"type": "function", "function": {"name": "f", "description": "D", "parameters": schema}},
            {"type": "function", "function": {"name": "g",
                "parameters": {"type": "object", "properties": {}}}},
        ])
        .to_string()
    );
    assert_eq!(read.find("g").unwrap().name, "g");
}

#[test]
fn every_choice_is_read() {
    let list = json!([function("f"), function("g")]);
    let choice = |choice: Value| {
        let read =
            tools(json!({"tools": list, "tool_choice": choice, "parallel_tool_calls": false}))?;
        assert!(!read.parallel);
        let names: Vec<String> = read.functions.iter().map(|one| one.name.clone()).collect();
        Some((read.choice, names.join(" ")))
    };
    let allowed = |mode: &str| json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [function("g")]}});
    for (sent, expected) in [
        (json!("none"), None),
        (json!(null), Some((ToolChoice::Auto, "f g"))),
        (json!("auto"), Some((ToolChoice::Auto, "f g"))),
        (json!("required"), Some((ToolChoice::Required, "f g"))),
        (
            function("g"),
            Some((ToolChoice::Function("g".to_owned()), "f g")),
        ),
        (allowed("auto"), Some((ToolChoice::Auto, "g"))),
        (allowed("required"), Some((ToolChoice::Required, "g"))),
    ] {
        let expected = expected.map(|(choice, names)| (choice, names.to_owned()));
        assert_eq!(choice(sent.clone()), expected, "{sent}");
    }
    for neutral in [
        json!({}),
        json!({"tools": []}),
        json!({"tool_choice": "auto"}),
    ] {
        assert_eq!(tools(neutral), None);
    }
}

#[test]
fn what_cannot_be_a_tool_is_named() {
    let deep = (0..70).fold(json!({}), |inner, _| json!({"items": inner}));
    let with = |tool: Value| json!({"tools": [tool]});
    let parameters = |schema: Value| {
        with(json!({"type": "function", "function": {"name": "f", "parameters": schema}}))
    };
    let choosing = |choice: Value| json!({"tools": [function("f")], "tool_choice": choice});
    for (extra, param, code) in [
        (json!({"tools": {}}), "tools", "invalid_type"),
        (
            json!({"tools": vec![function("f"); 513]}),
            "tools",
            "array_above_max_length",
        ),
        (with(json!("f")), "tools[0]", "invalid_type"),
        (
            with(json!({})),
            "tools[0].type",
            "missing_required_parameter",
        ),
        (
            with(json!({"type": "custom", "custom": {"name": "f"}})),
            "tools[0].type",
            "unsupported_value",
        ),
        (
            with(json!({"type": "function"})),
            "tools[0].function",
            "missing_required_parameter",
        ),
        (
            with(json!({"type": "function", "function": {}})),
            "tools[0].function.name",
            "missing_required_parameter",
        ),
        (
            with(function("a b")),
            "tools[0].function.name",
            "invalid_value",
        ),
        (
            with(function(&"f".repeat(129))),
            "tools[0].function.name",
            "invalid_value",
        ),
        (
            json!({"tools": [function("f"), function("f")]}),
            "tools[1].function.name",
            "invalid_value",
        ),
        (
            parameters(json!([1])),
            "tools[0].function.parameters",
            "invalid_type",
        ),
        (
            parameters(deep),
            "tools[0].function.parameters",
            "invalid_value",
        ),
        (
            parameters(json!({"x": "y".repeat(70_000)})),
            "tools[0].function.parameters",
            "string_above_max_length",
        ),
        (
            json!({"tool_choice": "required"}),
            "tool_choice",
            "invalid_value",
        ),
        (
            json!({"tool_choice": function("f")}),
            "tool_choice",
            "invalid_value",
        ),
        (choosing(json!("any")), "tool_choice", "invalid_value"),
        (choosing(json!(1)), "tool_choice", "invalid_type"),
        (choosing(function("g")), "tool_choice", "invalid_value"),
        (
            choosing(json!({"type": "custom", "custom": {"name": "f"}})),
            "tool_choice.type",
            "unsupported_value",
        ),
        (
            choosing(
                json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}),
            ),
            "tool_choice.allowed_tools.tools",
            "empty_array",
        ),
        (
            json!({"tools": [function("f")], "parallel_tool_calls": "no"}),
            "parallel_tool_calls",
            "invalid_type",
        ),
        (
            json!({"functions": [{"name": "f"}]}),
            "functions",
            "unsupported_parameter",
        ),
        (
            json!({"reasoning_effort": "some"}),
            "reasoning_effort",
            "invalid_value",
        ),
        (
            json!({"reasoning_effort": 3}),
            "reasoning_effort",
            "invalid_type",
        ),
        (
            json!({"thinking": {"type": "maybe"}}),
            "thinking.type",
            "invalid_value",
        ),
        (
            json!({"thinking": true, "enable_thinking": false}),
            "enable_thinking",
            "invalid_value",
        ),
    ] {
        let error = read(extra).unwrap_err();
        assert_eq!(
            (error.param.as_deref(), error.code()),
            (Some(param), Some(code)),
            "{error}"
        );
        assert!(error.message.len() < 400, "{error}");
    }
}

#[test]
fn reasoning_sets_what_the_template_reads_and_says_what_it_does_not() {
    let reasoning = |extra: Value| read(extra).unwrap().request.template.reasoning;
    // The fields, the variables that the template reads, those that are set, fields without effect.
    let cases: [(Value, &[&str], Value, &[&str]); 7] = [
        (json!({}), &[], json!({}), &[]),
        (
            json!({"reasoning_effort": "low"}),
            &["reasoning_effort"],
            json!({"reasoning_effort": "low"}),
            &[],
        ),
        (
            json!({"reasoning_effort": "low"}),
            &["enable_thinking"],
            json!({"reasoning_effort": "low"}),
            &["reasoning_effort"],
        ),
        (
            json!({"reasoning_effort": "none"}),
            &["enable_thinking"],
            json!({"reasoning_effort": "none", "enable_thinking": false, "thinking": false}),
            &[],
        ),
        (
            json!({"reasoning_effort": "none"}),
            &[],
            json!({"reasoning_effort": "none", "enable_thinking": false, "thinking": false}),
            &[],
        ),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 5}}),
            &[],
            json!({"enable_thinking": true, "thinking": true}),
            &["thinking"],
        ),
        (
            json!({"enable_thinking": false}),
            &["thinking"],
            json!({"enable_thinking": false, "thinking": false}),
            &[],
        ),
    ];
    for (extra, reads, set, without_effect) in cases {
        let mut kwargs = Map::new();
        let reasoning = reasoning(extra.clone());
        let ignored = reasoning.apply(&mut kwargs, |name| reads.contains(&name));
        assert_eq!(Value::from(kwargs), set, "{extra}");
        assert_eq!(ignored, without_effect, "{extra}");
    }
    let mut kwargs = Map::new();
    kwargs.insert("thinking".to_owned(), json!(true));
    let off = Reasoning {
        thinking: Some(false),
        ..Reasoning::default()
    };
    off.apply(&mut kwargs, |_| true);
    assert_eq!(kwargs["thinking"], true, "the template's own variable wins");
}
