//! What must hold for every text: the cut does not matter, nothing panics, and text without a call is kept.

use crate::support::{parse, pieces, tools};
use inflight_parsers::{Format, ParserOptions, ReasoningFormat, ToolFormat};
use proptest::prelude::*;
use serde_json::json;

/// Every tool format alone and with each kind of reasoning that machines differ for.
fn formats() -> Vec<Format> {
    let reasoning = [
        None,
        Some(ReasoningFormat::Think),
        Some(ReasoningFormat::Mistral),
        Some(ReasoningFormat::Gemma4),
        Some(ReasoningFormat::ThinkAnswer),
        Some(ReasoningFormat::Harmony),
    ];
    let tools = ToolFormat::all().map(Some).chain([None]);
    tools
        .flat_map(|tools| reasoning.map(|reasoning| Format { tools, reasoning }))
        .collect()
}

fn options(knows_tools: bool, is_reasoning_open: bool) -> ParserOptions {
    let schema = json!({"properties": {
        "s": {"type": "string"},
        "n": {"type": "integer"},
        "o": {"type": "object"},
        "u": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }});
    let known = tools(&json!({"f": schema, "function": null}));
    ParserOptions {
        tools: knows_tools.then_some(known),
        is_reasoning_open,
        max_calls: 3,
        holds_calls: false,
    }
}

/// Pieces of what models write, so that texts of them come near to calls.
const WORDS: &[&str] = &[
    "<｜DSML｜tool_calls>",
    "</｜DSML｜function_calls>",
    "<｜DSML｜invoke name=\"f\">",
    "</｜DSML｜invoke>",
    "<｜DSML｜parameter name=\"s\" string=\"true\">",
    "<｜DSML｜parameter name=\"n\" string=\"false\">",
    "</｜DSML｜parameter>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<invoke name=\"f\">",
    "</invoke>",
    "<parameter name=\"s\">",
    "<parameter name=n>",
    "<|tool_call>call:f{",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "s:",
    "<|channel>thought",
    "<channel|>",
    "functools",
    "<|tool_call|>",
    "<|/tool_call|>",
    "<tool_calls>",
    "</tool_calls>",
    "<|action_start|><|plugin|>",
    "<|action_end|>",
    "<tool_call>",
    "</tool_call>",
    "<function=f>",
    "</function>",
    "<parameter=s>",
    "<parameter=n>",
    "<parameter=u>",
    "<parameter=o>",
    "</parameter>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|python_tag|>",
    "<|python_start|>",
    "<|python_end|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "function",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "```json\n",
    "```",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "functions.f:0",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    "<|start|>assistant",
    "<|channel|>",
    "analysis",
    "commentary",
    "final",
    " to=functions.f",
    "<|constrain|>json",
    "<|message|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<function_calls>",
    "</function_calls>",
    "<answer>",
    "</answer>",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "{\"name\": \"f\", \"arguments\": ",
    "{\"name\": \"f\", \"parameters\": {",
    "\"arguments\": {}",
    "\"name\": \"f\"",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "f(",
    "s=",
    "n=",
    "\"s\": ",
    "\"a\\u00e9",
    "\\ud83d\\ude00",
    "\"",
    "'",
    "\\",
    ", ",
    ": ",
    "; ",
    "1",
    "-2.5",
    "True",
    "null",
    "f",
    "g",
    " ",
    "\n",
    "\n\n",
    "日本",
    "é",
    "😀",
    "text ",
    "<",
    "</",
    "<|",
    "<｜",
    "{}",
    "\t",
    "=",
];

fn words(longest: usize) -> impl Strategy<Value = String> {
    let word = prop_oneof![
        8 => prop::sample::select(WORDS).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(word, 0..longest).prop_map(|words| words.concat())
}

/// A text, and calls of it that are close to whole: a template with random pieces in its gaps.
fn near_calls() -> impl Strategy<Value = String> {
    let shapes = prop::sample::select(
        &[
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"$\", \"n\": $}}\n</tool_call>$",
            "$<tool_call><function=f><parameter=s>\n$\n</parameter><parameter=u>$</parameter>$</function></tool_call>",
            "<tool_call>f\n<arg_key>$</arg_key><arg_value>$</arg_value>$</tool_call>$",
            "{\"name\": \"f\", \"parameters\": {\"s\": [$], \"n\": \"$\"}}; $",
            "[f(s=\"$\", n=$), f($)]$",
            "$[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"s\": \"$\"}}$]$",
            "$[TOOL_CALLS]f[ARGS]{\"s\": $}$",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"s\": \"$\"}$<｜tool▁call▁end｜>$<｜tool▁calls▁end｜>",
            "<|tool_calls_section_begin|>$<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"s\": $}<|tool_call_end|>$",
            "<|channel|>analysis<|message|>$<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{\"s\": \"$\"}<|call|>$",
            "[f(s='$', n=1), f(s='$')]$",
            "$<function_calls>$f(s='$', n=1)$\nf()$</function_calls>$",
            "[f(s='a $ b'$), f(o={'a': '$'$}$)$]$",
            "<｜DSML｜function_calls>$<｜DSML｜invoke name=\"f\">$<｜DSML｜parameter name=\"s\" string=\"true\">$</｜DSML｜parameter>$</｜DSML｜invoke>$</｜DSML｜function_calls>$",
            "<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\">${\"s\": $}$</｜DSML｜invoke>$",
            "<minimax:tool_call>$<invoke name=\"f\">$<parameter name=\"s\">$\n<parameter name=\"n\">$</invoke>$</minimax:tool_call>$",
            "<|channel>thought$<channel|>$<|tool_call>call:f{$s:<|\"|>$<|\"|>$,n:$}$<tool_call|>$",
            "functools[${\"name\": \"f\", \"arguments\": {\"s\": $}}$, {\"name\": \"f\"}$]$",
            "<|tool_call|>$[{\"name\": \"f\", \"arguments\": {}}$]$",
            "<tool_calls>$[{\"name\": \"f\", \"arguments\": {\"s\": $}}$]$</tool_calls>$",
            "[{\"name\": \"f\", \"arguments\": {\"s\": $}}$]$",
            "```json$[{\"name\": \"f\", \"arguments\": {}}$]$```$",
            "<|action_start|><|plugin|>${\"name\": \"f\", \"parameters\": {\"s\": $}}$<|action_end|>$",
            "<think>$</think>$<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"$\"}}</tool_call>$",
            "<think>$</think>\n<answer>$<tool_call>{\"name\": \"f\"}</tool_call>$</answer>$",
            "<think>$<tool_call>$</think>$<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": $}}$",
            "<think>$<tool_call>$<function=f>$<parameter=s>$</parameter>$</function>$</think>$",
        ][..],
    );
    (shapes, prop::collection::vec(words(4), 8)).prop_map(|(shape, gaps)| {
        let mut gaps = gaps.iter();
        let parts = shape.split('$');
        parts.fold(String::new(), |text, part| {
            let gap = if text.is_empty() {
                ""
            } else {
                gaps.next().map_or("", |gap| gap)
            };
            text + gap + part
        })
    })
}

/// Cuts a text into pieces of random sizes.
fn cut<'a>(text: &'a str, sizes: &[usize]) -> Vec<&'a str> {
    let mut rest = text;
    let mut parts = Vec::new();
    for size in sizes.iter().cycle() {
        let Some((at, _)) = rest.char_indices().nth(*size) else {
            break;
        };
        let (part, behind) = rest.split_at(at);
        parts.push(part);
        rest = behind;
    }
    parts.push(rest);
    parts
}

fn check_cuts(text: &str, sizes: &[usize], options: &ParserOptions) {
    for format in formats() {
        let whole = parse(format, options, [text]);
        assert_eq!(
            parse(format, options, pieces(text, 1)),
            whole,
            "{format:?} {text:?} by 1"
        );
        assert_eq!(
            parse(format, options, cut(text, sizes)),
            whole,
            "{format:?} {text:?} {sizes:?}"
        );
        if options.holds_calls {
            assert!(
                whole
                    .calls
                    .iter()
                    .all(|call| call.is_complete == Some(true)),
                "{format:?} {text:?}"
            );
        }
        // With a format of no reasoning and no calls found, every character is content.
        if format.reasoning.is_none()
            && whole.calls.is_empty()
            && format.tools != Some(ToolFormat::Harmony)
        {
            assert_eq!(whole.content, text, "{format:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_cut_does_not_matter(
        text in words(24),
        sizes in prop::collection::vec(1usize..12, 1..6),
        knows_tools: bool,
        is_open: bool,
        holds_calls: bool,
    ) {
        let options = options(knows_tools, is_open);
        check_cuts(&text, &sizes, &ParserOptions { holds_calls, ..options });
    }

    #[test]
    fn the_cut_does_not_matter_near_calls(
        text in near_calls(),
        sizes in prop::collection::vec(1usize..12, 1..6),
        knows_tools: bool,
        is_open: bool,
        holds_calls: bool,
    ) {
        let options = options(knows_tools, is_open);
        check_cuts(&text, &sizes, &ParserOptions { holds_calls, ..options });
    }

    #[test]
    fn any_text_is_kept(text in any::<String>(), sizes in prop::collection::vec(1usize..5, 1..4)) {
        check_cuts(&text, &sizes, &options(true, false));
    }
}
