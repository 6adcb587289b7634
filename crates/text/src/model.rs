//! One model's text, loaded once from its files and shared. Owns which file holds what; knows nothing
//! of where the files come from.

use std::collections::BTreeMap;
use std::sync::Arc;

use inflight_parsers::Format;
use serde_json::{Map, Value};

use crate::error::TextError;
use crate::generation::{GenerationConfig, parse_object};
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// A model's files by base name: `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json`,
/// `chat_template.jinja`, `generation_config.json`, `config.json`. Others are ignored.
pub type ModelFiles = BTreeMap<String, Vec<u8>>;

/// Everything text of one model. Immutable; share it in an `Arc`.
#[derive(Debug)]
pub struct TextModel {
    tokenizer: Arc<Tokenizer>,
    chat_template: Option<ChatTemplate>,
    generation: GenerationConfig,
    format: Format,
}

impl TextModel {
    /// Reads the files. Only `tokenizer.json` must be there.
    ///
    /// # Errors
    ///
    /// [`TextError`] where a file is missing or malformed. A chat template that does not parse is no
    /// error here: completions work without it, and each chat request gets its error from
    /// [`ChatTemplate::render`].
    pub fn load(files: &ModelFiles) -> Result<Self, TextError> {
        let file = |name: &str| files.get(name);
        let tokenizer =
            Tokenizer::from_bytes(file("tokenizer.json").ok_or(TextError::MissingFile {
                name: "tokenizer.json",
            })?)?;
        let config = parse_object("tokenizer_config.json", file("tokenizer_config.json"))?
            .unwrap_or_default();
        let legacy = parse_object("special_tokens_map.json", file("special_tokens_map.json"))?
            .unwrap_or_default();
        let special_tokens = special_tokens(&config, &legacy);

        let eos_token = special_tokens
            .get("eos_token")
            .and_then(Value::as_str)
            .and_then(|token| tokenizer.token_id(token));
        let generation = GenerationConfig::from_files(
            file("generation_config.json"),
            file("config.json"),
            eos_token,
        )?;

        let sources = match file("chat_template.jinja") {
            Some(bytes) => vec![(
                "default".to_owned(),
                String::from_utf8_lossy(bytes).into_owned(),
            )],
            None => template_sources(config.get("chat_template")),
        };
        let model_type = parse_object("config.json", file("config.json"))?;
        let model_type = model_type
            .as_ref()
            .and_then(|config| config.get("model_type"));
        let model_type = model_type.and_then(Value::as_str);
        let all: Vec<&str> = sources.iter().map(|(_, source)| source.as_str()).collect();
        let format = inflight_parsers::detect(&all.join("\n"), model_type);
        let chat_template =
            (!sources.is_empty()).then(|| ChatTemplate::new(sources, special_tokens));
        Ok(Self {
            tokenizer: Arc::new(tokenizer),
            chat_template,
            generation,
            format,
        })
    }

    /// The tokenizer, to share with detokenizers.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The chat template; `None` where the model has none and can only complete.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat_template.as_ref()
    }

    /// How the model writes reasoning and tool calls, as its chat template and configuration tell.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The model's sampling defaults and stop ids.
    pub fn generation(&self) -> &GenerationConfig {
        &self.generation
    }
}

/// `chat_template` of tokenizer_config.json: a string, or a list of `{name, template}`.
fn template_sources(value: Option<&Value>) -> Vec<(String, String)> {
    match value {
        Some(Value::String(source)) => vec![("default".to_owned(), source.clone())],
        Some(Value::Array(entries)) => entries
            .iter()
            .filter_map(|entry| {
                let name = entry.get("name")?.as_str()?;
                let source = entry.get("template")?.as_str()?;
                Some((name.to_owned(), source.to_owned()))
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// The special tokens that templates see, by name: strings, and one list of strings. A token is
/// written as its text or as an object with `content`. tokenizer_config.json wins over the older
/// special_tokens_map.json.
fn special_tokens(config: &Map<String, Value>, legacy: &Map<String, Value>) -> Map<String, Value> {
    let mut tokens = Map::new();
    for (name, value) in legacy.iter().chain(config) {
        if name.ends_with("_token") {
            if let Some(text) = token_text(value) {
                tokens.insert(name.clone(), text.into());
            }
        } else if name == "additional_special_tokens" {
            if let Some(list) = value.as_array() {
                let list: Vec<Value> = list
                    .iter()
                    .filter_map(|token| Some(token_text(token)?.into()))
                    .collect();
                tokens.insert(name.clone(), list.into());
            }
        } else if name == "extra_special_tokens" {
            // Named tokens of newer checkpoints: each is a variable of its own.
            for (name, value) in value.as_object().into_iter().flatten() {
                if let Some(text) = token_text(value) {
                    tokens.insert(name.clone(), text.into());
                }
            }
        }
    }
    tokens
}

fn token_text(value: &Value) -> Option<&str> {
    value
        .as_str()
        .or_else(|| value.get("content").and_then(Value::as_str))
}
