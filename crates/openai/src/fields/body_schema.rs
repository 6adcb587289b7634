//! The request bodies as JSON schemas, from the table's rows; tests hold them to what the parsers accept.

use serde_json::{Map, Value, json};

use super::kind::Kind;
use super::{Endpoint, Field, Treatment, rows};

/// A body that has a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestBody {
    Chat,
    Completions,
    Responses,
    Embeddings,
    Rerank,
    Tokenize,
    Detokenize,
}

/// The kind of a field's values; `None`: the field is not applied.
fn kind(body: RequestBody, name: &str) -> Option<Kind> {
    match (body, name) {
        (RequestBody::Tokenize, "prompt") => return Some(Kind::Text),
        (RequestBody::Tokenize, "return_token_strs") => return Some(Kind::Boolean),
        (RequestBody::Detokenize, "tokens") => return Some(Kind::Tokens),
        _ => {}
    }
    match super::find(body.endpoint(), name)?.treatment {
        Treatment::Applied(kind) => Some(kind),
        _ => None,
    }
}

/// The schema of a field's values, null aside.
fn value(body: RequestBody, name: &str) -> Option<Value> {
    kind(body, name).map(Kind::schema)
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
            Self::Rerank => Endpoint::Rerank,
        }
    }

    fn required(self) -> &'static [&'static str] {
        match self {
            Self::Chat => &["messages"],
            Self::Completions => &["prompt"],
            Self::Responses | Self::Embeddings => &["input"],
            Self::Rerank => &["query", "documents"],
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
                .top(|treatment| matches!(treatment, Treatment::Applied(_)))
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
                let schema = value(self, name).unwrap_or_default();
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

    const ALL: [RequestBody; 7] = [
        RequestBody::Chat,
        RequestBody::Completions,
        RequestBody::Responses,
        RequestBody::Embeddings,
        RequestBody::Rerank,
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
            RequestBody::Rerank => crate::rerank::parse(bytes).map(drop),
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
            RequestBody::Rerank => json!({"model": "m", "query": "Hi", "documents": ["Hi"]}),
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
                let schema = value(body, name).unwrap_or_else(|| panic!("{name}"));
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
                let Some(schema) = value(body, name) else {
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
