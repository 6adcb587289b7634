//! The four forms of `prompt`, and of `input` for embeddings: a text, texts, token ids, lists of token ids. Owns
//! distinguishing them in one pass, without a tree: a body of token ids takes four bytes an id.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::bounds::{MAX_PROMPTS, MAX_TOKEN_ID};
use crate::error::{ApiError, code};
use crate::reader::{too_many, wrong_type};

/// One prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    Text(String),
    /// Not empty; each at most `i32::MAX`.
    Tokens(Vec<u32>),
}

/// Reads the field of this name.
pub(crate) fn read_prompts(name: &str, raw: &RawValue) -> Result<Vec<Prompt>, ApiError> {
    let Prompts(prompts) = serde_json::from_str(raw.get()).map_err(|_| {
        wrong_type(
            name,
            "a string, an array of strings, an array of token ids or an array of arrays of token \
             ids (each an integer from 0 to 2147483647)",
            raw,
        )
    })?;
    if prompts.len() > MAX_PROMPTS {
        return Err(too_many(name, prompts.len(), MAX_PROMPTS));
    }
    if prompts.is_empty() {
        return Err(empty(name));
    }
    for (index, prompt) in prompts.iter().enumerate() {
        if matches!(prompt, Prompt::Tokens(ids) if ids.is_empty()) {
            return Err(empty(&format!("{name}[{index}]")));
        }
    }
    Ok(prompts)
}

fn empty(param: &str) -> ApiError {
    ApiError::invalid_request(
        param,
        format!(
            "Invalid value for `{param}`: the array is empty. Send text or at least one token id."
        ),
    )
    .with_code(code::EMPTY_ARRAY)
}

struct Prompts(Vec<Prompt>);

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = Prompts;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a prompt")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Prompts(vec![Prompt::Text(text.to_owned())]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                // The first element decides what all of them are.
                match items.next_element()? {
                    None => Ok(Prompts(Vec::new())),
                    Some(Element::Token(first)) => {
                        let mut ids = vec![first];
                        while let Some(TokenId(id)) = items.next_element()? {
                            ids.push(id);
                        }
                        Ok(Prompts(vec![Prompt::Tokens(ids)]))
                    }
                    Some(Element::Text(first)) => {
                        let mut prompts = vec![Prompt::Text(first)];
                        while let Some(text) = items.next_element()? {
                            prompts.push(Prompt::Text(text));
                        }
                        Ok(Prompts(prompts))
                    }
                    Some(Element::Tokens(first)) => {
                        let mut prompts = vec![Prompt::Tokens(first)];
                        while let Some(ids) = items.next_element::<Vec<TokenId>>()? {
                            prompts.push(Prompt::Tokens(ids.into_iter().map(|id| id.0).collect()));
                        }
                        Ok(Prompts(prompts))
                    }
                }
            }
        }
        deserializer.deserialize_any(Form)
    }
}

enum Element {
    Text(String),
    Token(u32),
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Element;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string, a token id or a list of token ids")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Text(text.to_owned()))
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<Element, E> {
                checked(id).map(Element::Token)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Element, A::Error> {
                let mut ids = Vec::new();
                while let Some(TokenId(id)) = items.next_element()? {
                    ids.push(id);
                }
                Ok(Element::Tokens(ids))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

struct TokenId(u32);

impl<'de> Deserialize<'de> for TokenId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        checked(u64::deserialize(deserializer)?).map(TokenId)
    }
}

fn checked<E: Error>(id: u64) -> Result<u32, E> {
    u32::try_from(id)
        .ok()
        .filter(|id| *id <= MAX_TOKEN_ID)
        .ok_or_else(|| E::custom("a token id is out of range"))
}
