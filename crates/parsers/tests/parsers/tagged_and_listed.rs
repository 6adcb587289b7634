//! The formats of tags with attributes, of Gemma, and of JSON objects behind a marker, with the texts that their
//! models write, whole and cut at every place.

use crate::formats::{check, only_tools, options};
use crate::support::parse;
use inflight_parsers::{
    AnswerParser, Delta, Deltas, Format, ParserOptions, ReasoningFormat, ToolFormat,
};

#[test]
fn deepseek_v32() {
    let table = [
        (
            "I look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">杭州</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"time\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
            "|I look.\n\n|weather({\"city\": \"杭州\", \"days\": 5}) time({})",
        ),
        // V4, and what else it writes for the outer tag.
        (
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"time\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls> so",
            "| so|time({})",
        ),
        // No outer tag; an object instead of parameters; inner closing tags are missing.
        (
            "<｜DSML｜invoke name=\"weather\">{\"city\": \"a</｜DSML｜invoke>\"}</｜DSML｜invoke>",
            "||weather({\"city\": \"a</｜DSML｜invoke>\"})",
        ),
        (
            "<｜DSML｜tool_calls><｜DSML｜invoke name=\"weather\">\n{\"city\": \"a\"}\n</｜DSML｜tool_calls>",
            "||weather({\"city\": \"a\"})",
        ),
        (
            "<｜DSML｜tool_calls><｜DSML｜invoke name=\"weather\"><｜DSML｜parameter name=\"city\" string=\"true\">a\n<｜DSML｜parameter name=\"days\" string=\"false\">1\n</｜DSML｜invoke></｜DSML｜tool_calls>",
            "||weather({\"city\": \"a\", \"days\": 1})",
        ),
        // What the model says of a value counts as far as the schema allows it.
        (
            "<｜DSML｜invoke name=\"time\"><｜DSML｜parameter name=\"a\" string=\"true\">75</｜DSML｜parameter><｜DSML｜parameter name=\"b\" string=\"false\">\"75\"</｜DSML｜parameter><｜DSML｜parameter name=\"c\">75</｜DSML｜parameter></｜DSML｜invoke>",
            "||time({\"a\": \"75\", \"b\": \"75\", \"c\": 75})",
        ),
        (
            "<｜DSML｜invoke name=\"weather\"><｜DSML｜parameter name=\"city\" string=\"false\">75</｜DSML｜parameter><｜DSML｜parameter name=\"days\" string=\"true\">75</｜DSML｜parameter></｜DSML｜invoke>",
            "||weather({\"city\": \"75\", \"days\": 75})",
        ),
        // Content.
        (
            "<｜DSML｜invoke name=\"nobody\"></｜DSML｜invoke>",
            "|<｜DSML｜invoke name=\"nobody\"></｜DSML｜invoke>|",
        ),
        (
            "<｜DSML｜tool_calls></｜DSML｜tool_calls> <｜DS",
            "|<｜DSML｜tool_calls></｜DSML｜tool_calls> <｜DS|",
        ),
        (
            "<｜DSML｜invoke name=\"time\">now",
            "|<｜DSML｜invoke name=\"time\">now|",
        ),
        // Cut, or malformed after it began.
        (
            "<｜DSML｜invoke name=\"time\"><｜DSML｜parameter name=\"a\" string=\"true\">b</｜DS",
            "||time({\"a\": \"b)!",
        ),
        (
            "<｜DSML｜invoke name=\"time\"><｜DSML｜parameter name=\"a\" string=\"true\">b</｜DSML｜parameter>x",
            "|x|time({\"a\": \"b\")!",
        ),
    ];
    check(only_tools(ToolFormat::DeepseekV32), &options(), &table);
}

#[test]
fn minimax_m2() {
    let table = [
        (
            "So.\n<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">San Francisco</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"time\">\n</invoke>\n</minimax:tool_call>",
            "|So.\n|weather({\"city\": \"San Francisco\", \"days\": 3}) time({})",
        ),
        (
            "<minimax:tool_call><invoke name='weather'><parameter name=city> a\n</parameter></invoke></minimax:tool_call>",
            "||weather({\"city\": \" a\\n\"})",
        ),
        // A closing tag is missing, or the value mentions one.
        (
            "<minimax:tool_call><invoke name=\"weather\"><parameter name=\"city\">a\n<parameter name=\"days\">1</minimax:tool_call></parameter></invoke></minimax:tool_call>",
            "||weather({\"city\": \"a\", \"days\": \"1</minimax:tool_call>\"})",
        ),
        (
            "<minimax:tool_call><invoke name=\"search\"><parameter name=\"city\"></invoke> <parameter name=\"x\">\n</parameter></invoke></minimax:tool_call>",
            "||search({\"city\": \"</invoke> <parameter name=\\\"x\\\">\\n\"})",
        ),
        (
            "Use <invoke name=\"time\"> here",
            "|Use <invoke name=\"time\"> here|",
        ),
    ];
    check(only_tools(ToolFormat::MinimaxM2), &options(), &table);
}

#[test]
fn gemma4() {
    let table = [
        (
            "<|tool_call>call:weather{city:<|\"|>Paris, \"F\"\n<|\"|>,days:3}<tool_call|>",
            "||weather({\"city\": \"Paris, \\\"F\\\"\\n\", \"days\": 3})",
        ),
        (
            "I look.<|tool_call>call:time{}<tool_call|><|tool_call>call:search{where:{a:[<|\"|>}<|\"|>,true,null,-1.5],<|\"|>b c<|\"|>:{}}}<tool_call|> so",
            "|I look. so|time({}) search({\"where\": {\"a\": [\"}\", true, null, -1.5], \"b c\": {}}})",
        ),
        // White space, JSON's own strings, and strings without delimiters.
        (
            "<|tool_call> call: weather { city : Paris , days: 07, x: \"a, \\\"b\\\"\",}<tool_call|>",
            "||weather({\"city\": \"Paris\", \"days\": \"07\", \"x\": \"a, \\\"b\\\"\"})",
        ),
        ("<|tool_call>call:time{} so", "| so|time({})"),
        (
            "<|tool_call>call:time{a:None,b:nil,c:none,d:false,e:nothing}<tool_call|>",
            "||time({\"a\": null, \"b\": null, \"c\": null, \"d\": false, \"e\": \"nothing\"})",
        ),
        // Content.
        (
            "<|tool_call>call:nobody{}<tool_call|>",
            "|<|tool_call>call:nobody{}<tool_call|>|",
        ),
        ("<|tool_call>time{}", "|<|tool_call>time{}|"),
        ("a <|tool", "|a <|tool|"),
        // Cut, or malformed after it began.
        (
            "<|tool_call>call:weather{city:<|\"|>Pa<|",
            "||weather({\"city\": \"Pa)!",
        ),
        ("<|tool_call>call:weather{days:1", "||weather({\"days\": )!"),
        (
            "<|tool_call>call:weather{days:}<tool_call|>",
            "|}<tool_call|>|weather({\"days\": )!",
        ),
        (
            "<|tool_call>call:weather{days:[1}<tool_call|>",
            "|}<tool_call|>|weather({\"days\": [1)!",
        ),
        (
            "<|tool_call>call:weather{city:\"Paris\\x41\"}<tool_call|>",
            "|\\x41\"}<tool_call|>|weather({\"city\": \"Paris)!",
        ),
    ];
    check(only_tools(ToolFormat::Gemma4), &options(), &table);

    let format = Format {
        tools: Some(ToolFormat::Gemma4),
        reasoning: Some(ReasoningFormat::Gemma4),
    };
    let table = [
        (
            "<|channel>thought\nI look.\n<channel|><|tool_call>call:time{}<tool_call|>",
            "I look.||time({})",
        ),
        ("<|channel>thought\n<channel|>Hi.", "|Hi.|"),
        (
            "<|channel>thought\nI look.<|tool_call>call:time{}<tool_call|>",
            "I look.||time({})",
        ),
    ];
    check(format, &options(), &table);
    assert!(format.opens_reasoning("<|turn>model\n<|channel>thought\n"));
    assert!(!format.opens_reasoning("<|turn>model\n<|channel>thought\n<channel|>"));
}

/// A value whose closing tag is missing ends where its call does, if what follows a call is near.
#[test]
fn a_value_without_its_closing_tag_ends_with_its_call() {
    let text = |spaces: usize, then: &str| {
        let spaces = " ".repeat(spaces);
        format!(
            "<minimax:tool_call><invoke name=\"time\"><parameter name=\"x\">a</invoke>{spaces}{then}"
        )
    };
    let format = only_tools(ToolFormat::MinimaxM2);
    for then in [
        "</minimax:tool_call>",
        "<invoke name=\"time\"></invoke></minimax:tool_call>",
    ] {
        let near = parse(format, &options(), [text(256, then).as_str()]);
        assert_eq!(near.calls[0].arguments, "{\"x\": \"a\"}");
        assert_eq!(near.calls[0].is_complete, Some(true));
        let far = parse(format, &options(), [text(257, then).as_str()]);
        assert!(far.calls[0].arguments.starts_with("{\"x\": \"a</invoke> "));
        assert_eq!(far.calls.len(), 1);
    }
    // Nor is it held back for what comes too late to count.
    for (spaces, shown) in [(256, false), (257, true)] {
        let mut parser = AnswerParser::new(format, options());
        let mut deltas = Deltas::default();
        parser.push(&text(spaces, "</mini"), &mut deltas);
        let is_shown =
            |delta| matches!(delta, Delta::CallArguments { json, .. } if json.contains("invoke"));
        assert_eq!(deltas.iter().any(is_shown), shown, "{spaces}");
    }
}

#[test]
fn gemma4_has_bounds() {
    let call = |arguments: &str| format!("<|tool_call>call:time{{{arguments}}}<tool_call|>");
    let format = only_tools(ToolFormat::Gemma4);
    // With the arguments' own object, 100 levels.
    let nested = |depth| "[".repeat(depth) + &"]".repeat(depth);
    let arguments = format!("||time({{\"a\": {}}})", nested(99));
    let deepest = call(&format!("a:{}", nested(99)));
    check(format, &options(), &[(&deepest, &arguments)]);
    let too_deep = parse(
        format,
        &options(),
        [call(&format!("a:{}", nested(100))).as_str()],
    );
    assert_eq!(too_deep.calls[0].is_complete, Some(false));
    for key in ["a\"b", "a\\b", "a\u{1}b", ""] {
        let answer = parse(format, &options(), [call(&format!("{key}:1")).as_str()]);
        assert_eq!(answer.calls[0].is_complete, Some(false), "{key:?}");
        assert_eq!(answer.calls[0].arguments, "{", "{key:?}");
    }
    // A word that is too long breaks the call at once, not at the end of the answer.
    let mut parser = AnswerParser::new(format, options());
    let mut deltas = Deltas::default();
    parser.push(
        &format!("<|tool_call>call:time{{a:{}", "x".repeat(100_000)),
        &mut deltas,
    );
    let ended = |delta| {
        matches!(
            delta,
            Delta::CallEnd {
                is_complete: false,
                ..
            }
        )
    };
    assert!(deltas.iter().any(ended));
}

#[test]
fn a_marker_announces_other_json_only_where_it_does_for_the_model() {
    let call = "[{\"name\": \"time\", \"arguments\": {}}]";
    for (tools, text, expected) in [
        (
            ToolFormat::Phi4MiniJson,
            format!("<|tool_call|>json{call}"),
            format!("|<|tool_call|>json{call}|"),
        ),
        (
            ToolFormat::Xlam,
            format!("[TOOL_CALLS]json{call}"),
            "||time({})".to_owned(),
        ),
    ] {
        check(only_tools(tools), &options(), &[(&text, &expected)]);
    }
}

#[test]
fn objects_behind_a_marker() {
    let call = "{\"name\": \"time\", \"arguments\": {\"a\": [\"]\"]}}";
    let arguments = "time({\"a\": [\"]\"]})";
    for (tools, start, end) in [
        (ToolFormat::Phi4MiniJson, "functools", ""),
        (ToolFormat::Phi4MiniJson, "<|tool_call|>", "<|/tool_call|>"),
        (ToolFormat::Granite, "<|tool_call|>", ""),
        (ToolFormat::Granite, "<tool_call> ", ""),
        (ToolFormat::Jamba, "<tool_calls>", "</tool_calls>"),
        (ToolFormat::Xlam, "```json\n", "\n```"),
        (ToolFormat::Xlam, "[TOOL_CALLS]", ""),
        (
            ToolFormat::Internlm,
            "<|action_start|><|plugin|>",
            "<|action_end|>",
        ),
    ] {
        let table = [
            (format!("{start}[{call}]{end}"), format!("||{arguments}")),
            (
                format!("\n{start}[\n  {call},\n  {call}\n]{end}\n"),
                format!("||{arguments} {arguments}"),
            ),
            (
                format!("I look.\n{start}[{call}]{end}\nDone."),
                format!("|I look.\n\nDone.|{arguments}"),
            ),
            // Objects without an array, and what closes is missing.
            (
                format!("{start}\n{call}\n{call}\n{end}"),
                format!("||{arguments} {arguments}"),
            ),
            (format!("{start}[{call}] so"), format!("| so|{arguments}")),
            // Content.
            (format!("{start}[]"), format!("|{start}[]|")),
            (format!("a {start}\nb"), format!("|a {start}\nb|")),
            (
                format!("{start}[{{\"name\": \"nobody\", \"arguments\": {{}}}}]"),
                format!("|{start}[{{\"name\": \"nobody\", \"arguments\": {{}}}}]|"),
            ),
            (
                format!("{start}[{{\"name\": \"time\", \"arguments\": \"x\"}}]"),
                format!("|{start}[{{\"name\": \"time\", \"arguments\": \"x\"}}]|"),
            ),
            // Cut.
            (
                format!("{start}[{{\"name\": \"time\", \"arguments\": {{"),
                "||time({)!".to_owned(),
            ),
        ];
        for (text, expected) in &table {
            check(only_tools(tools), &options(), &[(text, expected)]);
        }
        let format = Format {
            tools: Some(tools),
            reasoning: Some(ReasoningFormat::Think),
        };
        let text = format!("<think>a {start} b {start}[{call}]{end}");
        let expected = format!("a {} b||{arguments}", start);
        check(format, &options(), &[(&text, &expected)]);
    }
}

#[test]
fn xlam_without_a_marker() {
    let table = [
        (
            "[{\"name\": \"time\", \"arguments\": {}}, {\"name\": \"time\", \"arguments\": {}}]",
            "||time({}) time({})",
        ),
        // JSON that is the answer.
        ("[1]", "|[1]|"),
        ("[", "|[|"),
        ("[TOOL", "|[TOOL|"),
        (
            "[{\"name\": \"Bob\", \"age\": 3}]",
            "|[{\"name\": \"Bob\", \"age\": 3}]|",
        ),
        ("```json\n{\"a\": 1}\n```", "|```json\n{\"a\": 1}\n```|"),
        ("```js\nx\n```", "|```js\nx\n```|"),
        (
            "a [{\"name\": \"time\", \"arguments\": {}}]",
            "|a [{\"name\": \"time\", \"arguments\": {}}]|",
        ),
    ];
    check(only_tools(ToolFormat::Xlam), &options(), &table);
}

#[test]
fn held_calls_of_these_formats_are_content_where_they_break() {
    let options = ParserOptions {
        holds_calls: true,
        ..options()
    };
    for (tools, text) in [
        (
            ToolFormat::DeepseekV32,
            "a <｜DSML｜invoke name=\"time\">\n<｜DSML｜parameter name=\"a\">b</｜DSML｜parameter>x",
        ),
        (
            ToolFormat::MinimaxM2,
            "<minimax:tool_call> <invoke name=\"time\"><parameter name=a>b",
        ),
        (
            ToolFormat::Gemma4,
            "\n<|tool_call>call:weather{days:[1}<tool_call|>",
        ),
        (
            ToolFormat::Granite,
            "<|tool_call|> [{\"name\": \"time\", \"arguments\": {",
        ),
    ] {
        check(only_tools(tools), &options, &[(text, &format!("|{text}|"))]);
    }
}
