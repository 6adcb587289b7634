//! One model's text, loaded once from its files and shared. Owns which file holds what; knows nothing
//! of where the files come from.

use std::sync::Arc;

use inflight_parsers::Format;
use serde_json::{Map, Value};

use crate::convert::tokenizer_json;
use crate::error::TextError;
use crate::files::{ModelFiles, parse_object};
use crate::generation::GenerationConfig;
use crate::template::{BuiltInTemplate, ChatTemplate, TemplateSource, named_templates};
use crate::tokenizer::Tokenizer;
use crate::transcribing::Transcribing;

/// Everything text of one model. Immutable; share it in an `Arc`.
#[derive(Debug)]
pub struct TextModel {
    tokenizer: Arc<Tokenizer>,
    chat_template: Option<ChatTemplate>,
    built_in: Option<BuiltInTemplate>,
    generation: GenerationConfig,
    format: Format,
    transcribing: Option<Transcribing>,
    /// See [`Self::tokenizer_config`].
    tokenizer_config: Map<String, Value>,
}

/// Of tokenizer_config.json: its own chat template may not be the one that renders, and the rest names files
/// of the machine that wrote it.
const NOT_TOLD: [&str; 5] = [
    "chat_template",
    "vocab_file",
    "merges_file",
    "tokenizer_file",
    "name_or_path",
];

/// What the files say of chat templates.
struct Own {
    /// By name; empty where there are none.
    templates: Vec<(String, String)>,
    special_tokens: Map<String, Value>,
    model_type: Option<String>,
}

/// How a model of these templates writes reasoning and tool calls.
fn detect(templates: &[(String, String)], model_type: Option<&str>) -> Format {
    let all: Vec<&str> = templates
        .iter()
        .map(|(_, source)| source.as_str())
        .collect();
    inflight_parsers::detect(&all.join("\n"), model_type)
}

impl TextModel {
    /// Reads the files. Only `tokenizer.json`, or what it can be made of, must be there.
    ///
    /// # Errors
    ///
    /// [`TextError`] where a file is missing or malformed. A chat template that does not parse is not an
    /// error here: completions work without it, and each chat request gets its error from
    /// [`ChatTemplate::render`].
    pub fn load(files: &ModelFiles) -> Result<Self, TextError> {
        let (mut model, own) = Self::read(files)?;
        if !own.templates.is_empty() {
            model.chat_template = Some(ChatTemplate::new(own.templates, own.special_tokens));
        }
        Ok(model)
    }

    /// As [`Self::load`], and there is always a chat template: the `given` one, else the model's own, else the
    /// built-in one that suits its tokens. A built-in template's end of a turn then ends sequences as well.
    ///
    /// # Errors
    ///
    /// As [`Self::load`], and [`TextError::Template`] for a given template that does not parse.
    pub fn load_for_chat(
        files: &ModelFiles,
        given: Option<&TemplateSource>,
    ) -> Result<Self, TextError> {
        let (mut model, own) = Self::read(files)?;
        let fallback;
        let source = match given {
            Some(given) => given,
            None if !own.templates.is_empty() => {
                model.chat_template = Some(ChatTemplate::new(own.templates, own.special_tokens));
                return Ok(model);
            }
            None => {
                fallback = TemplateSource::BuiltIn(BuiltInTemplate::suiting(&model.tokenizer));
                &fallback
            }
        };
        if let TemplateSource::BuiltIn(template) = source {
            model.built_in = Some(*template);
            let end = template.turn_end();
            let end = end.and_then(|token| model.tokenizer.token_id(token));
            let ends = &mut model.generation.eos_token_ids;
            ends.extend(end.filter(|end| !ends.contains(end)));
        }
        if let TemplateSource::Jinja(templates) = source {
            model.format = detect(templates, own.model_type.as_deref());
        }
        let template = ChatTemplate::from_source(source, own.special_tokens);
        model.chat_template = Some(template.map_err(TextError::Template)?);
        Ok(model)
    }

    fn read(files: &ModelFiles) -> Result<(Self, Own), TextError> {
        let file = |name: &str| files.get(name);
        let tokenizer = match file("tokenizer.json") {
            Some(json) => Tokenizer::from_bytes(json)?,
            None => {
                let json = tokenizer_json(files)?.ok_or(TextError::MissingFile {
                    name: "tokenizer.json",
                })?;
                Tokenizer::from_bytes(&json)?
            }
        };
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

        let templates = match file("chat_template.jinja") {
            Some(bytes) => vec![(
                "default".to_owned(),
                String::from_utf8_lossy(bytes).into_owned(),
            )],
            // Processors of images have a separate file.
            None => match parse_object("chat_template.json", file("chat_template.json"))? {
                Some(own) => named_templates(own.get("chat_template")),
                None => named_templates(config.get("chat_template")),
            },
        };
        let config_file = parse_object("config.json", file("config.json"))?;
        let settings = parse_object("generation_config.json", file("generation_config.json"))?;
        let transcribing = config_file
            .as_ref()
            .and_then(|config| Transcribing::of(config, settings.as_ref(), &tokenizer));
        let model_type = config_file
            .as_ref()
            .and_then(|config| config.get("model_type"));
        let model_type = model_type.and_then(Value::as_str).map(str::to_owned);
        let format = detect(&templates, model_type.as_deref());
        let mut tokenizer_config = config;
        for (name, value) in legacy {
            tokenizer_config.entry(name).or_insert(value);
        }
        tokenizer_config.retain(|name, value| match name.as_str() {
            "tokenizer_class" => value.is_string(),
            name => !NOT_TOLD.contains(&name),
        });
        let model = Self {
            tokenizer: Arc::new(tokenizer),
            chat_template: None,
            built_in: None,
            generation,
            format,
            transcribing,
            tokenizer_config,
        };
        let own = Own {
            templates,
            model_type,
            special_tokens,
        };
        Ok((model, own))
    }

    /// The tokenizer, to share with detokenizers.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The chat template; `None` where the model has none and can only complete.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat_template.as_ref()
    }

    /// How the model writes reasoning and tool calls, as its chat template and configuration show.
    pub fn format(&self) -> Format {
        self.format
    }

    /// How it transcribes, if it does.
    pub fn transcribing(&self) -> Option<&Transcribing> {
        self.transcribing.as_ref()
    }

    /// Which built-in template it is, if it is one.
    pub fn built_in_template(&self) -> Option<BuiltInTemplate> {
        self.built_in
    }

    /// What `tokenizer_config.json` says, with the tokens of an older `special_tokens_map.json`; without chat
    /// templates and the names of files. `tokenizer_class` is a string where it is there.
    pub fn tokenizer_config(&self) -> &Map<String, Value> {
        &self.tokenizer_config
    }

    /// The model's sampling defaults and stop ids.
    pub fn generation(&self) -> &GenerationConfig {
        &self.generation
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
            // Named tokens of newer checkpoints: each is a separate variable.
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
