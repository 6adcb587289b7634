//! What others ask of a format: its name, its special tokens, the ids of its calls, and what ends its reasoning.

use inflight_parsers::{CallIdForm, Format, ReasoningFormat, ToolFormat};

use crate::formats::{check, options};

/// Tables of tests go over all formats, and would pass without any.
#[test]
fn there_are_formats_and_each_writes_its_name() {
    let tools: Vec<String> = ToolFormat::all().map(|format| format.to_string()).collect();
    assert_eq!(tools.len(), 18);
    assert_eq!(tools[0], "hermes");
    let reasoning: Vec<String> = ReasoningFormat::all()
        .map(|format| format.to_string())
        .collect();
    assert_eq!(reasoning.len(), 8);
    assert!(reasoning.contains(&"seed_oss".to_owned()));
}

#[test]
fn special_tokens_are_those_of_calls_and_of_reasoning() {
    let markers =
        |tools, reasoning| -> Vec<&str> { Format { tools, reasoning }.special_markers().collect() };
    let think = Some(ReasoningFormat::Think);
    assert_eq!(
        markers(Some(ToolFormat::Hermes), think),
        ["<tool_call>", "</tool_call>", "<think>", "</think>"]
    );
    assert_eq!(markers(None, think), ["<think>", "</think>"]);
    assert_eq!(markers(None, None), <[&str; 0]>::default());
}

#[test]
fn reasoning_is_between_two_tags_or_has_several_forms() {
    for (format, marks) in [
        (ReasoningFormat::Think, Some(("<think>", "</think>"))),
        (ReasoningFormat::ThinkAnswer, Some(("<think>", "</think>"))),
        (ReasoningFormat::Mistral, Some(("[THINK]", "[/THINK]"))),
        (ReasoningFormat::Granite, None),
        (ReasoningFormat::Harmony, None),
    ] {
        assert_eq!(format.marks(), marks, "{format}");
    }
}

/// Clients keep ids and send them again, to any gateway and any release.
#[test]
fn an_id_that_does_not_fit_is_always_replaced_by_the_same() {
    let form = CallIdForm::NineAlphanumerics;
    assert_eq!(form.fit("call_1"), "9gD2Dimct");
    assert_eq!(form.fit("call_2"), "Ytz7idqbt");
    for (bits, id) in [
        (0, "000000000"),
        (9 + 62 * 10, "9A0000000"),
        (35 + 62 * 36, "Za0000000"),
        (61, "z00000000"),
    ] {
        assert_eq!(form.random(bits).unwrap(), id);
    }
}

/// Special tokens that no text holds: whatever follows them, the reasoning is over.
#[test]
fn a_token_that_starts_calls_ends_the_reasoning() {
    let of = |tools, reasoning| Format {
        tools: Some(tools),
        reasoning: Some(reasoning),
    };
    let think = ReasoningFormat::Think;
    check(
        of(ToolFormat::DeepseekV31, think),
        &options(),
        &[
            (
                "<think>So.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>time<｜tool▁sep｜>{}<｜tool▁call▁end｜>\
             <｜tool▁calls▁end｜>",
                "So.||time({})",
            ),
            (
                "<think>So.<｜tool▁calls▁begin｜>no call",
                "So.|<｜tool▁calls▁begin｜>no call|",
            ),
        ],
    );
    check(
        of(ToolFormat::KimiK2, think),
        &options(),
        &[(
            "<think>So.<|tool_calls_section_begin|>no call",
            "So.|<|tool_calls_section_begin|>no call|",
        )],
    );
    check(
        of(ToolFormat::Mistral, ReasoningFormat::Mistral),
        &options(),
        &[
            (
                "[THINK]So.[TOOL_CALLS][{\"name\": \"time\", \"arguments\": {}}]",
                "So.||time({})",
            ),
            ("[THINK]So.[TOOL_CALLS]no call", "So.|[TOOL_CALLS]no call|"),
        ],
    );
}
