//! Log probabilities in the two shapes that the API has: per token for chat, columns for completions.
//! Owns the shapes; texts, values and offsets come in.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// JSON has no infinities; OpenAI writes this for a token that could not have been sampled.
const IMPOSSIBLE: f32 = -9999.0;

fn finite(value: f32) -> f32 {
    if value.is_finite() { value } else { IMPOSSIBLE }
}

fn write_logprob<S: Serializer>(value: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f32(finite(*value))
}

fn write_logprobs<S: Serializer>(values: &[Option<f32>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(|value| value.map(finite)))
}

/// `choices[].logprobs` of chat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct ChatLogprobs {
    pub content: Vec<TokenLogprob>,
    /// No refusal is ever generated apart from the content.
    pub refusal: Option<Vec<TokenLogprob>>,
}

/// One generated token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct TokenLogprob {
    /// The token's text; U+FFFD replaces parts of characters, which `bytes` has exactly.
    pub token: String,
    #[serde(serialize_with = "write_logprob")]
    pub logprob: f32,
    /// The token's bytes, those of a special token's name too; `None` where the token is unknown.
    pub bytes: Option<Vec<u8>>,
    /// Best first; empty unless asked for.
    pub top_logprobs: Vec<TopLogprob>,
}

/// One alternative at a position.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct TopLogprob {
    pub token: String,
    #[serde(serialize_with = "write_logprob")]
    pub logprob: f32,
    pub bytes: Option<Vec<u8>>,
}

/// vLLM's `prompt_logprobs`: for each token of the prompt, itself and the likeliest; none for the first.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
pub struct PromptLogprobs(
    #[schemars(with = "Vec<Option<BTreeMap<String, PromptLogprob>>>")]
    pub  Vec<Option<Vec<PromptLogprob>>>,
);

/// One token at a position of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PromptLogprob {
    #[serde(skip)]
    pub id: i32,
    #[serde(serialize_with = "write_logprob")]
    pub logprob: f32,
    /// 1: the likeliest. `None`: not among the alternatives that were asked for.
    pub rank: Option<u32>,
    pub decoded_token: String,
}

impl Serialize for PromptLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Position<'a>(&'a [PromptLogprob]);
        impl Serialize for Position<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.iter().map(|token| (token.id, token)))
            }
        }
        serializer.collect_seq(self.0.iter().map(|tokens| tokens.as_deref().map(Position)))
    }
}

/// `choices[].logprobs` of completions: columns of equal length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct CompletionLogprobs {
    pub tokens: Vec<String>,
    /// `None` for the first token of an echoed prompt, which nothing precedes.
    #[serde(serialize_with = "write_logprobs")]
    pub token_logprobs: Vec<Option<f32>>,
    pub top_logprobs: Option<Vec<Option<TopLogprobs>>>,
    /// Where each token starts in the choice's text, in characters.
    pub text_offset: Vec<u32>,
}

/// Alternatives at one position, best first: a JSON object from text to log probability. Texts that
/// repeat are written once, the best value kept.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
pub struct TopLogprobs(#[schemars(with = "BTreeMap<String, f32>")] pub Vec<(String, f32)>);

impl Serialize for TopLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (position, (token, logprob)) in self.0.iter().enumerate() {
            // At most a few dozen alternatives: looking back is cheaper than a set.
            let repeated = self.0.iter().take(position).any(|(seen, _)| seen == token);
            if !repeated {
                map.serialize_entry(token, &finite(*logprob))?;
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chat_has_openai_shape() {
        let logprobs = ChatLogprobs {
            content: vec![TokenLogprob {
                token: "Hé".into(),
                logprob: -0.5,
                bytes: Some("Hé".into()),
                top_logprobs: vec![TopLogprob {
                    token: "<end>".into(),
                    logprob: f32::NEG_INFINITY,
                    bytes: None,
                }],
            }],
            refusal: None,
        };
        assert_eq!(
            serde_json::to_string(&logprobs).unwrap(),
            concat!(
                r#"{"content":[{"token":"Hé","logprob":-0.5,"bytes":[72,195,169],"#,
                r#""top_logprobs":[{"token":"<end>","logprob":-9999.0,"bytes":null}]}],"refusal":null}"#
            )
        );
    }

    #[test]
    fn completions_have_openai_shape() {
        let logprobs = CompletionLogprobs {
            tokens: vec!["a".into(), "b".into()],
            token_logprobs: vec![None, Some(f32::NAN)],
            top_logprobs: Some(vec![
                None,
                Some(TopLogprobs(vec![
                    ("b".into(), -0.25),
                    ("b".into(), -3.0),
                    ("c".into(), -4.0),
                ])),
            ]),
            text_offset: vec![0, 1],
        };
        assert_eq!(
            serde_json::to_string(&logprobs).unwrap(),
            concat!(
                r#"{"tokens":["a","b"],"token_logprobs":[null,-9999.0],"#,
                r#""top_logprobs":[null,{"b":-0.25,"c":-4.0}],"text_offset":[0,1]}"#
            )
        );
    }
}
