//! The request and the answer of `/v1/embeddings`. Owns their parsing and their form; knows nothing of tokenizers and
//! models.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use crate::Parsed;
use crate::bounds::MAX_DIMENSIONS;
use crate::completions::{Prompt, read_prompts};
use crate::error::ApiError;
use crate::fields::Endpoint;
use crate::generation::take_model;
use crate::ignored::IgnoredFields;
use crate::reader::Fields;

/// How a prompt's hidden states become one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The last token's, as vLLM has it for models that say nothing else.
    #[default]
    Last,
}

impl Pooling {
    /// The name that requests have it by.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Last => "last",
        }
    }
}

/// How a vector is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// As numbers.
    #[default]
    Float,
    /// As base64 of little-endian float32.
    Base64,
}

/// What embeddings are asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingRequest {
    /// Empty: the only one that is served.
    pub model: String,
    /// At least one; none is an empty list of token ids.
    pub inputs: Vec<Prompt>,
    pub encoding: Encoding,
    /// What the vectors must have, if the request says so.
    pub dimensions: Option<u32>,
    pub pooling: Pooling,
    /// Whether texts get the tokenizer's special tokens.
    pub add_special_tokens: bool,
}

/// Parses and validates a body. Total: any bytes give a request or a 400.
pub fn parse(body: &[u8]) -> Result<Parsed<EmbeddingRequest>, ApiError> {
    let mut fields = Fields::of_body(body)?;
    let mut ignored = IgnoredFields::default();
    let model = take_model(&mut fields)?;
    let inputs = read_prompts("input", fields.require("input")?)?;
    let pooling = take_pooling(&mut fields)?;
    let encoding = one_of(
        &mut fields,
        "encoding_format",
        [("float", Encoding::Float), ("base64", Encoding::Base64)],
    )?;
    let dimensions = fields.count("dimensions", 1..=MAX_DIMENSIONS)?;
    let add_special_tokens = fields.boolean("add_special_tokens")?.unwrap_or(true);
    fields.finish(Endpoint::Embeddings, "", &mut ignored)?;
    let request = EmbeddingRequest {
        model,
        inputs,
        encoding,
        dimensions,
        pooling,
        add_special_tokens,
    };
    Ok(Parsed { request, ignored })
}

/// Takes how vectors are made of hidden states.
pub(crate) fn take_pooling(fields: &mut Fields<'_>) -> Result<Pooling, ApiError> {
    let named = [Pooling::Mean, Pooling::Last].map(|pooling| (pooling.name(), pooling));
    one_of(fields, "pooling", named)
}

/// A word that names a value; absent, the default.
fn one_of<T: Copy + Default>(
    fields: &mut Fields<'_>,
    name: &str,
    values: [(&str, T); 2],
) -> Result<T, ApiError> {
    let Some(given) = fields.string(name)? else {
        return Ok(T::default());
    };
    let found = values.iter().find(|(word, _)| *word == given);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let [(one, _), (other, _)] = values;
        ApiError::invalid_request(
            name,
            format!(
                "Invalid value for `{name}`: `{}`. Send `{one}` or `{other}`.",
                crate::reader::shortened(&given)
            ),
        )
    })
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct EmbeddingList {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: EmbeddingUsage,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(untagged)]
enum Vector {
    Numbers(Vec<f32>),
    Base64(String),
}

impl Serialize for Vector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Numbers(values) => values.serialize(serializer),
            Self::Base64(text) => serializer.serialize_str(text),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct EmbeddingUsage {
    prompt_tokens: u64,
    total_tokens: u64,
}

impl EmbeddingUsage {
    /// Of inputs that have so many tokens together.
    pub(crate) fn of(tokens: u64) -> Self {
        Self {
            prompt_tokens: tokens,
            total_tokens: tokens,
        }
    }
}

impl EmbeddingList {
    /// The vectors of a request's inputs, in their order.
    pub fn new(model: String, vectors: Vec<Vec<f32>>, encoding: Encoding, tokens: u64) -> Self {
        let written = |values: Vec<f32>| match encoding {
            Encoding::Float => Vector::Numbers(values),
            Encoding::Base64 => {
                let bytes: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
                Vector::Base64(BASE64_STANDARD.encode(bytes))
            }
        };
        let data = vectors.into_iter().enumerate();
        Self {
            object: "list",
            data: data
                .map(|(index, values)| Embedding {
                    object: "embedding",
                    index,
                    embedding: written(values),
                })
                .collect(),
            model,
            usage: EmbeddingUsage::of(tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed(mut body: Value) -> Result<Parsed<EmbeddingRequest>, ApiError> {
        body["model"] = json!("m");
        parse(body.to_string().as_bytes())
    }

    #[test]
    fn inputs_have_four_forms() {
        let text = |text: &str| Prompt::Text(text.to_owned());
        for (input, expected) in [
            (json!("a"), vec![text("a")]),
            (json!(["a", ""]), vec![text("a"), text("")]),
            (json!([1, 2]), vec![Prompt::Tokens(vec![1, 2])]),
            (
                json!([[1], [2, 3]]),
                vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])],
            ),
        ] {
            let request = parsed(json!({"input": input, "user": "u"})).unwrap();
            assert_eq!(request.request.inputs, expected);
            assert_eq!(request.ignored.header_value(), None);
        }
        let all = json!({"input": "a", "pooling": "mean", "encoding_format": "base64", "dimensions": 8,
            "add_special_tokens": false, "metadata": {"a": "b"}});
        let Parsed { request, ignored } = parsed(all).unwrap();
        assert_eq!(
            (request.pooling, request.encoding),
            (Pooling::Mean, Encoding::Base64)
        );
        assert_eq!(
            (request.dimensions, request.add_special_tokens),
            (Some(8), false)
        );
        assert_eq!(ignored.header_value().as_deref(), Some("metadata"));
    }

    #[test]
    fn errors_name_their_field() {
        for (body, param) in [
            (json!({}), "input"),
            (json!({"input": []}), "input"),
            (json!({"input": [[]]}), "input[0]"),
            (json!({"input": ["a", 1]}), "input"),
            (json!({"input": vec!["a"; 2049]}), "input"),
            (json!({"input": "a", "pooling": "max"}), "pooling"),
            (
                json!({"input": "a", "encoding_format": "int8"}),
                "encoding_format",
            ),
            (json!({"input": "a", "dimensions": 0}), "dimensions"),
            (json!({"input": "a", "prompt": "a"}), "prompt"),
            (json!({"input": "a", "messages": [1]}), "messages"),
            (
                json!({"input": "a", "truncate_prompt_tokens": 5}),
                "truncate_prompt_tokens",
            ),
            (json!({"input": "a", "normalize": false}), "normalize"),
            (
                json!({"input": "a", "use_activation": false}),
                "use_activation",
            ),
            (
                json!({"input": "a", "embed_dtype": "float16"}),
                "embed_dtype",
            ),
            (json!({"input": "a", "endianness": "big"}), "endianness"),
            (json!({"input": "a", "dimension": 5}), "dimension"),
        ] {
            let error = parsed(body).unwrap_err();
            assert_eq!(
                (error.status(), error.param.as_deref()),
                (400, Some(param)),
                "{error}"
            );
        }
    }

    #[test]
    fn vectors_are_numbers_or_base64_of_them() {
        let answer = |encoding| {
            let list = EmbeddingList::new("m".to_owned(), vec![vec![0.5, -1.0]], encoding, 3);
            serde_json::to_value(list).unwrap()
        };
        assert_eq!(
            answer(Encoding::Float),
            json!({"object": "list", "model": "m", "usage": {"prompt_tokens": 3, "total_tokens": 3},
                "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}]})
        );
        let text = &answer(Encoding::Base64)["data"][0]["embedding"];
        assert_eq!(text, "AAAAPwAAgL8=");
    }
}
