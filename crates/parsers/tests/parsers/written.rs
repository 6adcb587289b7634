//! Calls written as each format's template writes them come back as they were.

use inflight_parsers::{Format, ParserOptions, ToolFormat};
use serde_json::{Value, json};

use crate::support::{parse, pieces, tools};

/// Writes calls as the models of this format do.
fn write(format: ToolFormat, calls: &[(&str, &Value)]) -> String {
    let each = |separator: &str, one: &dyn Fn(&str, &Value) -> String| {
        let calls: Vec<String> = calls.iter().map(|(name, value)| one(name, value)).collect();
        calls.join(separator)
    };
    match format {
        ToolFormat::Hermes => each("\n", &|name, arguments| {
            format!(
                "<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>"
            )
        }),
        ToolFormat::Qwen3Coder => each("\n", &|name, arguments| {
            let one =
                |key: &str, value: &str| format!("<parameter={key}>\n{value}\n</parameter>\n");
            let parameters = parameters(arguments, "", one, plain);
            format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
        }),
        ToolFormat::Llama3Json => each("; ", &|name, arguments| {
            format!("{{\"name\": \"{name}\", \"parameters\": {arguments}}}")
        }),
        ToolFormat::Pythonic => {
            let calls = each(", ", &|name, arguments| {
                let one = |key: &str, value: &str| format!("{key}={value}");
                format!("{name}({})", parameters(arguments, ", ", one, python))
            });
            format!("[{calls}]")
        }
        ToolFormat::Mistral => {
            let calls = each(", ", &|name, arguments| {
                format!("{{\"name\": \"{name}\", \"arguments\": {arguments}}}")
            });
            format!("[TOOL_CALLS] [{calls}]")
        }
        ToolFormat::DeepseekV3 => {
            let calls = each("\n", &|name, arguments| {
                format!(
                    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
                )
            });
            format!("<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>")
        }
        ToolFormat::DeepseekV31 => {
            let calls = each("", &|name, arguments| {
                format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>")
            });
            format!("<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>")
        }
        ToolFormat::Glm45 => each("\n", &|name, arguments| {
            let one = |key: &str, value: &str| {
                format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")
            };
            format!(
                "<tool_call>{name}\n{}</tool_call>",
                parameters(arguments, "", one, plain)
            )
        }),
        ToolFormat::KimiK2 => {
            let calls = each("", &|name, arguments| {
                format!(
                    "<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
                )
            });
            format!("<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>")
        }
        ToolFormat::DeepseekV32 => {
            let calls = each("\n", &|name, arguments| {
                let arguments = arguments.as_object().unwrap();
                let parameters = arguments.iter().map(|(key, value)| {
                    let is_string = value.is_string();
                    let value = plain(value);
                    format!("<｜DSML｜parameter name=\"{key}\" string=\"{is_string}\">{value}</｜DSML｜parameter>\n")
                });
                let parameters: String = parameters.collect();
                format!("<｜DSML｜invoke name=\"{name}\">\n{parameters}</｜DSML｜invoke>")
            });
            format!("\n\n<｜DSML｜function_calls>\n{calls}\n</｜DSML｜function_calls>")
        }
        ToolFormat::MinimaxM2 => {
            let calls = each("\n", &|name, arguments| {
                let one = |key: &str, value: &str| {
                    format!("<parameter name=\"{key}\">{value}</parameter>\n")
                };
                let parameters = parameters(arguments, "", one, plain);
                format!("<invoke name=\"{name}\">\n{parameters}</invoke>")
            });
            format!("<minimax:tool_call>\n{calls}\n</minimax:tool_call>")
        }
        ToolFormat::Gemma4 => each("", &|name, arguments| {
            let one = |key: &str, value: &str| format!("{key}:{value}");
            let parameters = parameters(arguments, ",", one, gemma);
            format!("<|tool_call>call:{name}{{{parameters}}}<tool_call|>")
        }),
        ToolFormat::Phi4MiniJson => format!("functools[{}]", each(", ", &object)),
        ToolFormat::Granite => format!("<|tool_call|> [{}]", each(", ", &object)),
        ToolFormat::Jamba => format!("<tool_calls>[\n{}\n]</tool_calls>", each(",\n", &object)),
        ToolFormat::Xlam => format!("[{}]", each(", ", &object)),
        ToolFormat::Internlm => each("", &|name, arguments| {
            format!(
                "<|action_start|><|plugin|>\n{{\"name\": \"{name}\", \"parameters\": {arguments}}}<|action_end|>\n"
            )
        }),
        ToolFormat::Harmony => each("<|start|>assistant", &|name, arguments| {
            format!(
                "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"
            )
        }),
    }
}

/// Each parameter of an object by `one`, with its value by `value`.
fn parameters(
    arguments: &Value,
    separator: &str,
    one: impl Fn(&str, &str) -> String,
    value: impl Fn(&Value) -> String,
) -> String {
    let arguments = arguments.as_object().unwrap();
    let all: Vec<String> = arguments
        .iter()
        .map(|(key, of)| one(key, &value(of)))
        .collect();
    all.join(separator)
}

/// A string as it is, and anything else as JSON.
fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn object(name: &str, arguments: &Value) -> String {
    format!("{{\"name\": \"{name}\", \"arguments\": {arguments}}}")
}

fn gemma(value: &Value) -> String {
    match value {
        Value::String(text) => format!("<|\"|>{text}<|\"|>"),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(gemma).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(items) => {
            let items: Vec<String> = items
                .iter()
                .map(|(key, value)| format!("{key}:{}", gemma(value)))
                .collect();
            format!("{{{}}}", items.join(","))
        }
        other => other.to_string(),
    }
}

fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(python).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(items) => {
            let items: Vec<String> = items
                .iter()
                .map(|(key, value)| format!("{}: {}", json!(key), python(value)))
                .collect();
            format!("{{{}}}", items.join(", "))
        }
        other => other.to_string(),
    }
}

#[test]
fn calls_come_back_as_they_were_written() {
    let schema = json!({"properties": {"s": {"type": "string"}}});
    let options = ParserOptions {
        tools: Some(tools(&json!({"f": schema, "get_x": schema}))),
        ..ParserOptions::default()
    };
    let last = json!({"s": "2"});
    for arguments in [
        json!({}),
        json!({"s": "Paris"}),
        json!({"s": "a \"q\" \\ \n\t {}[]()<>,;'"}),
        json!({"s": "日本 Zürich 😀"}),
        json!({"s": "75", "n": 75}),
        json!({"s": "null", "b": true, "z": null}),
        json!({"o": {"a": [1, {"b": "}"}]}, "l": [], "x": -1.5}),
        json!({"s": "</tool_call><|call|>[TOOL_CALLS]```"}),
        json!({"s": " padded \n"}),
        json!({"s": "\n"}),
        json!({"s": ""}),
    ] {
        for tools in ToolFormat::all() {
            let format = Format {
                tools: Some(tools),
                reasoning: None,
            };
            for calls in [
                vec![("f", &arguments)],
                vec![("f", &arguments), ("get_x", &last)],
            ] {
                let text = write(tools, &calls);
                for size in [1, 5, usize::MAX] {
                    let answer = parse(format, &options, pieces(&text, size));
                    let found: Vec<(String, Value)> = answer
                        .calls
                        .iter()
                        .map(|call| {
                            (
                                call.name.clone(),
                                serde_json::from_str(&call.arguments).unwrap(),
                            )
                        })
                        .collect();
                    let found: Vec<(&str, &Value)> = found
                        .iter()
                        .map(|(name, value)| (name.as_str(), value))
                        .collect();
                    assert_eq!(found, calls, "{tools} {text:?}");
                    assert_eq!(answer.content, "", "{tools} {text:?}");
                }
            }
        }
    }
}
