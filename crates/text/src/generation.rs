//! The text-side defaults a model ships with: `generation_config.json`, and the end-of-sequence ids
//! from wherever they are written. Knows the file formats; applies nothing, the gateway does.

use serde::Deserialize;
use serde_json::Value;

use crate::error::TextError;
use crate::files::parse_object;

/// Sampling defaults and stop ids of a model. `None` means that the model does not say.
///
/// Source: Hugging Face `GenerationConfig`; fields that Inflight does not use are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Every id that ends a sequence, in the file's order, without repeats. From
    /// `generation_config.json`, else `config.json` (its `text_config` included), else the
    /// `eos_token` of `tokenizer_config.json`; empty when none of them names one.
    pub eos_token_ids: Vec<u32>,
    /// Padding id of `generation_config.json`, else `config.json`.
    pub pad_token_id: Option<u32>,
    /// First id of a sequence, of `generation_config.json`, else `config.json`.
    pub bos_token_id: Option<u32>,
    /// `false`: greedy unless the request says otherwise.
    pub do_sample: Option<bool>,
    pub temperature: Option<f32>,
    /// 0 means no limit.
    pub top_k: Option<i32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    /// Tokens to generate when the request does not say.
    pub max_new_tokens: Option<u32>,
}

/// The parts of `generation_config.json` and `config.json` that are read here.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct GenerationFile {
    #[serde(default)]
    eos_token_id: Option<TokenIds>,
    #[serde(default)]
    pad_token_id: Option<TokenIds>,
    #[serde(default)]
    bos_token_id: Option<TokenIds>,
    #[serde(default)]
    do_sample: Option<bool>,
    #[serde(default)]
    temperature: Option<f32>,
    #[serde(default)]
    top_k: Option<i32>,
    #[serde(default)]
    top_p: Option<f32>,
    #[serde(default)]
    min_p: Option<f32>,
    #[serde(default)]
    repetition_penalty: Option<f32>,
    #[serde(default)]
    max_new_tokens: Option<u32>,
}

/// The ids of `config.json`. Sampling values there are leftovers of old checkpoints and not read.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ConfigFile {
    #[serde(default)]
    eos_token_id: Option<TokenIds>,
    #[serde(default)]
    pad_token_id: Option<TokenIds>,
    #[serde(default)]
    bos_token_id: Option<TokenIds>,
    /// Multimodal checkpoints keep the language model's keys here.
    #[serde(default)]
    text_config: Option<Box<ConfigFile>>,
}

/// One id or a list; signed, because checkpoints write -1 for "none".
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TokenIds {
    One(i64),
    Many(Vec<i64>),
}

impl TokenIds {
    fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        let slice = match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::Many(ids) => ids.as_slice(),
        };
        slice.iter().filter_map(|id| u32::try_from(*id).ok())
    }
}

impl GenerationConfig {
    /// Joins the two files; `eos_token` is the tokenizer's own end token, the last resort.
    pub(crate) fn from_files(
        generation: Option<&Vec<u8>>,
        config: Option<&Vec<u8>>,
        eos_token: Option<u32>,
    ) -> Result<Self, TextError> {
        let generation: GenerationFile = parse("generation_config.json", generation)?;
        let config: ConfigFile = parse("config.json", config)?;
        let text = config.text_config.as_deref();

        let mut named = first_ids(&[
            generation.eos_token_id.as_ref(),
            config.eos_token_id.as_ref(),
            text.and_then(|text| text.eos_token_id.as_ref()),
        ]);
        if named.is_empty() {
            named.extend(eos_token);
        }
        let mut eos_token_ids = Vec::with_capacity(named.len());
        for id in named {
            if !eos_token_ids.contains(&id) {
                eos_token_ids.push(id);
            }
        }
        let one = |ids: [Option<&TokenIds>; 3]| first_ids(&ids).first().copied();
        Ok(Self {
            eos_token_ids,
            pad_token_id: one([
                generation.pad_token_id.as_ref(),
                config.pad_token_id.as_ref(),
                text.and_then(|text| text.pad_token_id.as_ref()),
            ]),
            bos_token_id: one([
                generation.bos_token_id.as_ref(),
                config.bos_token_id.as_ref(),
                text.and_then(|text| text.bos_token_id.as_ref()),
            ]),
            do_sample: generation.do_sample,
            temperature: generation.temperature,
            top_k: generation.top_k,
            top_p: generation.top_p,
            min_p: generation.min_p,
            repetition_penalty: generation.repetition_penalty,
            max_new_tokens: generation.max_new_tokens,
        })
    }
}

/// The ids of the first source that names any.
fn first_ids(sources: &[Option<&TokenIds>]) -> Vec<u32> {
    sources
        .iter()
        .flatten()
        .map(|ids| ids.ids().collect::<Vec<_>>())
        .find(|ids| !ids.is_empty())
        .unwrap_or_default()
}

fn parse<T: Default + serde::de::DeserializeOwned>(
    name: &'static str,
    bytes: Option<&Vec<u8>>,
) -> Result<T, TextError> {
    // By way of an object: serde would also fill a struct from a list.
    match parse_object(name, bytes)? {
        None => Ok(T::default()),
        Some(object) => serde_json::from_value(Value::Object(object))
            .map_err(|source| TextError::InvalidFile { name, source }),
    }
}
