//! Formats by what templates contain. The snippets are our own, in the manner of the models' templates.

use inflight_parsers::{Format, ReasoningFormat, ToolFormat, detect};

#[test]
fn a_template_shows_its_format() {
    use ToolFormat as Tools;
    let think = Some(ReasoningFormat::Think);
    for (template, tools, reasoning) in [
        ("{{ message.content }}", None, None),
        (
            r#"{{ '<tool_call>\n{"name": "' + call.name + '", "arguments": ' }}"#,
            Some(Tools::Hermes),
            None,
        ),
        (
            r#"{% set content = content.split('</think>') %}{{ '<tool_call>\n{"name": "' }}"#,
            Some(Tools::Hermes),
            think,
        ),
        (
            r"{{ '<tool_call>\n<function=' + call.name + '>\n' }}{{ '<parameter=' + key + '>\n' }}",
            Some(Tools::Qwen3Coder),
            None,
        ),
        (
            r"{{ '<seed:tool_call>\n<function=' }}{{ '<parameter=' }}{{ '</seed:think>' }}",
            Some(Tools::Qwen3Coder),
            Some(ReasoningFormat::SeedOss),
        ),
        (
            r#"Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}."#,
            Some(Tools::Llama3Json),
            None,
        ),
        (
            "Write calls as [func_name1(name1=value1), func_name2(name=value)].",
            Some(Tools::Pythonic),
            None,
        ),
        (
            "{{ '<|tool_call_start|>[' + calls + ']<|tool_call_end|>' }}",
            Some(Tools::Pythonic),
            None,
        ),
        (
            "{{ '[TOOL_CALLS]' + call.name + '[ARGS]' }}{{ '[THINK]' }}",
            Some(Tools::Mistral),
            Some(ReasoningFormat::Mistral),
        ),
        (
            "{{ '<｜tool▁calls▁begin｜>' + call.type + '<｜tool▁sep｜>' + name + '\\n```json\\n' }}",
            Some(Tools::DeepseekV3),
            None,
        ),
        (
            "{{ '<｜tool▁calls▁begin｜>' + name + '<｜tool▁sep｜>' + arguments }}{{ '</think>' }}",
            Some(Tools::DeepseekV31),
            think,
        ),
        (
            "{{ '<tool_call>' + name }}<arg_key>{{ key }}</arg_key><arg_value>{{ value }}",
            Some(Tools::Glm45),
            None,
        ),
        (
            "<|tool_calls_section_begin|>{{ '<|tool_call_begin|>' + id }}",
            Some(Tools::KimiK2),
            None,
        ),
        (
            "<|start|>assistant<|channel|>final<|message|>{{ content }}",
            Some(Tools::Harmony),
            Some(ReasoningFormat::Harmony),
        ),
        (
            "{{ '<|START_THINKING|>' }}",
            None,
            Some(ReasoningFormat::Cohere),
        ),
        (
            "Start with 'Here is my thought process:'.",
            None,
            Some(ReasoningFormat::Granite),
        ),
        (
            "{% set dsml = '｜DSML｜' %}{{ '<' + dsml + 'invoke name=\"' + name }}{{ '</think>' }}",
            Some(Tools::DeepseekV32),
            think,
        ),
        (
            "{% set open = '<minimax:tool_call>' %}{{ '<invoke name=\"' + name + '\">' }}{{ '</think>' }}",
            Some(Tools::MinimaxM2),
            think,
        ),
        (
            "{{ '<|channel>thought\n' + thought }}{{ '<|tool_call>call:' + name + '{' }}",
            Some(Tools::Gemma4),
            Some(ReasoningFormat::Gemma4),
        ),
        (
            "{{ '<|system|>' + text + '<|tool|>' + tools + '<|/tool|>' }}",
            Some(Tools::Phi4MiniJson),
            None,
        ),
        (
            "Respond with functools[{\"name\": \"f\", \"arguments\": {}}].",
            Some(Tools::Phi4MiniJson),
            None,
        ),
        (
            "Respond with <|tool_call|> and a JSON list of the tools.",
            Some(Tools::Granite),
            None,
        ),
        (
            "{{ '<|action_start|><|plugin|>' + call + '<|action_end|>' }}",
            Some(Tools::Internlm),
            None,
        ),
        (
            "Return calls as <tool_calls>[{\"name\": \"f\", \"arguments\": {}}]</tool_calls>, not <tool_call>.",
            Some(Tools::Jamba),
            None,
        ),
        (
            "Answer with [{\"name\": \"tool_call_name\", \"arguments\": {}}].",
            Some(Tools::Xlam),
            None,
        ),
        (
            "Write your thoughts in <think></think> and your response in <response></response>.",
            None,
            Some(ReasoningFormat::ThinkAnswer),
        ),
        // Formats that are not known stay so.
        ("{{ '<|message|>' + message.content }}", None, None),
        ("{{ '<|channel|>' + message.channel }}", None, None),
        ("{{ '<tool_calls>' + calls + '</tool_calls>' }}", None, None),
        ("<function=name>{\"key\": 1}</function>", None, None),
    ] {
        assert_eq!(
            detect(template, None),
            Format { tools, reasoning },
            "{template}"
        );
    }
}

#[test]
fn the_kind_of_model_counts_where_the_template_says_nothing() {
    assert_eq!(detect("", Some("llama4")).tools, Some(ToolFormat::Pythonic));
    assert_eq!(
        detect("", Some("gpt_oss")).reasoning,
        Some(ReasoningFormat::Harmony)
    );
    assert_eq!(detect("", Some("llama")), Format::default());
    assert_eq!(
        detect("[TOOL_CALLS]", Some("llama4")).tools,
        Some(ToolFormat::Mistral)
    );
}
