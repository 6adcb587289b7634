//! Which format a model writes, by its chat template and its kind. Owns the marks by which templates are
//! distinguished.
//!
//! A template that renders tool calls shows how the model was taught to write them, so its text decides. The model's
//! type counts only where the template says nothing.

use crate::format::{Format, ReasoningFormat, ToolFormat};

/// The format of a model. `template` is the text of its chat template, and of all of them if it has several;
/// `model_type` is the field of its `config.json`. What is not known is `None`.
pub fn detect(template: &str, model_type: Option<&str>) -> Format {
    let has = |mark: &str| template.contains(mark);
    let is_harmony = (has("<|channel|>") && has("<|message|>")) || model_type == Some("gpt_oss");
    if is_harmony {
        return Format {
            tools: Some(ToolFormat::Harmony),
            reasoning: Some(ReasoningFormat::Harmony),
        };
    }
    Format {
        tools: tools(&has, model_type),
        reasoning: reasoning(&has),
    }
}

fn tools(has: &impl Fn(&str) -> bool, model_type: Option<&str>) -> Option<ToolFormat> {
    let marks: [(&[&str], ToolFormat); 19] = [
        (&["｜DSML｜", "invoke name="], ToolFormat::DeepseekV32),
        (&["<minimax:tool_call>"], ToolFormat::MinimaxM2),
        (&["<|tool_call>call:"], ToolFormat::Gemma4),
        (&["<|action_start|>", "<|plugin|>"], ToolFormat::Internlm),
        (&["<|tool_calls_section_begin|>"], ToolFormat::KimiK2),
        (
            &["<｜tool▁calls▁begin｜>", "```json"],
            ToolFormat::DeepseekV3,
        ),
        (&["<｜tool▁calls▁begin｜>"], ToolFormat::DeepseekV31),
        (&["<arg_key>", "<arg_value>"], ToolFormat::Glm45),
        (&["<function=", "<parameter="], ToolFormat::Qwen3Coder),
        (&["[TOOL_CALLS]"], ToolFormat::Mistral),
        (&["functools["], ToolFormat::Phi4MiniJson),
        (&["<|tool|>", "<|/tool|>"], ToolFormat::Phi4MiniJson),
        (&["<|tool_call|>"], ToolFormat::Granite),
        (
            &["<tool_calls>", "</tool_calls>", "\"name\""],
            ToolFormat::Jamba,
        ),
        (&["\"tool_call_name\""], ToolFormat::Xlam),
        (&["<tool_call>", "\"name\""], ToolFormat::Hermes),
        (&["[func_name1("], ToolFormat::Pythonic),
        (&["<|tool_call_start|>"], ToolFormat::Pythonic),
        (
            &["\"parameters\": dictionary of argument name"],
            ToolFormat::Llama3Json,
        ),
    ];
    let by_template = marks
        .iter()
        .find(|(marks, _)| marks.iter().all(|mark| has(mark)));
    match (by_template, model_type) {
        (Some((_, format)), _) => Some(*format),
        (None, Some("llama4")) => Some(ToolFormat::Pythonic),
        _ => None,
    }
}

fn reasoning(has: &impl Fn(&str) -> bool) -> Option<ReasoningFormat> {
    if has("</think>") && (has("</answer>") || has("</response>")) {
        return Some(ReasoningFormat::ThinkAnswer);
    }
    let marks = [
        ("</think>", ReasoningFormat::Think),
        ("<|channel>thought", ReasoningFormat::Gemma4),
        ("[THINK]", ReasoningFormat::Mistral),
        ("</seed:think>", ReasoningFormat::SeedOss),
        ("<|START_THINKING|>", ReasoningFormat::Cohere),
        ("Here is my thought process:", ReasoningFormat::Granite),
    ];
    let found = marks.iter().find(|(mark, _)| has(mark));
    found.map(|(_, format)| *format)
}
