//! `tokenizer.json` for models that have none: from SentencePiece's `tokenizer.model`, from GPT-2's `vocab.json` and
//! `merges.txt`, or from tiktoken's ranks. Owns which files make which tokenizer; the result is what Hugging Face's
//! own conversions write, so that one library tokenizes for all models.
//!
//! Special tokens in a text become their ids, as in every `tokenizer.json`; SentencePiece and tiktoken themselves
//! take them for plain text.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::error::TextError;
use crate::files::{ModelFiles, parse_object};

mod byte_level;
mod merges;
mod sentencepiece;
mod tiktoken;

/// The names of SentencePiece's file; the first also has tiktoken's ranks, in the first releases of Llama 3.
const SENTENCEPIECE: [&str; 2] = ["tokenizer.model", "spiece.model"];
/// The names of tiktoken's file: Qwen 1's and Kimi's.
const TIKTOKEN: [&str; 2] = ["qwen.tiktoken", "tiktoken.model"];

/// Every file that [`tokenizer_json`] reads.
pub const CONVERTED_FILES: [&str; 7] = [
    "tokenizer.model",
    "spiece.model",
    "qwen.tiktoken",
    "tiktoken.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
];

/// A `tokenizer.json` made of a model's other tokenizer files; `None` if it has none of them. Takes up to seconds.
///
/// # Errors
///
/// [`TextError::Convert`], [`TextError::InvalidFile`]: a file is not what its name says, or of a kind that has no
/// equal here.
pub fn tokenizer_json(files: &ModelFiles) -> Result<Option<Vec<u8>>, TextError> {
    let about = About::read(files)?;
    let find = |names: &[&'static str]| {
        let found = names.iter().copied();
        let mut found = found.filter_map(|name| Some((name, files.get(name)?)));
        found.next()
    };
    let converted = if let Some((name, bytes)) = find(&SENTENCEPIECE) {
        match tiktoken::looks_like(bytes) {
            true => tiktoken::convert(name, bytes, &about)?,
            false => sentencepiece::convert(name, bytes, &about)?,
        }
    } else if let Some((name, bytes)) = find(&TIKTOKEN) {
        tiktoken::convert(name, bytes, &about)?
    } else if let (Some(vocab), Some(merges)) = (files.get("vocab.json"), files.get("merges.txt")) {
        byte_level::convert(vocab, merges, &about)?
    } else {
        return Ok(None);
    };
    Ok(Some(converted.to_string().into_bytes()))
}

fn refused(name: &'static str, reason: impl Into<String>) -> TextError {
    TextError::Convert {
        name,
        reason: reason.into(),
    }
}

/// What the files next to a vocabulary say about it.
struct About {
    /// Without `Fast` at its end; empty where no file says.
    class: String,
    /// `model_type` of `config.json`, or empty.
    model_type: String,
    config: Map<String, Value>,
    /// Tokens outside the vocabulary, by id.
    added: BTreeMap<u64, Value>,
}

impl About {
    fn read(files: &ModelFiles) -> Result<Self, TextError> {
        let object = |name: &'static str| {
            Ok::<_, TextError>(parse_object(name, files.get(name))?.unwrap_or_default())
        };
        let mut config = object("special_tokens_map.json")?;
        config.extend(object("tokenizer_config.json")?);
        let model = object("config.json")?;
        let mut added = BTreeMap::new();
        for (content, id) in object("added_tokens.json")? {
            if let Some(id) = id.as_u64() {
                added.insert(id, added_token(id, &content, false));
            }
        }
        let declared = config
            .get("added_tokens_decoder")
            .and_then(Value::as_object);
        for (id, token) in declared.into_iter().flatten() {
            let id = id.parse::<u64>().ok();
            let content = token.get("content").and_then(Value::as_str);
            if let (Some(id), Some(content)) = (id, content) {
                let flag = |name: &str| token.get(name).and_then(Value::as_bool);
                let mut value = added_token(id, content, flag("special").unwrap_or(true));
                for name in ["single_word", "lstrip", "rstrip", "normalized"] {
                    if let Some(set) = flag(name) {
                        value[name] = set.into();
                    }
                }
                added.insert(id, value);
            }
        }
        let class = config.get("tokenizer_class").and_then(Value::as_str);
        let class = class.unwrap_or_default();
        let model_type = model.get("model_type").and_then(Value::as_str);
        Ok(Self {
            class: class.strip_suffix("Fast").unwrap_or(class).to_owned(),
            model_type: model_type.unwrap_or_default().to_owned(),
            added,
            config,
        })
    }

    fn flag(&self, name: &str) -> Option<bool> {
        self.config.get(name).and_then(Value::as_bool)
    }

    /// A special token's text, where a file names one.
    fn special(&self, name: &str) -> Option<&str> {
        let value = self.config.get(name)?;
        value.as_str().or_else(|| value.get("content")?.as_str())
    }

    /// All that files name as `bos_token` and the like.
    fn specials(&self) -> impl Iterator<Item = &str> {
        let names = self.config.keys().filter(|name| name.ends_with("_token"));
        let further = self.config.get("additional_special_tokens");
        let further = further.and_then(Value::as_array).into_iter().flatten();
        let further =
            further.filter_map(|value| value.as_str().or_else(|| value.get("content")?.as_str()));
        names.filter_map(|name| self.special(name)).chain(further)
    }

    /// The tokens to write in addition to a vocabulary: what the files declare, and what they name as special.
    fn added_tokens(&self, id_of: impl Fn(&str) -> Option<u64>, own: &[Value]) -> Vec<Value> {
        let mut all: BTreeMap<u64, Value> = BTreeMap::new();
        for value in own {
            all.insert(value["id"].as_u64().unwrap_or_default(), value.clone());
        }
        let named = self.specials();
        let named = named.filter_map(|content| Some((id_of(content)?, content)));
        for (id, content) in named {
            all.insert(id, added_token(id, content, true));
        }
        for (id, value) in &self.added {
            let special = all.get(id).is_some_and(|known| known["special"] == true);
            let mut value = value.clone();
            if special {
                value["special"] = true.into();
            }
            all.insert(*id, value);
        }
        all.into_values().collect()
    }
}

/// Gives the vocabulary of a model the tokens outside it: the library numbers others on from its end.
fn name_added(vocabulary: &mut Map<String, Value>, added: &[Value]) {
    for token in added {
        if let Some(content) = token["content"].as_str() {
            let id = || token["id"].clone();
            vocabulary.entry(content).or_insert_with(id);
        }
    }
}

fn added_token(id: u64, content: &str, special: bool) -> Value {
    json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": special,
    })
}

/// The post-processor that puts these tokens around a text; null without any.
fn around(before: Option<(&str, u64)>, after: Option<(&str, u64)>) -> Value {
    if before.is_none() && after.is_none() {
        return Value::Null;
    }
    let token = |(content, _): (&str, u64), kind: u8| json!({"SpecialToken": {"id": content, "type_id": kind}});
    let sequence = |name: &str, kind: u8| {
        let text = json!({"Sequence": {"id": name, "type_id": kind}});
        let parts = [
            before.map(|one| token(one, kind)),
            Some(text),
            after.map(|one| token(one, kind)),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>()
    };
    let special: Map<String, Value> = [before, after]
        .into_iter()
        .flatten()
        .map(|(content, id)| {
            let value = json!({"id": content, "ids": [id], "tokens": [content]});
            (content.to_owned(), value)
        })
        .collect();
    let pair = [sequence("A", 0), sequence("B", 1)].concat();
    json!({
        "type": "TemplateProcessing",
        "single": sequence("A", 0),
        "pair": pair,
        "special_tokens": special,
    })
}
