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

fn custom(grammar: Value) -> Value {
    let format = json!({"type": "grammar", "grammar": grammar});
    json!({"type": "custom", "custom": {"name": "f", "description": "D", "format": format}})
}

#[test]
fn a_custom_tool_is_shown_as_a_function_with_one_text() {
    let shown = |tool: Value| {
        let read = tools(json!({"tools": [tool]})).unwrap();
        let mut shown = read.for_template();
        (
            read.functions[0].custom.clone().unwrap(),
            shown[0]["function"].take(),
        )
    };
    let (format, function) = shown(json!({"type": "custom", "custom": {"name": "f"}}));
    assert_eq!(format, InputFormat::Text);
    assert_eq!(
        function,
        json!({"name": "f", "parameters": {
            "type": "object", "properties": {"input": {"type": "string"}},
            "required": ["input"], "additionalProperties": false}})
    );
    let (format, function) = shown(custom(json!({"syntax": "regex", "definition": "^a|b$"})));
    assert_eq!(
        format,
        InputFormat::Grammar(InputGrammar {
            syntax: GrammarSyntax::Regex,
            definition: "^a|b$".to_owned(),
            param: "tools[0].custom.format.grammar.definition".to_owned(),
        })
    );
    assert_eq!(function["description"], "D");
    let input = &function["parameters"]["properties"]["input"];
    assert_eq!(input["pattern"], "^(?:a|b)$");
    let (_, function) = shown(custom(
        json!({"syntax": "lark", "definition": "start: \"a\""}),
    ));
    let input = &function["parameters"]["properties"]["input"];
    let told = input["description"].as_str().unwrap();
    assert!(told.ends_with("start: \"a\""), "{told}");
}

#[test]
fn a_custom_tool_is_chosen_by_its_own_type() {
    let list = json!([function("f"), {"type": "custom", "custom": {"name": "c"}}]);
    let named = |kind: &str, name: &str| json!({"type": kind, kind: {"name": name}});
    let choice = |choice: Value| read(json!({"tools": list, "tool_choice": choice}));
    let chosen = choice(named("custom", "c")).unwrap().request;
    let chosen = chosen.template.tools.unwrap();
    assert_eq!(chosen.choice, ToolChoice::Function("c".to_owned()));
    let allowed = |named: Value| json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}});
    let only = choice(allowed(named("custom", "c"))).unwrap().request;
    assert_eq!(only.template.tools.unwrap().functions.len(), 1);
    for (wrong, param) in [
        (named("function", "c"), "tool_choice"),
        (
            allowed(named("custom", "f")),
            "tool_choice.allowed_tools.tools",
        ),
        (
            allowed(json!({"type": "shell"})),
            "tool_choice.allowed_tools.tools[0].type",
        ),
    ] {
        let error = choice(wrong).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param), "{error}");
    }
}

#[test]
fn an_earlier_call_of_a_custom_tool_is_what_the_model_wrote() {
    let call =
        json!({"id": "call_1", "type": "custom", "custom": {"name": "c", "input": "two\nlines"}});
    let messages =
        json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [call]}]);
    let request = read(json!({"messages": messages})).unwrap().request;
    assert_eq!(
        serde_json::to_value(&request.messages[1].tool_calls[0]).unwrap(),
        json!({"id": "call_1", "type": "function",
            "function": {"name": "c", "arguments": {"input": "two\nlines"}}})
    );
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
            with(json!({"type": "shell"})),
            "tools[0].type",
            "unsupported_value",
        ),
        (
            with(json!({"type": "custom"})),
            "tools[0].custom",
            "missing_required_parameter",
        ),
        (
            with(json!({"type": "custom", "custom": {"name": "f", "format": {"type": "xml"}}})),
            "tools[0].custom.format.type",
            "invalid_value",
        ),
        (
            with(custom(json!({"syntax": "bnf", "definition": "x"}))),
            "tools[0].custom.format.grammar.syntax",
            "invalid_value",
        ),
        (
            with(custom(json!({"syntax": "lark"}))),
            "tools[0].custom.format.grammar.definition",
            "missing_required_parameter",
        ),
        (
            with(custom(
                json!({"syntax": "lark", "definition": "x".repeat(70_000)}),
            )),
            "tools[0].custom.format.grammar.definition",
            "string_above_max_length",
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
            "tool_choice",
            "invalid_value",
        ),
        (
            choosing(json!({"type": "shell"})),
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
