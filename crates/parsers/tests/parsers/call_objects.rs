//! Calls that are written as one JSON object: which keys it may have, in which order, and how long they may be.

use inflight_parsers::{AnswerParser, Delta, Deltas, Format, ParserOptions, ToolFormat};

use crate::formats::{check, only_tools, options};

#[test]
fn an_object_that_was_marked_as_a_call() {
    let long = "x".repeat(300);
    let table = [
        (
            r#"{"id": 5, "type": [1], "name": "time", "arguments": {}}"#.to_owned(),
            "||time({})".to_owned(),
        ),
        // Behind the start of the call nobody needs the others.
        (
            format!(r#"{{"name": "time", "arguments": {{}}, "id": "{long}", "type": "{long}"}}"#),
            "||time({})".to_owned(),
        ),
        (
            r#"{"name": "time", "arguments": {}, "id": 5}"#.to_owned(),
            "||time({})".to_owned(),
        ),
    ];
    let table = table.map(|(text, expected)| (format!("<tool_call>{text}</tool_call>"), expected));
    for (text, expected) in &table {
        check(
            only_tools(ToolFormat::Hermes),
            &options(),
            &[(text, expected)],
        );
    }
    for refused in [
        r#"{"name": 5, "name": "time", "arguments": {}}"#.to_owned(),
        r#"{"name": "time", "name": "time", "arguments": {}}"#.to_owned(),
        r#"{"arguments": {}, "parameters": {}, "name": "time"}"#.to_owned(),
        format!(r#"{{"id": "{long}", "name": "time", "arguments": {{}}}}"#),
        format!(r#"{{"name": "{long}", "arguments": {{}}}}"#),
    ] {
        let text = format!("<tool_call>{refused}</tool_call>");
        let options = ParserOptions::default();
        check(
            only_tools(ToolFormat::Hermes),
            &options,
            &[(&text, &format!("|{text}|"))],
        );
    }
}

#[test]
fn an_object_that_may_be_the_answer_itself() {
    let table = [
        (
            r#"{"id": "c1", "name": "time", "parameters": {}}"#,
            "||c1:time({})",
        ),
        (
            r#"{"name": "time", "parameters": {}, "id": 5, "x": 1}"#,
            "||time({})",
        ),
        (
            r#"{"id": 5, "name": "time", "parameters": {}}"#,
            r#"|{"id": 5, "name": "time", "parameters": {}}|"#,
        ),
        (
            r#"{"x": 5, "name": "time", "parameters": {}}"#,
            r#"|{"x": 5, "name": "time", "parameters": {}}|"#,
        ),
    ];
    check(only_tools(ToolFormat::Llama3Json), &options(), &table);
}

#[test]
fn arguments_come_once() {
    let text =
        r#"<tool_call>{"name": "time", "arguments": {}, "parameters": {"days": 1}}</tool_call>"#;
    let shown = r#"|"parameters": {"days": 1}}</tool_call>|time({})"#;
    let format = only_tools(ToolFormat::Hermes);
    check(format, &options(), &[(text, shown)]);
}

/// What is too long to be a name is shown before it ends: nothing is held back for ever.
#[test]
fn a_key_that_is_too_long_is_not_held_back() {
    let options = ParserOptions::default();
    let mut parser = AnswerParser::new(only_tools(ToolFormat::Hermes), options);
    let mut deltas = Deltas::default();
    let text = format!(r#"<tool_call>{{"{}"#, "x".repeat(300));
    parser.push(&text, &mut deltas);
    assert_eq!(
        deltas.iter().collect::<Vec<_>>(),
        [Delta::Content(text.as_str())]
    );
}

/// So that a reader of many small pieces has one event of each kind.
#[test]
fn pieces_of_one_kind_are_one_event() {
    let mut parser = AnswerParser::new(only_tools(ToolFormat::Hermes), ParserOptions::default());
    let mut deltas = Deltas::default();
    for piece in ["one ", "two"] {
        parser.push(piece, &mut deltas);
    }
    parser.finish(&mut deltas);
    assert_eq!(
        deltas.iter().collect::<Vec<_>>(),
        [Delta::Content("one two")]
    );
}

#[test]
fn plain_text_is_shown_at_once() {
    let mut parser = AnswerParser::new(Format::default(), ParserOptions::default());
    let mut deltas = Deltas::default();
    parser.push("one", &mut deltas);
    let shown: Vec<Delta<'_>> = deltas.iter().collect();
    assert_eq!(shown, [Delta::Content("one")]);
}
