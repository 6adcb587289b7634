//! The request bodies as JSON schemas: the table's rows, and what type of value each supported field has. Owns the
//! types; a test holds them to what the parsers accept. Whatever else a value must be, its parser says.

use std::ops::RangeInclusive;

use serde_json::{Map, Value, json};

use super::{Endpoint, Field, Treatment, rows};
use crate::bounds;

/// A body that has a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestBody {
    Chat,
    Completions,
    Responses,
    Embeddings,
    Tokenize,
    Detokenize,
}

const MAX_TOKENS: i64 = bounds::MAX_MAX_TOKENS as i64;
const MAX_N: i64 = bounds::MAX_N as i64;
const MAX_TOP_LOGPROBS: i64 = bounds::MAX_TOP_LOGPROBS as i64;
/// Numbers, by name, with their least and greatest values.
const INTEGERS: &[(&str, i64, i64)] = &[
    ("max_tokens", 0, MAX_TOKENS),
    ("max_completion_tokens", 1, MAX_TOKENS),
    ("max_output_tokens", 1, MAX_TOKENS),
    ("max_tool_calls", 1, MAX_TOKENS),
    ("n", 1, MAX_N),
    ("seed", i64::MIN, i64::MAX),
    ("top_k", -1, MAX_TOKENS),
    ("top_logprobs", 0, MAX_TOP_LOGPROBS),
    ("best_of", 1, MAX_N),
    ("min_tokens", 0, MAX_TOKENS),
    ("no_repeat_ngram_size", 0, MAX_TOKENS),
    ("num_beams", 1, MAX_N),
    ("beam_width", 1, MAX_N),
    ("priority", -bounds::MAX_PRIORITY, bounds::MAX_PRIORITY),
    ("truncate_prompt_tokens", -1, MAX_TOKENS),
    ("prompt_logprobs", 0, MAX_TOP_LOGPROBS),
    ("thinking_token_budget", 0, MAX_TOKENS),
    ("dimensions", 1, bounds::MAX_DIMENSIONS as i64),
];
const NUMBERS: &[(&str, RangeInclusive<f64>)] = &[
    ("temperature", bounds::TEMPERATURE),
    ("top_p", bounds::TOP_P),
    ("min_p", bounds::MIN_P),
    ("presence_penalty", bounds::PENALTY),
    ("frequency_penalty", bounds::PENALTY),
    ("repetition_penalty", bounds::REPETITION_PENALTY),
    ("length_penalty", bounds::LENGTH_PENALTY),
];
/// Names of each plain type, separated by spaces.
const BOOLEANS: &str = "stream echo ignore_eos skip_special_tokens add_special_tokens use_beam_search \
    early_stopping include_stop_str_in_output return_token_ids return_tokens_as_token_ids \
    add_generation_prompt continue_final_message parallel_tool_calls enable_thinking include_reasoning store \
    return_token_strs";
const STRINGS: &str = "model cache_salt guided_regex guided_grammar regex ebnf instructions \
    previous_response_id";
const OBJECTS: &str = "stream_options logit_bias response_format structured_outputs chat_template_kwargs text \
    metadata reasoning";
const STRING_LISTS: &str = "bad_words include guided_choice";
const TOKEN_LISTS: &str = "stop_token_ids allowed_token_ids logprob_token_ids tokens";
const OBJECT_LISTS: &str = "messages tools";

/// The schema of a field's values, null aside; `None`: the field is not known.
fn value(endpoint: Endpoint, name: &str) -> Option<Value> {
    let is_one = |names: &str| names.split_whitespace().any(|one| one == name);
    let token = || json!({"type": "integer", "minimum": 0});
    let text_or_tokens = || {
        json!({"anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}},
            {"type": "array", "items": token()},
            {"type": "array", "items": {"type": "array", "items": token()}},
        ]})
    };
    if let Some((_, low, high)) = INTEGERS.iter().find(|row| row.0 == name) {
        return Some(json!({"type": "integer", "minimum": low, "maximum": high}));
    }
    if let Some((_, range)) = NUMBERS.iter().find(|row| row.0 == name) {
        let (low, high) = (range.start(), range.end());
        return Some(json!({"type": "number", "minimum": low, "maximum": high}));
    }
    Some(match (name, endpoint) {
        ("logprobs", Endpoint::Completions) => {
            json!({"type": "integer", "minimum": 0, "maximum": MAX_TOP_LOGPROBS})
        }
        ("logprobs", _) => json!({"type": "boolean"}),
        ("prompt", Endpoint::Chat) => json!({"type": "string"}),
        ("prompt", _) | ("input", Endpoint::Embeddings) => text_or_tokens(),
        ("input", _) => json!({"anyOf": [
            {"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": 1},
        ]}),
        ("stop", _) => json!({"anyOf": [
            {"type": "string"}, {"type": "array", "items": {"type": "string"}},
        ]}),
        ("tool_choice", _) => json!({"anyOf": [
            {"enum": ["none", "auto", "required"]}, {"type": "object"},
        ]}),
        ("thinking", _) => json!({"anyOf": [{"type": "boolean"}, {"type": "object"}]}),
        ("guided_json" | "json_schema" | "structural_tag", _) => {
            json!({"anyOf": [{"type": "object"}, {"type": "string"}]})
        }
        ("reasoning_effort", _) => json!({"enum": crate::chat::EFFORTS}),
        ("truncation_side", _) => json!({"enum": ["left", "right"]}),
        ("encoding_format", _) => json!({"enum": ["float", "base64"]}),
        ("pooling", _) => json!({"enum": ["mean", "last"]}),
        _ if is_one(BOOLEANS) => json!({"type": "boolean"}),
        _ if is_one(STRINGS) => json!({"type": "string"}),
        _ if is_one(OBJECTS) => json!({"type": "object"}),
        _ if is_one(STRING_LISTS) => json!({"type": "array", "items": {"type": "string"}}),
        _ if is_one(TOKEN_LISTS) => json!({"type": "array", "items": token()}),
        _ if is_one(OBJECT_LISTS) => json!({"type": "array", "items": {"type": "object"}}),
        _ => return None,
    })
}

/// Of vLLM's endpoints, which have no separate rows: those of chat that decide on a prompt.
const TOKENIZE: &str = "model prompt messages add_special_tokens return_token_strs add_generation_prompt \
    continue_final_message chat_template_kwargs tools tool_choice parallel_tool_calls reasoning_effort \
    thinking enable_thinking";
const DETOKENIZE: &str = "model tokens";

impl RequestBody {
    fn endpoint(self) -> Endpoint {
        match self {
            Self::Chat | Self::Tokenize => Endpoint::Chat,
            Self::Completions | Self::Detokenize => Endpoint::Completions,
            Self::Responses => Endpoint::Responses,
            Self::Embeddings => Endpoint::Embeddings,
        }
    }

    fn required(self) -> &'static [&'static str] {
        match self {
            Self::Chat => &["messages"],
            Self::Completions => &["prompt"],
            Self::Responses | Self::Embeddings => &["input"],
            Self::Tokenize => &[],
            Self::Detokenize => &["tokens"],
        }
    }

    /// The names of its supported fields.
    fn names(self) -> Vec<&'static str> {
        match self {
            Self::Tokenize => TOKENIZE.split_whitespace().collect(),
            Self::Detokenize => DETOKENIZE.split_whitespace().collect(),
            _ => self
                .top(|treatment| matches!(treatment, Treatment::Applied))
                .collect(),
        }
    }

    /// The body's own fields that are treated so; the first row of a name decides.
    fn top(self, is: fn(&Treatment) -> bool) -> impl Iterator<Item = &'static str> {
        let endpoint = self.endpoint();
        let is_first = move |field: &&'static Field| {
            let first = super::find(endpoint, field.name);
            first.is_some_and(|first| std::ptr::eq(first, *field))
        };
        rows(endpoint)
            .filter(|field| !field.name.contains('.'))
            .filter(is_first)
            .filter(move |field| is(&field.treatment))
            .map(|field| field.name)
    }

    /// The schema of the body, with its refused and ignored fields in `x-inflight-refused-fields` and
    /// `x-inflight-ignored-fields`.
    pub fn schema(self) -> Value {
        let required = self.required();
        let properties: Map<String, Value> = self
            .names()
            .into_iter()
            .map(|name| {
                let schema = value(self.endpoint(), name).unwrap_or_default();
                let schema = match required.contains(&name) {
                    true => schema,
                    false => or_null(schema),
                };
                (name.to_owned(), schema)
            })
            .collect();
        let mut schema = json!({"type": "object", "properties": properties});
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        if !matches!(self, Self::Tokenize | Self::Detokenize) {
            let refused = self.top(|treatment| matches!(treatment, Treatment::Refused { .. }));
            schema["x-inflight-refused-fields"] = refused.collect();
            let ignored = self.top(|treatment| {
                matches!(
                    treatment,
                    Treatment::Ignored { .. } | Treatment::IgnoredUnlessString
                )
            });
            schema["x-inflight-ignored-fields"] = ignored.collect();
        }
        schema
    }
}

/// The same or null, which is as good as absent.
fn or_null(mut schema: Value) -> Value {
    match schema.get("type").cloned() {
        Some(kind) => {
            schema["type"] = json!([kind, "null"]);
            schema
        }
        None => json!({"anyOf": [schema, {"type": "null"}]}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ApiError;

    const ALL: [RequestBody; 6] = [
        RequestBody::Chat,
        RequestBody::Completions,
        RequestBody::Responses,
        RequestBody::Embeddings,
        RequestBody::Tokenize,
        RequestBody::Detokenize,
    ];

    fn parse(body: RequestBody, fields: &Value) -> Result<(), ApiError> {
        let text = fields.to_string();
        let bytes = text.as_bytes();
        match body {
            RequestBody::Chat => crate::chat::parse(bytes).map(drop),
            RequestBody::Completions => crate::completions::parse(bytes).map(drop),
            RequestBody::Responses => crate::responses::parse(bytes).map(drop),
            RequestBody::Embeddings => crate::embeddings::parse(bytes).map(drop),
            RequestBody::Tokenize => crate::tokenize::parse_tokenize(bytes).map(drop),
            RequestBody::Detokenize => crate::tokenize::parse_detokenize(bytes).map(drop),
        }
    }

    /// A request that its parser takes, with one field more.
    fn with(body: RequestBody, name: &str, value: Value) -> Value {
        let messages = json!([{"role": "user", "content": "Hi"}]);
        let mut fields = match body {
            RequestBody::Chat => json!({"model": "m", "messages": messages}),
            RequestBody::Completions => json!({"model": "m", "prompt": "Hi"}),
            RequestBody::Responses | RequestBody::Embeddings => {
                json!({"model": "m", "input": "Hi"})
            }
            RequestBody::Tokenize if name == "prompt" => json!({}),
            RequestBody::Tokenize => json!({"messages": messages}),
            RequestBody::Detokenize => json!({"tokens": [1]}),
        };
        fields[name] = value;
        fields
    }

    #[test]
    fn every_supported_field_has_a_type_that_its_parser_holds_it_to() {
        let samples = [
            json!(true),
            json!(5.5),
            json!("/"),
            json!([{"x": 1}]),
            json!([[]]),
            json!({"x": 1}),
        ];
        for body in ALL {
            for name in body.names() {
                let schema = value(body.endpoint(), name).unwrap_or_else(|| panic!("{name}"));
                let valid = jsonschema::validator_for(&schema).unwrap();
                for sample in samples.iter().filter(|sample| !valid.is_valid(sample)) {
                    // Repeated in the answer, and never read.
                    let error = parse(body, &with(body, name, sample.clone()));
                    let error = error.expect_err(&format!("{body:?} `{name}`: {sample}"));
                    let param = error.param.unwrap_or_default();
                    assert!(param.starts_with(name), "{body:?} `{name}`: {param}");
                }
            }
        }
    }

    #[test]
    fn bounds_are_the_parsers() {
        let refused = |body, name: &str, value: Value| {
            let outcome = parse(body, &with(body, name, value));
            outcome
                .err()
                .is_some_and(|error| error.code().is_some_and(|code| code.contains("value")))
        };
        for body in ALL {
            for name in body.names() {
                let Some(schema) = value(body.endpoint(), name) else {
                    continue;
                };
                let (Some(low), Some(high)) = (schema.get("minimum"), schema.get("maximum")) else {
                    continue;
                };
                if let (Some(low), Some(high)) = (low.as_i64(), high.as_i64()) {
                    if high < i64::MAX {
                        assert!(refused(body, name, json!(high + 1)), "{body:?} {name}");
                        assert!(refused(body, name, json!(low - 1)), "{body:?} {name}");
                    }
                } else if let (Some(low), Some(high)) = (low.as_f64(), high.as_f64()) {
                    assert!(refused(body, name, json!(high + 0.5)), "{body:?} {name}");
                    assert!(refused(body, name, json!(low - 0.5)), "{body:?} {name}");
                }
            }
        }
    }

    #[test]
    fn a_body_tells_what_is_refused_and_ignored() {
        let schema = RequestBody::Responses.schema();
        let names = |list: &str| schema[list].as_array().unwrap().clone();
        assert!(names("x-inflight-refused-fields").contains(&json!("messages")));
        assert!(names("x-inflight-ignored-fields").contains(&json!("service_tier")));
        assert_eq!(schema["required"], json!(["input"]));
        let properties = schema["properties"].as_object().unwrap();
        assert!(!properties.contains_key("messages") && !properties.contains_key("text.verbosity"));
        assert_eq!(
            properties["temperature"],
            json!({"type": ["number", "null"], "minimum": 0.0, "maximum": 2.0})
        );
    }
}
