//! Arguments that are written as plain text: what each type of a schema makes of a text, and what is held how long.

use inflight_parsers::{
    AnswerParser, Delta, Deltas, Format, ParserOptions, ReasoningFormat, ToolFormat,
};
use serde_json::{Value, json};

use crate::formats::{check, only_tools};
use crate::support::tools;

/// A tool whose parameter `x` has this schema.
fn takes(schema: &Value) -> ParserOptions {
    ParserOptions {
        tools: Some(tools(&json!({"f": {"properties": {"x": schema}}}))),
        ..ParserOptions::default()
    }
}

#[test]
fn a_value_is_of_a_type_that_the_schema_allows_or_a_string() {
    for (schema, values) in [
        (
            json!({"type": "string"}),
            [
                r#""5""#,
                r#""true""#,
                r#""[1]""#,
                r#""{\"a\": 1}""#,
                r#""null""#,
            ],
        ),
        (
            json!({"type": "number"}),
            ["5", r#""true""#, r#""[1]""#, r#""{\"a\": 1}""#, r#""null""#],
        ),
        (
            json!({"type": "boolean"}),
            [r#""5""#, "true", r#""[1]""#, r#""{\"a\": 1}""#, r#""null""#],
        ),
        (
            json!({"type": "array"}),
            [r#""5""#, r#""true""#, "[1]", r#""{\"a\": 1}""#, r#""null""#],
        ),
        (
            json!({"type": "object"}),
            [
                r#""5""#,
                r#""true""#,
                r#""[1]""#,
                r#"{"a": 1}"#,
                r#""null""#,
            ],
        ),
        (
            json!({"type": "null"}),
            [r#""5""#, r#""true""#, r#""[1]""#, r#""{\"a\": 1}""#, "null"],
        ),
        (json!({}), ["5", "true", "[1]", r#"{"a": 1}"#, "null"]),
    ] {
        for (text, value) in ["5", "true", "[1]", r#"{"a": 1}"#, "null"]
            .iter()
            .zip(values)
        {
            let text = format!(
                "<tool_call><function=f><parameter=x>{text}</parameter></function></tool_call>"
            );
            let expected = format!("||f({{\"x\": {value}}})");
            check(
                only_tools(ToolFormat::Qwen3Coder),
                &takes(&schema),
                &[(&text, &expected)],
            );
        }
    }
}

#[test]
fn a_model_says_whether_a_value_is_a_string_as_far_as_the_schema_allows() {
    for (kind, is_string, text, value) in [
        ("string", true, "5", r#""5""#),
        ("string", false, "5", r#""5""#),
        ("string", false, r#""x""#, r#""\"x\"""#),
        ("integer", true, "5", "5"),
        ("any", true, "5", r#""5""#),
        ("any", false, "5", "5"),
        ("any", false, r#""x""#, r#""x""#),
    ] {
        let text = format!(
            "<｜DSML｜function_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"x\" \
             string=\"{is_string}\">{text}</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>"
        );
        let options = takes(&json!({"type": kind}));
        let expected = format!("||f({{\"x\": {value}}})");
        check(
            only_tools(ToolFormat::DeepseekV32),
            &options,
            &[(&text, &expected)],
        );
    }
}

/// The arguments of a call with one long list, as far as they are known before the value ends.
fn long(length: usize) -> String {
    let options = takes(&json!({"type": ["array", "string"]}));
    let mut parser = AnswerParser::new(only_tools(ToolFormat::Qwen3Coder), options);
    let mut deltas = Deltas::default();
    let text = "<tool_call><function=f><parameter=x>[".to_owned() + &"1".repeat(length - 1);
    parser.push(&text, &mut deltas);
    let arguments = deltas.iter().filter_map(|delta| match delta {
        Delta::CallArguments { json, .. } => Some(json),
        _ => None,
    });
    arguments.collect()
}

#[test]
fn a_long_value_is_held_and_one_that_is_too_long_is_a_string() {
    assert_eq!(long(1 << 20), r#"{"x": "#);
    assert!(long((1 << 20) + 1).starts_with(r#"{"x": "[111"#));
}

/// What a parser shows of these pieces before the answer ends.
fn shown(format: Format, pieces: &[&str]) -> (String, String) {
    let mut parser = AnswerParser::new(format, ParserOptions::default());
    let mut deltas = Deltas::default();
    for piece in pieces {
        parser.push(piece, &mut deltas);
    }
    let mut shown = (String::new(), String::new());
    for delta in deltas.iter() {
        match delta {
            Delta::Reasoning(text) => shown.0.push_str(text),
            Delta::Content(text) => shown.1.push_str(text),
            other => panic!("{other:?}"),
        }
    }
    shown
}

/// White space that may be formatting is held back, up to 1,024 bytes of it.
#[test]
fn white_space_is_held_as_long_as_it_may_be_formatting() {
    let spaces = " ".repeat(1000);
    let content = only_tools(ToolFormat::Hermes);
    let none = (String::new(), String::new());
    assert_eq!(shown(content, &[&spaces, &spaces[..24]]), none);
    let all = " ".repeat(1025);
    assert_eq!(
        shown(content, &[&spaces, &spaces[..25]]),
        (String::new(), all.clone())
    );
    let reasoning = Format {
        tools: None,
        reasoning: Some(ReasoningFormat::Think),
    };
    assert_eq!(shown(reasoning, &["<think>so"]).0, "so");
    assert_eq!(
        shown(reasoning, &["<think>so", &spaces, &spaces[..24]]).0,
        "so"
    );
    assert_eq!(
        shown(reasoning, &["<think>so", &spaces, &spaces[..25]]).0,
        format!("so{all}")
    );
    let more = shown(
        reasoning,
        &["<think>so", &spaces, &spaces[..25], "  ", "yes"],
    );
    assert_eq!(more.0, format!("so{all}  yes"));
}
