//! Calls that the request demands: how an answer begins that can be nothing but a call, and the grammar of what
//! follows. Owns how each format is written for that; pure.
//!
//! The beginning of the call becomes the end of the prompt, so that the model continues in the form that it was
//! trained with; a grammar for the arguments is then a JSON schema or a regular expression, which every executor that
//! guides can follow.

mod pattern;

use inflight_openai::chat::{FunctionTool, ToolChoice, Tools};
use inflight_openai::{Guide, GuideKind};
use inflight_parsers::ToolFormat;
use inflight_streams::answer::BegunCall;
use serde_json::{Map, Value, json};

/// How a format writes a call.
struct CallSyntax {
    /// Before the name, and between the name and the arguments.
    begin: &'static str,
    middle: &'static str,
    end: &'static str,
    /// Where name and arguments are one JSON object: what comes before and after it, and its two keys.
    object: Option<[&'static str; 4]>,
}

fn syntax(format: ToolFormat) -> Option<CallSyntax> {
    Some(match format {
        ToolFormat::Hermes => CallSyntax {
            begin: "<tool_call>\n{\"name\": \"",
            middle: "\", \"arguments\": ",
            end: "}\n</tool_call>",
            object: Some(["<tool_call>\n", "\n</tool_call>", "name", "arguments"]),
        },
        ToolFormat::Llama3Json => CallSyntax {
            begin: "{\"name\": \"",
            middle: "\", \"parameters\": ",
            end: "}",
            object: Some(["", "", "name", "parameters"]),
        },
        ToolFormat::DeepseekV3 => CallSyntax {
            begin: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            middle: "\n```json\n",
            end: "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            object: None,
        },
        ToolFormat::DeepseekV31 => CallSyntax {
            begin: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
            middle: "<｜tool▁sep｜>",
            end: "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            object: None,
        },
        ToolFormat::KimiK2 => CallSyntax {
            begin: "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
            middle: ":0<|tool_call_argument_begin|>",
            end: "<|tool_call_end|><|tool_calls_section_end|>",
            object: None,
        },
        ToolFormat::Mistral => CallSyntax {
            begin: "[TOOL_CALLS] [{\"name\": \"",
            middle: "\", \"arguments\": ",
            end: "}]",
            object: Some(["[TOOL_CALLS] [", "]", "name", "arguments"]),
        },
        ToolFormat::Harmony => CallSyntax {
            begin: "<|channel|>commentary to=functions.",
            middle: " <|constrain|>json<|message|>",
            end: "<|call|>",
            object: None,
        },
        // Their arguments are not JSON.
        ToolFormat::Qwen3Coder
        | ToolFormat::Pythonic
        | ToolFormat::Glm45
        | ToolFormat::DeepseekV32
        | ToolFormat::MinimaxM2
        | ToolFormat::Gemma4 => return None,
        // Nothing is forced: such calls are checked when the answer is there.
        ToolFormat::Phi4MiniJson
        | ToolFormat::Granite
        | ToolFormat::Jamba
        | ToolFormat::Xlam
        | ToolFormat::Internlm => return None,
    })
}

/// The form of Mistral's newer tokenizers, which have a token between the name and the arguments.
const NEW_MISTRAL: CallSyntax = CallSyntax {
    begin: "[TOOL_CALLS]",
    middle: "[ARGS]",
    end: "",
    object: None,
};

/// The token that a model with [`NEW_MISTRAL`] has.
pub(super) const NEW_MISTRAL_TOKEN: &str = "[ARGS]";

/// The call that `tools` demand and the grammar of what follows its beginning; `None`: they demand none, or the format has
/// no such beginning. With a grammar, the prompt ends before the call's object and the grammar has all of it, because the
/// arguments may end within a token. Without one, the prompt has the name already. `is_new_mistral`: the model has the
/// token [`NEW_MISTRAL_TOKEN`].
pub(super) fn forced_call(
    format: ToolFormat,
    tools: &Tools,
    is_guided: bool,
    is_new_mistral: bool,
) -> Option<(BegunCall, Guide)> {
    let only = match (&tools.choice, tools.functions.as_slice()) {
        (ToolChoice::Auto, _) => return None,
        (ToolChoice::Function(name), _) => Some(tools.find(name)?),
        (ToolChoice::Required, [only]) => Some(only),
        (ToolChoice::Required, _) => None,
    };
    let callable = only.map_or(tools.functions.as_slice(), std::slice::from_ref);
    if let Some(written) = pattern::written(format).filter(|_| is_guided) {
        let prefix = written.begin.to_owned();
        let suffix = written.end;
        let pattern = written.calls(callable)?;
        return Some((
            BegunCall { prefix, suffix },
            guide(GuideKind::Regex, pattern),
        ));
    }
    let syntax = match format {
        ToolFormat::Mistral if is_new_mistral => NEW_MISTRAL,
        format => syntax(format)?,
    };
    if let Some(function) = only.filter(|_| !is_guided || syntax.object.is_none()) {
        let prefix = format!("{}{}{}", syntax.begin, function.name, syntax.middle);
        let suffix = syntax.end;
        return Some((BegunCall { prefix, suffix }, schema(&function.schema())));
    }
    let [before, suffix, name, arguments] = syntax.object?;
    let prefix = before.to_owned();
    let object = any_of(callable, name, arguments);
    Some((BegunCall { prefix, suffix }, schema(&object)))
}

fn schema(schema: &Value) -> Guide {
    guide(GuideKind::JsonSchema, schema.to_string())
}

/// A grammar of calls, which the request's tools ask for.
pub(super) fn guide(kind: GuideKind, text: String) -> Guide {
    Guide {
        kind,
        text: text.into(),
        param: "tools",
    }
}

/// Structural tags that hold the arguments of every call to their schemas and leave other text free; `None`: the
/// format has none.
pub(super) fn tags(format: ToolFormat, tools: &Tools) -> Option<Value> {
    // Where calls are within a list, or a text may begin like a call, tags would not be exact.
    if format != ToolFormat::Hermes {
        return None;
    }
    let syntax = syntax(format)?;
    let structures = tools.functions.iter().map(|function| {
        json!({
            "begin": format!("{}{}{}", syntax.begin, function.name, syntax.middle),
            "schema": function.schema(),
            "end": syntax.end,
        })
    });
    let structures: Vec<Value> = structures.collect();
    Some(json!({"structures": structures, "triggers": ["<tool_call>"]}))
}

/// xgrammar's format of an answer that either matches `content` or calls; `None`: the format has none.
pub(super) fn answer_or_calls(format: ToolFormat, tools: &Tools, content: &Value) -> Option<Value> {
    let tags = tags(format, tools)?;
    let structures = tags.get("structures")?.as_array()?;
    let each = structures.iter().map(|structure| {
        json!({
            "type": "tag",
            "begin": structure["begin"],
            "content": {"type": "json_schema", "json_schema": structure["schema"]},
            "end": structure["end"],
        })
    });
    let calls = json!({
        "type": "tags_with_separator",
        "tags": each.collect::<Vec<Value>>(),
        "separator": "\n",
        "at_least_one": true,
        "stop_after_first": !tools.parallel,
    });
    let answer = json!({"type": "json_schema", "json_schema": content});
    let either = json!({"type": "or", "elements": [answer, calls]});
    Some(json!({"type": "structural_tag", "format": either}))
}

/// A schema of an object with the name of one of the functions and its arguments.
fn any_of(functions: &[FunctionTool], name: &str, arguments: &str) -> Value {
    let each = functions.iter().enumerate().map(|(index, function)| {
        let mut schema = function.schema();
        let place = format!("#/anyOf/{index}/properties/{arguments}");
        move_references(&mut schema, &place);
        let mut properties = Map::new();
        properties.insert(name.to_owned(), json!({"const": function.name}));
        properties.insert(arguments.to_owned(), schema);
        json!({
            "type": "object",
            "properties": properties,
            "required": [name, arguments],
            "additionalProperties": false,
        })
    });
    json!({"anyOf": each.collect::<Vec<Value>>()})
}

/// Makes references within a schema lead to where it is now.
fn move_references(value: &mut Value, place: &str) {
    match value {
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| move_references(item, place)),
        Value::Object(items) => {
            for (key, item) in items {
                match item {
                    Value::String(target) if key == "$ref" => {
                        if let Some(path) = target.strip_prefix('#') {
                            *target = format!("{place}{path}");
                        }
                    }
                    item => move_references(item, place),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use inflight_parsers::{AnswerParser, Delta, Deltas, Format, ParserOptions};

    use super::*;

    fn tools(names: &[&str], choice: ToolChoice) -> Tools {
        let schema = json!({"$defs": {"N": {"type": "integer"}}, "type": "object",
            "properties": {"n": {"$ref": "#/$defs/N"}}});
        let function = |name: &&str| {
            let name = (*name).to_owned();
            FunctionTool::checked(("t", "parameters"), name, None, Some(schema.clone()), true)
                .unwrap()
        };
        Tools {
            functions: names.iter().map(function).collect(),
            choice,
            parallel: true,
        }
    }

    /// The calls in a text of a format.
    fn calls(format: ToolFormat, text: &str) -> Vec<String> {
        let format = Format {
            tools: Some(format),
            reasoning: None,
        };
        let mut parser = AnswerParser::new(format, ParserOptions::default());
        let mut deltas = Deltas::default();
        parser.push(text, &mut deltas);
        parser.finish(&mut deltas);
        let seen = deltas.iter().map(|delta| match delta {
            Delta::CallBegin { name, .. } => format!("begin {name}"),
            Delta::CallArguments { json, .. } => json.to_owned(),
            Delta::CallEnd { is_complete, .. } => format!("end {is_complete}"),
            Delta::Content(text) | Delta::Reasoning(text) => format!("text {text}"),
        });
        seen.collect()
    }

    fn schema_of(guide: &Guide) -> Option<Value> {
        let is_schema = guide.kind == GuideKind::JsonSchema;
        is_schema.then(|| serde_json::from_str(&guide.text).unwrap())
    }

    #[test]
    fn a_forced_call_is_one_that_its_own_parser_reads() {
        for format in ToolFormat::all() {
            let named = tools(&["f", "g"], ToolChoice::Function("g".to_owned()));
            for forced in [false, true].map(|new| forced_call(format, &named, false, new)) {
                let Some((call, guide)) = forced else {
                    continue;
                };
                let text = format!("{}{{\"n\": 1}}{}", call.prefix, call.suffix);
                let expected = ["begin g", "{\"n\": 1}", "end true"];
                assert_eq!(calls(format, &text), expected, "{format}");
                assert_eq!(schema_of(&guide), Some(named.functions[1].schema()));
            }
            let required = tools(&["f", "g"], ToolChoice::Required);
            if let Some((call, guide)) = forced_call(format, &required, true, false)
                && let Some(schema) = schema_of(&guide)
            {
                let [.., arguments] = syntax(format).unwrap().object.unwrap();
                let object = format!("{{\"name\": \"f\", \"{arguments}\": {{}}}}");
                let text = format!("{}{object}{}", call.prefix, call.suffix);
                assert_eq!(
                    calls(format, &text),
                    ["begin f", "{}", "end true"],
                    "{format}"
                );
                let schema = jsonschema::validator_for(&schema).unwrap();
                let call = |n: Value| json!({"name": "g", arguments: {"n": n}});
                assert!(schema.is_valid(&call(json!(1))), "{format}");
                assert!(!schema.is_valid(&call(json!("x"))), "{format}");
            }
        }
        let guided =
            |choice| forced_call(ToolFormat::Hermes, &tools(&["f", "g"], choice), true, false);
        let (call, guide) = guided(ToolChoice::Function("g".to_owned())).unwrap();
        assert_eq!(call.prefix, "<tool_call>\n");
        let schema = schema_of(&guide).unwrap();
        let only = schema["anyOf"].as_array().unwrap();
        assert_eq!(
            (only.len(), &only[0]["properties"]["name"]["const"]),
            (1, &json!("g"))
        );
        assert_eq!(guided(ToolChoice::Auto), None);
    }

    #[test]
    fn tags_hold_every_call_to_its_schema() {
        let tags = tags(ToolFormat::Hermes, &tools(&["f", "g"], ToolChoice::Auto)).unwrap();
        assert_eq!(tags["triggers"], json!(["<tool_call>"]));
        for structure in tags["structures"].as_array().unwrap() {
            let text = format!(
                "{}{{}}{}",
                structure["begin"].as_str().unwrap(),
                structure["end"].as_str().unwrap()
            );
            assert_eq!(calls(ToolFormat::Hermes, &text).last().unwrap(), "end true");
        }
    }
}
