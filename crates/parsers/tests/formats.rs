//! Every format with the texts that its models write, whole and cut at every place.
#![allow(clippy::unwrap_used, reason = "helpers of tests may, like tests")]

mod support;

use inflight_parsers::{Format, ParserOptions, ReasoningFormat, ToolFormat};
use serde_json::json;
use support::{Answer, parse_every_way, tools};

/// Known tools, as most requests have them.
fn options() -> ParserOptions {
    let schema = json!({"properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "where": {"type": "object"},
    }});
    ParserOptions {
        tools: Some(tools(
            &json!({"weather": schema, "time": null, "search": schema}),
        )),
        ..ParserOptions::default()
    }
}

/// An answer in a short notation: `reasoning|content|name(arguments)…`; a call that did not end well has `!` behind.
fn notation(answer: &Answer) -> String {
    let calls: Vec<String> = answer
        .calls
        .iter()
        .map(|call| {
            let id = call
                .id
                .as_ref()
                .map(|id| format!("{id}:"))
                .unwrap_or_default();
            let end = if call.is_complete == Some(true) {
                ""
            } else {
                "!"
            };
            format!("{id}{}({}){end}", call.name, call.arguments)
        })
        .collect();
    format!(
        "{}|{}|{}",
        answer.reasoning,
        answer.content,
        calls.join(" ")
    )
}

/// Checks a table: text, and what it is.
fn check(format: Format, options: &ParserOptions, table: &[(&str, &str)]) {
    for (text, expected) in table {
        let answer = parse_every_way(format, options, text);
        assert_eq!(notation(&answer), *expected, "{text:?}");
    }
}

fn only_tools(tools: ToolFormat) -> Format {
    Format {
        tools: Some(tools),
        reasoning: None,
    }
}

#[test]
fn hermes() {
    let table = [
        // What models write.
        (
            "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
            "||weather({\"city\": \"Paris\"})",
        ),
        (
            "I look.<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>",
            "|I look.|weather({})",
        ),
        (
            "\n\n<tool_call>{\"name\":\"time\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"time\",\"arguments\":{}}</tool_call>\n",
            "||time({}) time({})",
        ),
        (
            "a <tool_call>{\"name\":\"time\",\"arguments\":{}}</tool_call> b <tool_call>{\"name\":\"time\"}</tool_call> c ",
            "|a  b  c |time({}) time({})",
        ),
        // Nested values, all kinds of strings.
        (
            "<tool_call>{\"name\": \"search\", \"arguments\": {\"where\": {\"q\": [\"}\", \"日本\", \"\\\"{\"]}, \"days\": -1.5e3}}</tool_call>",
            "||search({\"where\": {\"q\": [\"}\", \"日本\", \"\\\"{\"]}, \"days\": -1.5e3})",
        ),
        (
            "<tool_call>{\"name\": \"search\", \"arguments\": {\"q\": \"\\u65e5 \\ud83d\\ude00 \\\\\"}}</tool_call>",
            "||search({\"q\": \"\\u65e5 \\ud83d\\ude00 \\\\\"})",
        ),
        (
            "<tool_call>{\"name\": \"search\", \"arguments\": {\"q\": \"</tool_call>\"}}</tool_call>!",
            "|!|search({\"q\": \"</tool_call>\"})",
        ),
        (
            "<tool_call>{\"name\": \"search\", \"arguments\": {\"q\": \"two\nlines\"}}</tool_call>",
            "||search({\"q\": \"two\\nlines\"})",
        ),
        // Other orders and kinds of keys.
        (
            "<tool_call>{\"arguments\": {\"city\": \"Rome\"}, \"name\": \"weather\"}</tool_call>",
            "||weather({\"city\": \"Rome\"})",
        ),
        (
            "<tool_call>{\"id\": \"c1\", \"type\": \"function\", \"name\": \"time\", \"x\": [1], \"parameters\": null}</tool_call>",
            "||c1:time({})",
        ),
        (
            "<tool_call>{\"name\": \"weather\", \"arguments\": \"{\\\"city\\\": \\\"Rome\\\"}\"}</tool_call>",
            "||weather({\"city\": \"Rome\"})",
        ),
        // The closing tag is missing.
        (
            "<tool_call>{\"name\": \"time\", \"arguments\": {}}\n<tool_call>{\"name\": \"time\", \"arguments\": {}} so",
            "| so|time({}) time({})",
        ),
        // Malformed before it began: content.
        (
            "<tool_call>{\"name\": \"nobody\", \"arguments\": {}}</tool_call>",
            "|<tool_call>{\"name\": \"nobody\", \"arguments\": {}}</tool_call>|",
        ),
        (
            "Write <tool_call> tags, a < b.",
            "|Write <tool_call> tags, a < b.|",
        ),
        (
            "<tool_call>\n{\"name\": \"time\", \"arguments\": [1]}",
            "|<tool_call>\n{\"name\": \"time\", \"arguments\": [1]}|",
        ),
        (
            "<tool_call>{\"arguments\": {}}</tool_call>",
            "|<tool_call>{\"arguments\": {}}</tool_call>|",
        ),
        (
            "<tool_call><tool_call>{\"name\": \"time\"}",
            "|<tool_call>|time({})",
        ),
        ("<tool_call>{\"na", "|<tool_call>{\"na|"),
        ("one <tool_c", "|one <tool_c|"),
        // Malformed or cut after it began: the call ends there.
        (
            "<tool_call>{\"name\": \"time\", \"arguments\": {\"a\": 1,}}",
            "|}}|time({\"a\": 1,)!",
        ),
        (
            "<tool_call>{\"name\": \"time\", \"arguments\": {\"a\": \"\\u00",
            "||time({\"a\": \")!",
        ),
        (
            "<tool_call>{\"name\": \"time\", \"arguments\": {\"a\"",
            "||time({\"a\")!",
        ),
    ];
    check(only_tools(ToolFormat::Hermes), &options(), &table);
}

#[test]
fn a_call_needs_a_known_name_only_if_the_tools_are_known() {
    let text = "<tool_call>{\"name\": \"any.name-1\", \"arguments\": {}}</tool_call>";
    let format = only_tools(ToolFormat::Hermes);
    check(
        format,
        &ParserOptions::default(),
        &[(text, "||any.name-1({})")],
    );
    check(format, &options(), &[(text, &format!("|{text}|"))]);
    let prose = "<tool_call>{\"name\": \"two words\", \"arguments\": {}}</tool_call>";
    check(
        format,
        &ParserOptions::default(),
        &[(prose, &format!("|{prose}|"))],
    );
}

#[test]
fn calls_are_bounded() {
    let options = ParserOptions {
        max_calls: 1,
        ..options()
    };
    let call = "<tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call>";
    let expected = format!("|{call}|time({{}})");
    check(
        only_tools(ToolFormat::Hermes),
        &options,
        &[(&format!("{call}{call}"), &expected)],
    );
}

#[test]
fn thinking() {
    let format = Format {
        tools: Some(ToolFormat::Hermes),
        reasoning: Some(ReasoningFormat::Think),
    };
    let table = [
        ("<think>a</think>b", "a|b|"),
        ("\n<think>\n a \n b\n</think>\n\nc\n", "a \n b|c\n|"),
        ("<think>\n\n</think>\n\nc", "|c|"),
        (
            "<think>a <tool_call> b</think> <tool_call>{\"name\": \"time\"}</tool_call>",
            "a <tool_call> b||time({})",
        ),
        ("no <think>tags</think>", "|no <think>tags</think>|"),
        ("<think>a</think>b<think>c</think>", "a|b<think>c</think>|"),
        ("<think>never closed\n", "never closed\n||"),
        ("<think>a</th", "a</th||"),
        ("<th", "|<th|"),
        (" \n", "| \n|"),
        ("<think>...\n</think", "...\n</think||"),
        ("<think>...\n</think>x", "...|x|"),
    ];
    check(format, &options(), &table);

    let open = ParserOptions {
        is_reasoning_open: true,
        ..options()
    };
    let table = [
        ("a</think>b", "a|b|"),
        ("\na\n</think>\nb", "a|b|"),
        ("<think>a</think>b", "a|b|"),
        ("</think>b", "|b|"),
        ("only", "only||"),
        ("<th", "<th||"),
    ];
    check(format, &open, &table);
    assert!(format.opens_reasoning("<|im_start|>assistant\n<think>\n"));
    assert!(!format.opens_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
}

#[test]
fn no_format_is_no_parsing() {
    let text = " <think>a</think> <tool_call>{\"name\": \"time\"}</tool_call> ";
    check(
        Format::default(),
        &options(),
        &[(text, &format!("|{text}|"))],
    );
}

#[test]
fn names_are_known_or_listed() {
    assert_eq!("hermes".parse(), Ok(ToolFormat::Hermes));
    assert_eq!("deepseek_r1".parse(), Ok(ReasoningFormat::Think));
    let error = "herpes".parse::<ToolFormat>().unwrap_err().to_string();
    assert!(
        error.starts_with("unknown tool parser `herpes`; known are `hermes`"),
        "{error}"
    );
    for format in ToolFormat::all() {
        assert_eq!(format.name().parse(), Ok(format));
    }
    for format in ReasoningFormat::all() {
        assert_eq!(format.name().parse(), Ok(format));
    }
}
