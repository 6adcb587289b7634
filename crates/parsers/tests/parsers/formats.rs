//! Every format with the texts that its models write, whole and cut at every place.

use crate::support::{Answer, parse, parse_every_way, pieces, tools};
use inflight_parsers::{
    AnswerParser, CallIdForm, Delta, Deltas, Format, ParserOptions, ReasoningFormat, ToolFormat,
};
use serde_json::json;

/// Known tools, as most requests have them.
pub(crate) fn options() -> ParserOptions {
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
pub(crate) fn check(format: Format, options: &ParserOptions, table: &[(&str, &str)]) {
    for (text, expected) in table {
        let answer = parse_every_way(format, options, text);
        assert_eq!(notation(&answer), *expected, "{text:?}");
    }
}

pub(crate) fn only_tools(tools: ToolFormat) -> Format {
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
        (
            "<tool_call>{\"name\": \"weather\", \"arguments\": \"{\\\"city\\\": \\\"a\\nb\\\"}\"}</tool_call>",
            "||weather({\"city\": \"a\\nb\"})",
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
        (
            "<tool_call>{\"name\": \"time\", \"arguments\": {}}\n</tool_",
            "||time({})",
        ),
        (
            "<tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call> <tool_",
            "| <tool_|time({})",
        ),
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
        error.starts_with("unknown tool parser `herpes`; use one of `hermes`"),
        "{error}"
    );
    for format in ToolFormat::all() {
        assert_eq!(format.name().parse(), Ok(format));
    }
    for format in ReasoningFormat::all() {
        assert_eq!(format.name().parse(), Ok(format));
    }
}

#[test]
fn mistral_needs_ids_of_nine_characters() {
    let form = ToolFormat::Mistral.call_id_form();
    assert_eq!(form, CallIdForm::NineAlphanumerics);
    for (id, fits) in [
        ("abc123DEF", true),
        ("call_U1yPJ2C9vp3DVCunLBXt", false),
        ("toolu_01", false),
        ("abc-12345", false),
        ("日本日", false),
        ("", false),
    ] {
        assert_eq!(form.accepts(id), fits, "{id}");
        let fitting = form.fit(id);
        assert!(form.accepts(&fitting), "{id} {fitting}");
        assert_eq!(fitting == id, fits, "{id}");
        assert_eq!(form.fit(id), fitting, "the same for the same id");
    }
    assert_ne!(form.fit("call_1"), form.fit("call_2"));
    for bits in [0, 61, 62, u64::MAX] {
        assert!(form.accepts(&form.random(bits).unwrap()), "{bits}");
    }
    let any = ToolFormat::Hermes.call_id_form();
    assert_eq!(
        (any.fit("call_1").as_ref(), any.random(1)),
        ("call_1", None)
    );
}

#[test]
fn qwen3_coder() {
    let table = [
        (
            "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
            "||weather({\"city\": \"Paris\", \"days\": 3})",
        ),
        (
            "I look.\n<tool_call>\n<function=time>\n</function>\n</tool_call>\n<tool_call><function=time></function></tool_call> Done.",
            "|I look.\n Done.|time({}) time({})",
        ),
        // A value's own line ends stay, and so does its white space.
        (
            "<tool_call><function=search><parameter=city>\n\n a\n\n</parameter></function></tool_call>",
            "||search({\"city\": \"\\n a\\n\"})",
        ),
        (
            "<tool_call><function=search><parameter=city>\n</parameter></function></tool_call>",
            "||search({\"city\": \"\"})",
        ),
        // Types come from the schema: a number stays a string where a string was asked for.
        (
            "<tool_call><function=weather><parameter=city>75</parameter><parameter=days>many</parameter></function></tool_call>",
            "||weather({\"city\": \"75\", \"days\": \"many\"})",
        ),
        (
            "<tool_call><function=weather><parameter=where>\n{\"a\": [1, \"<x>\"]}\n</parameter><parameter=x>[1</parameter><parameter=y>True</parameter></function></tool_call>",
            "||weather({\"where\": {\"a\": [1, \"<x>\"]}, \"x\": \"[1\", \"y\": true})",
        ),
        (
            "<tool_call><function=weather><parameter=where>{'a': None}</parameter></function></tool_call>",
            "||weather({\"where\": {\"a\": null}})",
        ),
        (
            "<tool_call><function=search><parameter=city>if a < b && c > \"d\" { \\n }\n\t日</para</parameter></function></tool_call>",
            "||search({\"city\": \"if a < b && c > \\\"d\\\" { \\\\n }\\n\\t日</para\"})",
        ),
        (
            "<seed:tool_call>\n<function=time>\n</function>\n</seed:tool_call>",
            "||time({})",
        ),
        // The tag that closes a parameter is missing.
        (
            "<tool_call>\n<function=weather>\n<parameter=city>\nDallas\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
            "||weather({\"city\": \"Dallas\", \"days\": 3})",
        ),
        (
            "<tool_call><function=weather><parameter=city>Dallas<parameter=days>3</function></tool_call> so",
            "| so|weather({\"city\": \"Dallas\", \"days\": 3})",
        ),
        (
            "<tool_call>\n<function=weather>\n<parameter=city>\nDallas\n</function>\n</tool_call>\n<tool_call><function=time></function></tool_call>",
            "||weather({\"city\": \"Dallas\"}) time({})",
        ),
        (
            "<tool_call><function=time><parameter=a>b\n<parameter=c>d</parameter></function></tool_call>",
            "||time({\"a\": \"b\", \"c\": \"d\"})",
        ),
        // A value may mention the tags: other parameters, its own, and a function that goes on.
        (
            "<tool_call><function=weather><parameter=city>\na\n<parameter=other>\n<parameter=city>b</function>c</parameter></function></tool_call>",
            "||weather({\"city\": \"a\\n<parameter=other>\\n<parameter=city>b</function>c\"})",
        ),
        (
            "<tool_call><function=time><parameter=a>b\n<parameter=c d>e</parameter></function></tool_call>",
            "||time({\"a\": \"b\\n<parameter=c d>e\"})",
        ),
        (
            "<tool_call><function=time><parameter=a>b<parameter=c>d <parameter=</parameter></function></tool_call>",
            "||time({\"a\": \"b<parameter=c>d <parameter=\"})",
        ),
        // Outer or inner tags are missing.
        ("<function=time></function> so", "| so|time({})"),
        ("<tool_call><function=time></tool_call>so", "|so|time({})"),
        (
            "<tool_call><function=time></function><function=weather></function></tool_call>",
            "||time({}) weather({})",
        ),
        // Content.
        (
            "A <tool_call> is <function=f>, a <b> tag",
            "|A <tool_call> is <function=f>, a <b> tag|",
        ),
        (
            "<tool_call>\n<function=nobody>\n</function>",
            "|<tool_call>\n<function=nobody>\n</function>|",
        ),
        ("<tool_call></tool_call>", "|<tool_call></tool_call>|"),
        // Cut, or malformed after it began.
        (
            "<tool_call><function=time><parameter=a>b</par",
            "||time({\"a\": \"b)!",
        ),
        (
            "<tool_call><function=weather><parameter=days>3",
            "||weather({\"days\": )!",
        ),
        (
            "<tool_call><function=time>what</function>",
            "|what</function>|time({)!",
        ),
    ];
    check(only_tools(ToolFormat::Qwen3Coder), &options(), &table);
}

#[test]
fn glm45() {
    let table = [
        (
            "<tool_call>weather<arg_key>where</arg_key><arg_value>{\"a\": \"b\tc\"}</arg_value></tool_call>",
            "||weather({\"where\": {\"a\": \"b\\tc\"}})",
        ),
        (
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
            "||weather({\"city\": \"Paris\", \"days\": 3})",
        ),
        (
            "\nOne.\n<tool_call>time</tool_call>\n<tool_call>time\n</tool_call>",
            "|\nOne.\n|time({}) time({})",
        ),
        (
            "<tool_call>weather<arg_key>city</arg_key><arg_value> 1\n</arg_value><arg_key>x</arg_key><arg_value>\"q\"</arg_value></tool_call>",
            "||weather({\"city\": \" 1\\n\", \"x\": \"\\\"q\\\"\"})",
        ),
        (
            "<tool_call>weather<arg_key>where</arg_key><arg_value>{\"a\": [1]}</arg_value></tool_call> end",
            "| end|weather({\"where\": {\"a\": [1]}})",
        ),
        (
            "<tool_call>nobody</tool_call>",
            "|<tool_call>nobody</tool_call>|",
        ),
        ("A <tool_call> tag, a < b", "|A <tool_call> tag, a < b|"),
        (
            "<tool_call>weather<arg_key>city</arg_key>x</tool_call>",
            "|x</tool_call>|weather({)!",
        ),
        (
            "<tool_call>weather<arg_key>city</arg_key><arg_value>Pa</arg_va",
            "||weather({\"city\": \"Pa)!",
        ),
    ];
    check(only_tools(ToolFormat::Glm45), &options(), &table);
}

#[test]
fn llama3_json() {
    let table = [
        (
            "{\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}",
            "||weather({\"city\": \"Paris\"})",
        ),
        (
            "<|python_tag|>{\"type\": \"function\", \"name\": \"time\", \"parameters\": {}}",
            "||time({})",
        ),
        (
            "\n{\"name\": \"time\", \"arguments\": {}}; {\"name\": \"weather\", \"parameters\": {\"days\": 1}}\n",
            "||time({}) weather({\"days\": 1})",
        ),
        (
            "{\"name\": \"time\", \"parameters\": {}}{\"name\": \"time\", \"parameters\": {}} and text",
            "| and text|time({}) time({})",
        ),
        (
            "I look.\n{\"name\": \"time\", \"parameters\": {}}",
            "|I look.\n|time({})",
        ),
        (
            "I look. <|python_tag|>{\"name\": \"time\", \"parameters\": {}}",
            "|I look. |time({})",
        ),
        // JSON that is the answer.
        (
            "{\"name\": \"Bob\", \"age\": 3}",
            "|{\"name\": \"Bob\", \"age\": 3}|",
        ),
        (
            "{\"name\": \"time\", \"age\": 3}",
            "|{\"name\": \"time\", \"age\": 3}|",
        ),
        ("{\"name\": \"time\"}", "|{\"name\": \"time\"}|"),
        (
            "{\"parameters\": {}, \"name\": \"time\"}",
            "|{\"parameters\": {}, \"name\": \"time\"}|",
        ),
        (
            "{\"a\": {\"name\": \"time\", \"parameters\": {}}}",
            "|{\"a\": {\"name\": \"time\", \"parameters\": {}}}|",
        ),
        ("{} {", "|{} {|"),
        ("[1]", "|[1]|"),
        (
            "In a line {\"name\": \"time\", \"parameters\": {}}",
            "|In a line {\"name\": \"time\", \"parameters\": {}}|",
        ),
        (
            "<|python_tag|>search.call(query=\"x\")",
            "|<|python_tag|>search.call(query=\"x\")|",
        ),
        // Cut or malformed.
        (
            "{\"name\": \"time\", \"para",
            "|{\"name\": \"time\", \"para|",
        ),
        (
            "{\"name\": \"time\", \"parameters\": {\"a\": ",
            "||time({\"a\": )!",
        ),
        ("{\"name\": \"time\", \"parameters\": {a}}", "|a}}|time({)!"),
    ];
    check(only_tools(ToolFormat::Llama3Json), &options(), &table);

    // Where names are not known, less is a call.
    let table = [
        ("{\"name\": \"x\", \"parameters\": {}}", "||x({})"),
        (
            "So:\n{\"name\": \"x\", \"parameters\": {}}",
            "|So:\n{\"name\": \"x\", \"parameters\": {}}|",
        ),
        (
            "{\"name\": \"Bob\", \"age\": 3}",
            "|{\"name\": \"Bob\", \"age\": 3}|",
        ),
    ];
    check(
        only_tools(ToolFormat::Llama3Json),
        &ParserOptions::default(),
        &table,
    );
}

#[test]
fn what_follows_may_be_longer_than_a_name() {
    let long = "y".repeat(300);
    for (format, text, expected) in [
        (
            ToolFormat::Pythonic,
            format!("[search(query='{long}')]"),
            format!("||search({{\"query\": \"{long}\"}})"),
        ),
        (
            ToolFormat::Qwen3Coder,
            format!(
                "<tool_call><function=weather><parameter=city>Dallas</function></tool_call> {long}"
            ),
            format!("| {long}|weather({{\"city\": \"Dallas\"}})"),
        ),
    ] {
        check(only_tools(format), &options(), &[(&text, &expected)]);
    }
}

#[test]
fn pythonic() {
    let table = [
        (
            "[weather(city=\"Zürich\")]",
            "||weather({\"city\": \"Zürich\"})",
        ),
        (
            "[search(query=\"日日\")]",
            "||search({\"query\": \"日日\"})",
        ),
        (
            "[weather(city='Paris', days=3), time( ), search(where={'a': [1, True, None], 'b': {}}, x = -1.5)]",
            "||weather({\"city\": \"Paris\", \"days\": 3}) time({}) search({\"where\": {\"a\": [1, true, null], \"b\": {}}, \"x\": -1.5})",
        ),
        ("<|python_start|>[time()]<|python_end|>", "||time({})"),
        (
            "I look.\n[time()] and\n\n[ weather(city=\"a)]\\\"'\",)\n, ] done",
            "|I look.\n and\n\n done|time({}) weather({\"city\": \"a)]\\\"'\"})",
        ),
        ("[time()][time()]", "||time({}) time({})"),
        (
            "<|tool_call_start|>[time()]<|tool_call_end|>I look.",
            "|I look.|time({})",
        ),
        // Quotes within a string of the same quotes, as far as that cannot be anything else; zeros before a number.
        (
            "<|tool_call_start|>[search(query='sed -n '360,450p' /a/b.py', days=07)]<|tool_call_end|>",
            "||search({\"query\": \"sed -n '360,450p' /a/b.py\", \"days\": 7})",
        ),
        (
            "[search(query='python3 -c \"f(x, s='\\,'))\"')]",
            "||search({\"query\": \"python3 -c \\\"f(x, s='\\\\,'))\\\"\"})",
        ),
        (
            "[search(query=\"say \"hi, x\" now\", where={'a': 'b 'c' d', 'e': ['f 'g'', 'h']})]",
            "||search({\"query\": \"say \\\"hi, x\\\" now\", \"where\": {\"a\": \"b 'c' d\", \"e\": [\"f 'g'\", \"h\"]}})",
        ),
        (
            "[search(query='a', days=-00, x='') , time(a='b' ) ]",
            "||search({\"query\": \"a\", \"days\": -0, \"x\": \"\"}) time({\"a\": \"b\"})",
        ),
        // Calls in lines.
        (
            "<function_calls>weather(city='Paris', days=3)\ntime()\n\nsearch(where={'a': null})</function_calls> so\n[time()]",
            "| so\n|weather({\"city\": \"Paris\", \"days\": 3}) time({}) search({\"where\": {\"a\": null}}) time({})",
        ),
        (
            "I look.\n<function_calls>\ntime()\n</function_calls>",
            "|I look.\n|time({})",
        ),
        (
            "<function_calls>nobody()</function_calls>",
            "|<function_calls>nobody()</function_calls>|",
        ),
        (
            "Use <function_calls> tags: time()",
            "|Use <function_calls> tags: time()|",
        ),
        ("<function_calls>time() so", "| so|time({})"),
        (
            "I look. <function_calls>time()</function_calls>",
            "|I look. |time({})",
        ),
        // Only one that opens them makes lines of them.
        ("time()", "|time()|"),
        ("[time() time()]", "| time()]|time({})"),
        ("[time(=1)]", "|[time(=1)]|"),
        // The end of the answer decides.
        ("[time(a='b')", "||time({\"a\": \"b\"})"),
        ("[time(a='b'", "||time({\"a\": \"b\")!"),
        ("[time(a='b', c", "||time({\"a\": \"b\")!"),
        ("[time(a='b') so", "| so|time({\"a\": \"b\"})"),
        ("[time(a='b' 'c')]", "|'c')]|time({\"a\": \"b\")!"),
        // Lists that are the answer.
        ("[1]", "|[1]|"),
        ("[x]", "|[x]|"),
        ("[time]", "|[time]|"),
        ("[", "|[|"),
        ("[nobody(a=1)]", "|[nobody(a=1)]|"),
        ("[time(1)]", "|[time(1)]|"),
        ("see [time()]", "|see [time()]|"),
        ("a <", "|a <|"),
        (
            "<|python_start|>x = 1<|python_end|>",
            "|<|python_start|>x = 1<|python_end|>|",
        ),
        // Cut or malformed.
        ("[time(a=\"b", "||time({\"a\": \"b)!"),
        ("[time(a=\"\\u00", "||time({\"a\": \")!"),
        ("[time(a=1", "||time({\"a\": )!"),
        ("[time(a=b)]", "|b)]|time({\"a\": )!"),
        ("[time(a=1, 2)]", "|2)]|time({\"a\": 1)!"),
        ("[time(), x]", "|, x]|time({})"),
    ];
    check(only_tools(ToolFormat::Pythonic), &options(), &table);
}

#[test]
fn mistral() {
    let table = [
        (
            "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}]",
            "||weather({\"city\": \"Paris\"})",
        ),
        (
            "[TOOL_CALLS][{\"name\":\"time\",\"arguments\":{}},{\"arguments\":{\"a\":\"]}\"},\"name\":\"time\",\"id\":\"abc123def\"}] after",
            "| after|time({}) abc123def:time({\"a\":\"]}\"})",
        ),
        (
            "So. [TOOL_CALLS]weather[ARGS]{\"city\": \"Paris\"}[TOOL_CALLS]time[ARGS]{}",
            "|So. |weather({\"city\": \"Paris\"}) time({})",
        ),
        (
            "[TOOL_CALLS]weather[CALL_ID]abc123def[ARGS]{\"days\": 1} after",
            "| after|abc123def:weather({\"days\": 1})",
        ),
        ("[TOOL_CALLS]time{}", "||time({})"),
        (
            "[TOOL_CALLS] {\"name\": \"time\", \"arguments\": {}}",
            "||time({})",
        ),
        // Content.
        ("[1] [TOOL", "|[1] [TOOL|"),
        ("[TOOL_CALLS]nobody[ARGS]{}", "|[TOOL_CALLS]nobody[ARGS]{}|"),
        ("[TOOL_CALLS] []", "|[TOOL_CALLS] []|"),
        ("[TOOL_CALLS]time[ARGS]no", "|[TOOL_CALLS]time[ARGS]no|"),
        ("[TOOL_CALLS]time", "|[TOOL_CALLS]time|"),
        (
            "[TOOL_CALLS][{\"name\": \"time\", \"arguments\": {}}, 1]",
            "|, 1]|time({})",
        ),
        // Cut or malformed.
        ("[TOOL_CALLS]time[ARGS]{\"a\": \"\\", "||time({\"a\": \")!"),
        ("[TOOL_CALLS]time[ARGS]{]", "|]|time({)!"),
    ];
    check(only_tools(ToolFormat::Mistral), &options(), &table);
}

#[test]
fn deepseek() {
    let table = [
        (
            "So.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "|So.|weather({\"city\": \"Paris\"}) time({})",
        ),
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"```\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Rome\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜> after",
            "| after|weather({\"city\": \"```\"}) weather({\"city\": \"Rome\"})",
        ),
        // No section, and no ends.
        (
            "<｜tool▁call▁begin｜>time<｜tool▁sep｜>{}<｜tool▁call▁begin｜>time<｜tool▁sep｜>{}",
            "||time({}) time({})",
        ),
        (
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```\n{}\n```",
            "||time({})",
        ),
        // Content.
        ("<｜tool▁calls▁begin｜>x", "|<｜tool▁calls▁begin｜>x|"),
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>nobody<｜tool▁sep｜>{}",
            "|<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>nobody<｜tool▁sep｜>{}|",
        ),
        ("a <｜b", "|a <｜b|"),
        (
            "<｜tool▁call▁begin｜>tool<｜tool▁sep｜>time\n```json\n{}\n```<｜tool▁call▁end｜>",
            "|<｜tool▁call▁begin｜>tool<｜tool▁sep｜>time\n```json\n{}\n```<｜tool▁call▁end｜>|",
        ),
        (
            "<｜tool▁call▁begin｜>time<｜tool▁sep｜>{}<｜tool▁call▁end｜> after",
            "| after|time({})",
        ),
        (
            "<｜tool▁call▁begin｜>time<｜tool▁sep｜>x",
            "|<｜tool▁call▁begin｜>time<｜tool▁sep｜>x|",
        ),
        // Cut.
        (
            "<｜tool▁call▁begin｜>time<｜tool▁sep｜>{\"a\":",
            "||time({\"a\":)!",
        ),
    ];
    for format in [ToolFormat::DeepseekV3, ToolFormat::DeepseekV31] {
        check(only_tools(format), &options(), &table);
    }
}

#[test]
fn kimi_k2() {
    let table = [
        (
            "<|tool_calls_section_begin|> <|tool_calls_section_end|>",
            "|<|tool_calls_section_begin|> <|tool_calls_section_end|>|",
        ),
        (
            "So.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": \"Paris\"}<|tool_call_end|><|tool_call_begin|>functions.time:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
            "|So.|functions.weather:0:weather({\"city\": \"Paris\"}) functions.time:1:time({})",
        ),
        (
            "<|tool_calls_section_begin|> <|tool_call_begin|> time <|tool_call_argument_begin|> {} <|tool_call_end|> <|tool_calls_section_end|> after",
            "| after|time:time({})",
        ),
        (
            "<|tool_call_begin|>functions.time:x<|tool_call_argument_begin|>{}",
            "|<|tool_call_begin|>functions.time:x<|tool_call_argument_begin|>{}|",
        ),
        (
            "<|tool_call_begin|>functions.nobody:0<|tool_call_argument_begin|>{}",
            "|<|tool_call_begin|>functions.nobody:0<|tool_call_argument_begin|>{}|",
        ),
    ];
    check(only_tools(ToolFormat::KimiK2), &options(), &table);
}

#[test]
fn harmony() {
    let format = Format {
        tools: Some(ToolFormat::Harmony),
        reasoning: Some(ReasoningFormat::Harmony),
    };
    let table = [
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi.<|return|>",
            "Hm.|Hi.|",
        ),
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>",
            "Hm.||weather({\"city\": \"Paris\"})",
        ),
        (
            " to=functions.time<|channel|>commentary<|message|>{}<|call|><|start|>assistant to=functions.time<|channel|>commentary json<|message|>{}",
            "||time({}) time({})",
        ),
        (
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b\n<|end|><|start|>assistant<|channel|>commentary<|message|>c<|end|><|start|>assistant<|channel|>final<|message|>\nd",
            "a\nb|c\nd|",
        ),
        (
            "<|channel|>commentary to=functions.time<|message|> \n{}<|call|>",
            "||time({})",
        ),
        // Channels are missing, doubled, or not closed; text stands between messages.
        ("Plain text, a < b.", "|Plain text, a < b.|"),
        ("<|message|>Hi.<|return|>", "|Hi.|"),
        ("<|channel|><|channel|>analysis<|message|>a<|end|>", "a||"),
        (
            "<|channel|>analysis<|message|>a<|channel|>final<|message|>b",
            "a|b|",
        ),
        (
            "<|channel|>analysis<|message|>a<|end|> stray <|start|>assistant<|channel|>final<|message|>b",
            "a|stray \nb|",
        ),
        (
            "<|channel|>commentary to=functions.time<|message|><|call|>",
            "||time({})",
        ),
        (
            "<|channel|>commentary to=functions.time<|message|>{\"a\": \"<|call|>\"}<|call|>",
            "||time({\"a\": \"<|call|>\"})",
        ),
        // Messages to no function of the request.
        (
            "<|channel|>commentary to=functions.nobody<|message|>{}<|call|>",
            "|<|channel|>commentary to=functions.nobody<|message|>{}|",
        ),
        (
            "<|channel|>commentary to=functions.time<|message|>no<|call|>",
            "|<|channel|>commentary to=functions.time<|message|>no|",
        ),
        // Cut.
        ("<|channel|>analysis<|message|>a<|en", "a<|en||"),
        ("<|channel|>final<|message|>a<|en", "|a<|en|"),
        ("<|channel|>final<|mess", "||"),
        ("to=fun", "|to=fun|"),
        (
            "<|channel|>commentary to=functions.time<|message|>{\"a\": 1",
            "||time({\"a\": 1)!",
        ),
    ];
    check(format, &options(), &table);

    // Without tools calls are content, and reasoning is still reasoning.
    let format = Format {
        tools: None,
        reasoning: Some(ReasoningFormat::Harmony),
    };
    let table = [(
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant to=functions.time<|channel|>commentary<|message|>{}",
        "a|<|start|>assistant to=functions.time<|channel|>commentary<|message|>{}|",
    )];
    check(format, &options(), &table);
    assert!(format.opens_reasoning("<|start|>assistant<|channel|>analysis<|message|>"));
    let open = ParserOptions {
        is_reasoning_open: true,
        ..options()
    };
    check(
        format,
        &open,
        &[("a<|end|><|channel|>final<|message|>b", "a|b|")],
    );
}

#[test]
fn an_answer_between_tags() {
    let format = Format {
        tools: Some(ToolFormat::Hermes),
        reasoning: Some(ReasoningFormat::ThinkAnswer),
    };
    let table = [
        ("<think>\na\n</think>\n<answer>\nb\n</answer>", "a|b|"),
        ("<think>a</think>\n\n<response>\nb</response>\n", "a|b\n|"),
        (
            "<think>\n\n</think>\n<answer>\nb < c </ans",
            "|b < c </ans|",
        ),
        ("<think>a</think>\n<ans", "a|<ans|"),
        // Only what was opened is closed, and once.
        ("<think>a</think>b</answer>", "a|b</answer>|"),
        (
            "<think>a</think><answer>b</response></answer></answer>",
            "a|b</response></answer>|",
        ),
        ("no <answer>tags</answer>", "|no <answer>tags</answer>|"),
        (
            "<think>a</think><answer>b\n<tool_call>{\"name\": \"time\"}</tool_call>\n</answer>",
            "a|b\n|time({})",
        ),
        (
            "<think>a</think><answer>b </<tool_call>{\"name\": \"time\", \"arguments\": {\"s\": \"</answer>\"}}</tool_call></answer>",
            "a|b </|time({\"s\": \"</answer>\"})",
        ),
    ];
    check(format, &options(), &table);
}

#[test]
fn other_reasoning() {
    for (reasoning, table) in [
        (
            ReasoningFormat::Mistral,
            [("[THINK]a[/THINK]b", "a|b|"), ("[b]", "|[b]|")],
        ),
        (
            ReasoningFormat::SeedOss,
            [("<seed:think>a</seed:think>b", "a|b|"), ("<s", "|<s|")],
        ),
        (
            ReasoningFormat::Cohere,
            [
                ("<|START_THINKING|>a<|END_THINKING|>b", "a|b|"),
                ("b", "|b|"),
            ],
        ),
        (
            ReasoningFormat::Granite,
            [
                (
                    "Here's my thought process: a\nHere is my response: b",
                    "a|b|",
                ),
                ("Here is an answer.", "|Here is an answer.|"),
            ],
        ),
    ] {
        let format = Format {
            tools: None,
            reasoning: Some(reasoning),
        };
        check(format, &options(), &table);
    }
}

#[test]
fn a_call_ends_reasoning_that_was_not_closed() {
    for (tools, call) in [
        (
            ToolFormat::Hermes,
            "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>",
        ),
        (
            ToolFormat::Qwen3Coder,
            "<tool_call>\n<function=time>\n</function>\n</tool_call>",
        ),
        (ToolFormat::Qwen3Coder, "<function=time></function>"),
        (ToolFormat::Glm45, "<tool_call>time</tool_call>"),
        (
            ToolFormat::Llama3Json,
            "<|python_tag|>{\"name\": \"time\", \"parameters\": {}}",
        ),
        (
            ToolFormat::Pythonic,
            "<|tool_call_start|>[time()]<|tool_call_end|>",
        ),
        (
            ToolFormat::DeepseekV32,
            "<｜DSML｜tool_calls><｜DSML｜invoke name=\"time\"></｜DSML｜invoke></｜DSML｜tool_calls>",
        ),
        (
            ToolFormat::MinimaxM2,
            "<minimax:tool_call><invoke name=\"time\"></invoke></minimax:tool_call>",
        ),
        (ToolFormat::Gemma4, "<|tool_call>call:time{}<tool_call|>"),
    ] {
        let format = Format {
            tools: Some(tools),
            reasoning: Some(ReasoningFormat::Think),
        };
        for is_reasoning_open in [false, true] {
            for holds_calls in [false, true] {
                let options = ParserOptions {
                    is_reasoning_open,
                    holds_calls,
                    ..options()
                };
                let table = [
                    (format!("<think>I look.\n{call}"), "I look.||time({})"),
                    (format!("<think>{call} so"), "| so|time({})"),
                    (format!("<think>a</think>b {call}"), "a|b |time({})"),
                ];
                for (text, expected) in &table {
                    check(format, &options, &[(text, expected)]);
                }
            }
        }
    }
}

#[test]
fn a_mark_within_reasoning_that_no_call_follows_is_reasoning() {
    let hermes = Format {
        tools: Some(ToolFormat::Hermes),
        reasoning: Some(ReasoningFormat::Think),
    };
    let coder = Format {
        tools: Some(ToolFormat::Qwen3Coder),
        ..hermes
    };
    let call = "<tool_call>{\"name\": \"time\"}</tool_call>";
    let table = [
        (
            "<think>Write <tool_call> {\"name\": <name>} or <tool_call>.\n</think>b",
            "Write <tool_call> {\"name\": <name>} or <tool_call>.|b|",
        ),
        (
            "<think><tool_call>{\"name\": \"nobody\"}</think>b",
            "<tool_call>{\"name\": \"nobody\"}|b|",
        ),
        // A call that has not begun does not hide the closing tag.
        (
            "<think><tool_call>{\"arguments\": {\"a\": \"</think>b\"}",
            "<tool_call>{\"arguments\": {\"a\": \"|b\"}|",
        ),
        ("<think>a <tool_call>\n</think>\n\nb", "a <tool_call>|b|"),
        ("<think>a <tool_call></thi", "a <tool_call></thi||"),
        (
            "<think>a <tool_call> {\"name\"",
            "a <tool_call> {\"name\"||",
        ),
        ("<think>a <tool", "a <tool||"),
    ];
    check(hermes, &options(), &table);
    let text = format!("<think><tool_call>{call}");
    check(hermes, &options(), &[(&text, "<tool_call>||time({})")]);
    let table = [(
        "<think><tool_call> or <function=name>, a <function=time a></think><function=time></function>",
        "<tool_call> or <function=name>, a <function=time a>||time({})",
    )];
    check(coder, &options(), &table);
}

#[test]
fn a_held_call_that_breaks_is_content() {
    let options = ParserOptions {
        holds_calls: true,
        ..options()
    };
    for (tools, texts) in [
        (
            ToolFormat::Hermes,
            &[
                "\n<tool_call>{\"name\": \"time\", \"arguments\": {\"a\": 1,}}</tool_call> so ",
                "a <tool_call>{\"name\": \"time\", \"arguments\": {\"a\": \"\\u00",
                "<tool_call>{\"name\": \"time\", \"arguments\": {",
            ][..],
        ),
        (
            ToolFormat::Qwen3Coder,
            &[
                "<tool_call><function=time><parameter=a>b</par",
                "<tool_call>\n<function=time>\nwhat</function>",
            ],
        ),
        (
            ToolFormat::Glm45,
            &["<tool_call>weather<arg_key>city</arg_key>x</tool_call>"],
        ),
        (
            ToolFormat::Llama3Json,
            &["{\"name\": \"time\", \"parameters\": {invalid json}"],
        ),
        (
            ToolFormat::Pythonic,
            &["[time(a=b)]", "[time(a=1, 2)]", "\n [ time( a = \"b"],
        ),
        (
            ToolFormat::Mistral,
            &[
                "[TOOL_CALLS]time[ARGS]{]",
                "[TOOL_CALLS] [{\"name\": \"time\", \"arguments\": {]",
            ],
        ),
        (
            ToolFormat::DeepseekV3,
            &["<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```json\n{\"a\":\n```"],
        ),
        (
            ToolFormat::KimiK2,
            &["<|tool_call_begin|>functions.time:0 <|tool_call_argument_begin|> {x}"],
        ),
    ] {
        for text in texts {
            let format = only_tools(tools);
            check(format, &options, &[(text, &format!("|{text}|"))]);
        }
    }
    // Whole calls before and behind it are calls, numbered without a gap.
    let whole = "<tool_call>{\"name\": \"time\", \"arguments\": {\"a\": 1}}</tool_call>";
    let broken = "<tool_call>{\"name\": \"time\", \"arguments\": {1}}</tool_call>";
    let expected = format!("|{broken}|time({{\"a\": 1}}) time({{\"a\": 1}})");
    check(
        only_tools(ToolFormat::Hermes),
        &options,
        &[(&format!("{whole}{broken}{whole}"), &expected)],
    );
    let format = Format {
        tools: Some(ToolFormat::Hermes),
        reasoning: Some(ReasoningFormat::Think),
    };
    let expected = format!("a|{broken}|");
    check(
        format,
        &options,
        &[(&format!("<think>a {broken}"), &expected)],
    );
    let harmony = Format {
        tools: Some(ToolFormat::Harmony),
        reasoning: Some(ReasoningFormat::Harmony),
    };
    let table = [(
        "<|channel|>final<|message|>a<|end|><|start|>assistant to=functions.time<|message|>{1}",
        "|a\n<|start|>assistant to=functions.time<|message|>{1}|",
    )];
    check(harmony, &options, &table);
}

#[test]
fn a_held_call_that_is_cut_goes_out_as_far_as_it_came() {
    for (tools, text, expected) in [
        (
            ToolFormat::Hermes,
            "a <tool_call>{\"name\": \"time\", \"arguments\": {\"a\": \"b\\u00",
            "|a |time({\"a\": \"b)!",
        ),
        (
            ToolFormat::Pythonic,
            "[time(), time(a='b",
            "||time({}) time({\"a\": \"b)!",
        ),
        // Nothing of a call has begun, or it is whole, or it was malformed.
        (ToolFormat::Hermes, "<tool_call>{\"na", "|<tool_call>{\"na|"),
        (
            ToolFormat::Hermes,
            "<tool_call>{\"name\": \"time\", \"arguments\": {}}\n</tool",
            "||time({})",
        ),
        (
            ToolFormat::Hermes,
            "<tool_call>{\"name\": \"time\", \"arguments\": {,",
            "|<tool_call>{\"name\": \"time\", \"arguments\": {,|",
        ),
    ] {
        for size in 1..text.len() {
            let options = ParserOptions {
                holds_calls: true,
                ..options()
            };
            let mut parser = AnswerParser::new(only_tools(tools), options);
            let mut deltas = Deltas::default();
            for piece in pieces(text, size) {
                parser.push(piece, &mut deltas);
            }
            parser.cut(&mut deltas);
            let mut answer = Answer::default();
            answer.add(&deltas);
            answer.check();
            assert_eq!(notation(&answer), expected, "{text:?} by {size}");
        }
    }
}

#[test]
fn a_call_that_starts_with_a_special_token_ends_reasoning() {
    let format = Format {
        tools: Some(ToolFormat::KimiK2),
        reasoning: Some(ReasoningFormat::Think),
    };
    let text = "<think>I look. <|tool_calls_section_begin|><|tool_call_begin|>functions.time:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
    check(
        format,
        &options(),
        &[(text, "I look.||functions.time:0:time({})")],
    );
}

#[test]
fn what_is_held_is_bounded() {
    let format = only_tools(ToolFormat::Hermes);
    for bytes in [20_000, 70_000] {
        let gap = "a<tool_call>é".repeat(bytes / 14);
        let text = format!(
            "<tool_call>{{\"arguments\": {{\"s\": \"{gap}\"}}, \"name\": \"time\"}}</tool_call>"
        );
        let whole = parse(format, &options(), [text.as_str()]);
        for size in [1, 7, 1000] {
            assert_eq!(parse(format, &options(), pieces(&text, size)), whole);
        }
        if bytes < 64 * 1024 {
            assert_eq!(whole.calls.len(), 1);
        } else {
            assert_eq!(whole.content, text);
        }
    }
}

#[test]
fn nothing_that_repeats_is_held_for_long() {
    const BOUND: usize = 64 * 1024 + 1024;
    for (start, unit) in [
        ("", "<tool_call>"),
        ("", "<tool_call>{"),
        ("<tool_call>", " "),
        ("<tool_call>{\"arguments\": {\"a\": \"", "b"),
        ("<tool_call>{\"x\": [", "1,"),
        ("", "<function="),
        ("", "<|python_tag|>"),
        ("", "<|python_start|>"),
        ("[", "time"),
        ("", "[TOOL_CALLS]["),
        ("[TOOL_CALLS]time[ARGS]", "\n"),
        ("", "<｜tool▁calls▁begin｜>"),
        ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>time```", "json"),
        ("<｜tool▁call▁begin｜>time<｜tool▁sep｜>{}", "```"),
        ("", "<|tool_call_begin|>functions.time:0"),
        ("<|channel|>", "analysis"),
        ("", "{\"name\": \"time\", \"type\": \"x\", "),
        ("", "`"),
        ("[time(a='b'", " "),
        ("[time(a='b')", " "),
        ("[time(a='b',", " "),
        ("[time(a='b',", "c"),
        ("", "<｜DSML｜tool_calls>"),
        ("<｜DSML｜invoke name=\"time\">", " "),
        ("", "<minimax:tool_call>"),
        ("", "<invoke name=\"time\">"),
        ("", "<|tool_call>call:time"),
        ("", "functools["),
        ("<|tool_call|>[", " "),
        ("<tool_calls>", "["),
        ("[", "{\"name\": \"time\", "),
        ("", "<|action_start|><|plugin|>"),
    ] {
        let text = start.to_owned() + &unit.repeat(200_000 / unit.len());
        for tools in ToolFormat::all() {
            let mut parser = AnswerParser::new(only_tools(tools), options());
            let mut deltas = Deltas::default();
            parser.push(&text, &mut deltas);
            let content: usize = deltas
                .iter()
                .map(|delta| match delta {
                    Delta::Content(text) => text.len(),
                    _ => 0,
                })
                .sum();
            // A call's arguments go out as well, and what is no text of an answer.
            if deltas
                .iter()
                .all(|delta| matches!(delta, Delta::Content(_)))
            {
                assert!(text.len() - content <= BOUND, "{tools} {start:?} {unit:?}");
            }
        }
    }
}
