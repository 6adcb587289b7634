//! What becomes of each field of a request: the one table of this API. Owns the names and the decision; the
//! parsers own the values of applied fields. The rules are those of the OpenAI API's table: a field is refused
//! where leaving it out would change what the answer means, ignored and reported where it is a hint, and
//! refused as a typing error where it is nearly the name of a field with an effect.

use inflight_openai::reader::{self, Fields};
use inflight_openai::{ApiError, IgnoredFields};
use serde_json::{Map, Value, json};

/// What becomes of a field. `null`, `[]`, `{}` and the values listed ask for nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Treatment {
    /// Read by a parser.
    Applied,
    /// 400 with the field's name; the text says what to do.
    Refused(&'static [&'static str], &'static str),
    /// Reported by name.
    Ignored(&'static [&'static str]),
}

use Treatment::{Applied, Ignored, Refused};

const NO_SERVER: &str = "Nothing is run on the server. Leave it out.";

/// Every field that current clients send, by its path. `messages.`, `content.` and so on mean any element.
pub(crate) const FIELDS: &[(&str, Treatment)] = &[
    ("model", Applied),
    ("messages", Applied),
    ("max_tokens", Applied),
    ("system", Applied),
    ("stop_sequences", Applied),
    ("stream", Applied),
    ("temperature", Applied),
    ("top_p", Applied),
    ("top_k", Applied),
    ("thinking", Applied),
    ("output_config", Applied),
    // What `output_config.format` was called in its beta.
    ("output_format", Applied),
    ("metadata", Applied),
    // Whatever prompts share is cached without it.
    ("cache_control", Applied),
    ("tools", Applied),
    ("tool_choice", Applied),
    ("container", Refused(&[], NO_SERVER)),
    (
        "thread",
        Refused(
            &[],
            "Threads are not stored. Send the whole conversation in `messages`.",
        ),
    ),
    ("mcp_servers", Refused(&[], NO_SERVER)),
    (
        "cache_salt",
        Refused(
            &[],
            "Prompts share one cache here. Leave it out, or ask `/v1/chat/completions`.",
        ),
    ),
    (
        "chat_template_kwargs",
        Refused(&[], "Send `thinking`, or ask `/v1/chat/completions`."),
    ),
    ("stop", Refused(&[], "Send `stop_sequences` instead.")),
    (
        "max_tokens_to_sample",
        Refused(&[], "Send `max_tokens` instead."),
    ),
    (
        "max_completion_tokens",
        Refused(&[], "Send `max_tokens` instead."),
    ),
    (
        "response_format",
        Refused(&[], "Send `output_config.format` instead."),
    ),
    (
        "n",
        Refused(
            &["1"],
            "An answer is one message. Send the request again for another.",
        ),
    ),
    ("service_tier", Ignored(&["\"auto\"", "\"standard_only\""])),
    ("speed", Ignored(&["\"standard\""])),
    ("context_management", Ignored(&[])),
    ("diagnostics", Ignored(&[])),
    ("inference_geo", Ignored(&[])),
    ("user_profile_id", Ignored(&[])),
    ("workspace_id", Ignored(&[])),
    ("metadata.user_id", Applied),
    ("thinking.type", Applied),
    // A model thinks as long as it does.
    ("thinking.budget_tokens", Ignored(&[])),
    ("thinking.display", Applied),
    ("output_config.format", Applied),
    ("output_config.effort", Applied),
    ("tools.type", Applied),
    ("tools.name", Applied),
    ("tools.description", Applied),
    ("tools.input_schema", Applied),
    ("tools.strict", Applied),
    ("tools.cache_control", Applied),
    ("tools.allowed_callers", Ignored(&[r#"["direct"]"#])),
    // All tools are shown to the model, and their input is streamed as it is generated.
    ("tools.defer_loading", Ignored(&["false"])),
    ("tools.eager_input_streaming", Ignored(&["true", "false"])),
    ("tools.input_examples", Ignored(&[])),
    ("tool_choice.type", Applied),
    ("tool_choice.name", Applied),
    ("tool_choice.disable_parallel_tool_use", Applied),
    ("messages.role", Applied),
    ("messages.content", Applied),
    ("content.type", Applied),
    ("content.text", Applied),
    ("content.source", Applied),
    ("content.cache_control", Applied),
    ("content.citations", Ignored(&[])),
    ("content.id", Applied),
    ("content.name", Applied),
    ("content.input", Applied),
    ("content.tool_use_id", Applied),
    ("content.content", Applied),
    ("content.is_error", Applied),
    ("content.thinking", Applied),
    // Nothing but this server's own word that it wrote the block.
    ("content.signature", Applied),
    // Only who encrypted it can read it.
    ("content.data", Ignored(&[])),
    ("content.caller", Ignored(&[r#"{"type":"direct"}"#])),
    ("content.toolset_name", Ignored(&[])),
];

/// The types of the body's own fields.
fn value(name: &str) -> Option<Value> {
    Some(match name {
        "model" => json!({"type": "string"}),
        "messages" | "tools" => json!({"type": "array", "items": {"type": "object"}}),
        "max_tokens" => json!({"type": "integer", "minimum": 0}),
        "system" => json!({"anyOf": [
            {"type": "string"}, {"type": "array", "items": {"type": "object"}},
        ]}),
        "stop_sequences" => json!({"type": "array", "items": {"type": "string"}}),
        "stream" => json!({"type": "boolean"}),
        "temperature" | "top_p" => json!({"type": "number", "minimum": 0, "maximum": 1}),
        "top_k" => json!({"type": "integer", "minimum": 0}),
        // Accepted whatever it is.
        "cache_control" => json!({}),
        "thinking" | "output_config" | "output_format" | "metadata" | "tool_choice" => {
            json!({"type": "object"})
        }
        _ => return None,
    })
}

/// The body of a request as a JSON schema, from the table.
pub fn request_schema(counts: bool) -> Value {
    let required: &[&str] = match counts {
        true => &["messages"],
        false => &["messages", "max_tokens"],
    };
    let own = |wanted: fn(&Treatment) -> bool| {
        let rows = FIELDS.iter().filter(move |row| wanted(&row.1));
        rows.map(|row| row.0).filter(|name| !name.contains('.'))
    };
    let properties: Map<String, Value> = own(|treatment| matches!(treatment, Applied))
        .map(|name| {
            let mut schema = value(name).unwrap_or_default();
            if !required.contains(&name) {
                schema = json!({"anyOf": [schema, {"type": "null"}]});
            }
            (name.to_owned(), schema)
        })
        .collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "x-inflight-refused-fields": own(|treatment| matches!(treatment, Refused(..))).collect::<Value>(),
        "x-inflight-ignored-fields": own(|treatment| matches!(treatment, Ignored(_))).collect::<Value>(),
    })
}

fn find(path: &str) -> Option<&'static (&'static str, Treatment)> {
    FIELDS.iter().find(|(name, _)| *name == path)
}

/// Decides on every field that no parser took. `table_path` is what the table has before a name.
///
/// # Errors
/// 400 for a refused field, and for a typing error in the body itself.
pub(crate) fn finish(
    fields: Fields<'_>,
    table_path: &str,
    ignored: &mut IgnoredFields,
) -> Result<(), ApiError> {
    let before = fields.param("");
    for (name, raw) in fields.rest() {
        let path = format!("{table_path}{name}");
        let param = format!("{before}{name}");
        match find(&path) {
            // Applied but not taken: it was null, or it is another kind of block's.
            Some((_, Applied)) => {}
            Some((label, Ignored(neutral))) => {
                if !reader::is_neutral(raw, neutral) {
                    ignored.push_as(&path, label);
                }
            }
            Some((_, Refused(neutral, hint))) => {
                if !reader::is_neutral(raw, neutral) {
                    let message = format!(
                        "Unsupported parameter: `{param}` is {}. {hint}",
                        reader::described(raw)
                    );
                    return Err(ApiError::unsupported(param, message));
                }
            }
            None if reader::is_neutral(raw, &[]) => {}
            None => match meant(&name).filter(|_| table_path.is_empty()) {
                Some(meant) => return Err(reader::unknown(&param, meant)),
                None => ignored.push_as(&path, "other"),
            },
        }
    }
    Ok(())
}

/// Takes a `type` that must be one of `known`.
pub(crate) fn take_type(
    fields: &mut Fields<'_>,
    known: &[&'static str],
) -> Result<&'static str, ApiError> {
    let given = fields.string("type")?;
    let given = given.ok_or_else(|| fields.missing("type"))?;
    one_of(fields, "type", &given, known)
}

/// The word among `known` that the field `name` holds.
pub(crate) fn one_of(
    fields: &Fields<'_>,
    name: &str,
    given: &str,
    known: &[&'static str],
) -> Result<&'static str, ApiError> {
    let found = known.iter().find(|word| **word == given);
    found.copied().ok_or_else(|| {
        let param = fields.param(name);
        let words: Vec<String> = known.iter().map(|word| format!("`{word}`")).collect();
        let message = format!(
            "Invalid value for `{param}`: `{}`. Send {}.",
            reader::shortened(given),
            words.join(" or ")
        );
        ApiError::invalid_request(param, message)
    })
}

/// The field of the body that `name` is most likely meant to be.
fn meant(name: &str) -> Option<&'static str> {
    let effective = FIELDS.iter().filter(|(name, treatment)| {
        !name.contains('.') && matches!(treatment, Applied | Refused(..))
    });
    reader::nearest(name, effective.map(|(name, _)| *name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_the_body_has_a_type_that_the_parser_holds_it_to() {
        let schema = request_schema(false);
        let samples = [json!(true), json!(5.5), json!("/"), json!([{"x": 1}])];
        for (name, schema) in schema["properties"].as_object().unwrap() {
            assert!(value(name).is_some(), "{name}");
            let valid = jsonschema::validator_for(schema).unwrap();
            for sample in samples.iter().filter(|sample| !valid.is_valid(sample)) {
                let mut body = json!({"model": "m", "max_tokens": 5,
                    "messages": [{"role": "user", "content": "Hi"}]});
                body[name] = sample.clone();
                let error = crate::request::parse(body.to_string().as_bytes()).unwrap_err();
                let param = error.param.clone().unwrap_or_default();
                assert!(
                    param.starts_with(name.as_str()),
                    "{name}: {sample}: {error}"
                );
            }
        }
        let refused = schema["x-inflight-refused-fields"].as_array().unwrap();
        assert!(refused.contains(&json!("stop")));
    }

    /// The names of the SDK's request types; a new one needs a decision here.
    const BODY: &str = "max_tokens messages model cache_control container diagnostics inference_geo metadata \
        output_config service_tier speed stop_sequences stream system temperature thinking tool_choice tools \
        top_k top_p user_profile_id workspace_id context_management mcp_servers output_format";

    #[test]
    fn every_field_of_the_sdk_has_a_row() {
        for name in BODY.split_whitespace() {
            assert!(find(name).is_some(), "{name}");
        }
    }

    #[test]
    fn no_name_has_two_rows_and_neutral_values_are_json() {
        for (position, (name, treatment)) in FIELDS.iter().enumerate() {
            let first = FIELDS.iter().position(|(other, _)| other == name);
            assert_eq!(first, Some(position), "{name}");
            if let Refused(neutral, _) | Ignored(neutral) = treatment {
                for text in *neutral {
                    serde_json::from_str::<serde_json::Value>(text).unwrap();
                }
            }
        }
    }

    /// `docs/reference/messages-fields.md` is this table; `UPDATE_SNAPSHOTS=1` rewrites it.
    #[test]
    fn the_reference_page_shows_the_table() {
        inflight_testkit::page::check("docs/reference/messages-fields.md", reference_page());
    }

    fn reference_page() -> String {
        let mut page = String::from(
            "# Request fields of the Messages API\n\nEvery field of `/v1/messages` and \
             `/v1/messages/count_tokens` that the gateway knows, from\n`crates/anthropic/src/fields.rs`; \
             `content.` means the fields of any content block. `null`, `[]`, `{}` and\nthe listed values \
             ask for nothing and are always accepted. An unknown field is ignored and reported in\n\
             `x-inflight-ignored-fields`, unless it is nearly the name of a supported or refused one: then it is \
             refused, with\nthe name that was probably meant.\n\n## Supported\n\n",
        );
        let listed = |neutral: &[&str]| match neutral {
            [] => "–".to_owned(),
            some => {
                let quoted: Vec<String> = some.iter().map(|value| format!("`{value}`")).collect();
                quoted.join(", ")
            }
        };
        for (name, treatment) in FIELDS {
            if matches!(treatment, Applied) {
                page.push_str(&format!("- `{name}`\n"));
            }
        }
        page.push_str("\n## Refused\n\n| field | accepted values | instead |\n|---|---|---|\n");
        for (name, treatment) in FIELDS {
            if let Refused(neutral, hint) = treatment {
                page.push_str(&format!("| `{name}` | {} | {hint} |\n", listed(neutral)));
            }
        }
        page.push_str("\n## Ignored\n\nNamed in `x-inflight-ignored-fields`.\n\n| field | not reported |\n|---|---|\n");
        for (name, treatment) in FIELDS {
            if let Ignored(neutral) = treatment {
                page.push_str(&format!("| `{name}` | {} |\n", listed(neutral)));
            }
        }
        page
    }
}
