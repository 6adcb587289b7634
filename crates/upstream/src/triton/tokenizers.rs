//! Tokenizers of plain Triton servers' models, which Triton does not serve. Owns reading them from the
//! directories of `--tokenizer` when the gateway starts; knows nothing of servers.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inflight_models::for_model::{ForModel, for_model};
use inflight_text::{
    BuiltInTemplate, CONVERTED_FILES, ChatTemplate, ModelFiles, TemplateSource, TextError,
    TextModel,
};
use serde::Deserialize;

use super::super::chat_templates::ChatTemplates;

/// The files that are read, where they are there.
const FILES: [&str; 7] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "config.json",
];

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error(
        "cannot read `{path}`; pass `--tokenizer` the directory of the model's Hugging Face files"
    )]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot load the tokenizer in `{directory}`")]
    Load {
        directory: PathBuf,
        #[source]
        source: TextError,
    },
}

/// A model's text, and what else its `config.json` specifies.
#[derive(Clone, Debug)]
pub struct TextFiles {
    pub text: Arc<TextModel>,
    pub vocabulary: Option<u32>,
    pub context: Option<u32>,
}

/// Every directory's text, and how long contexts are.
#[derive(Debug, Default)]
pub struct Tokenizers {
    directories: Vec<ForModel<PathBuf>>,
    /// By directory, and the chat template that replaces the directory's.
    texts: BTreeMap<(PathBuf, Option<TemplateSource>), TextFiles>,
    contexts: Vec<ForModel<u32>>,
    templates: ChatTemplates,
}

#[derive(Debug, Default, Deserialize)]
struct Config {
    vocab_size: Option<u32>,
    max_position_embeddings: Option<u32>,
    /// GPT-2's name for the same.
    n_positions: Option<u32>,
    text_config: Option<Box<Config>>,
}

impl Tokenizers {
    /// Reads the directories; blocks, seconds for the largest tokenizers.
    ///
    /// # Errors
    /// [`TokenizerError`], naming the path.
    pub fn load(
        directories: &[ForModel<PathBuf>],
        contexts: &[ForModel<u32>],
        templates: ChatTemplates,
    ) -> Result<Self, TokenizerError> {
        // No model's name is empty: whatever was given for every model.
        let named = directories.iter().map(|one| one.model.as_deref());
        let names = named.flatten().chain(templates.models()).chain([""]);
        let mut texts = BTreeMap::new();
        for name in names {
            let Some(directory) = for_model(directories, name) else {
                continue;
            };
            let key = (directory.clone(), templates.given(name).cloned());
            if let Entry::Vacant(place) = texts.entry(key) {
                place.insert(load(directory, templates.given(name))?);
            }
        }
        Ok(Self {
            directories: directories.to_vec(),
            texts,
            contexts: contexts.to_vec(),
            templates,
        })
    }

    /// The text of a Triton server's model.
    pub fn text(&self, model: &str) -> Option<&TextFiles> {
        let directory = for_model(&self.directories, model)?;
        let given = self.templates.given(model);
        self.texts.get(&(directory.clone(), given.cloned()))
    }

    /// The chat template of a model whose tokenizer only its server has.
    pub fn template(&self, model: &str) -> Option<ChatTemplate> {
        let plain = TemplateSource::BuiltIn(BuiltInTemplate::Plain);
        let source = self.templates.given(model).unwrap_or(&plain);
        // What is given was parsed when it was read.
        ChatTemplate::from_source(source, serde_json::Map::new()).ok()
    }

    /// Most prompt and generated tokens together: from `--max-seq-len`, else from the model's `config.json`.
    pub fn context(&self, model: &str) -> Option<u32> {
        let told = for_model(&self.contexts, model).copied();
        told.or_else(|| self.text(model)?.context)
    }
}

fn load(directory: &Path, given: Option<&TemplateSource>) -> Result<TextFiles, TokenizerError> {
    let mut files = ModelFiles::new();
    for name in FILES.into_iter().chain(CONVERTED_FILES) {
        // What it would be made of is not needed then.
        if files.contains_key(FILES[0]) && CONVERTED_FILES.contains(&name) {
            continue;
        }
        let path = directory.join(name);
        match std::fs::read(&path) {
            Ok(content) => {
                files.insert(name.to_owned(), content);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(source) => return Err(TokenizerError::Read { path, source }),
        }
    }
    let mut makers = [FILES[0]].into_iter().chain(CONVERTED_FILES);
    if !makers.any(|name| files.contains_key(name)) {
        return Err(TokenizerError::Read {
            path: directory.join(FILES[0]),
            source: ErrorKind::NotFound.into(),
        });
    }
    let text = TextModel::load_for_chat(&files, given).map_err(|source| TokenizerError::Load {
        directory: directory.to_owned(),
        source,
    })?;
    if let (Some(template), None) = (text.built_in_template(), given) {
        tracing::warn!(
            directory = %directory.display(), %template,
            "it has no chat template; chats use a built-in one, unless `--chat-template` names another"
        );
    }
    // A config.json that cannot be read was refused above if it mattered to the text.
    let config = files.get("config.json");
    let config = config.and_then(|bytes| serde_json::from_slice::<Config>(bytes).ok());
    let config = config.unwrap_or_default();
    let inner = config.text_config.as_deref();
    let first = |value: fn(&Config) -> Option<u32>| value(&config).or_else(|| value(inner?));
    Ok(TextFiles {
        text: Arc::new(text),
        vocabulary: first(|config| config.vocab_size),
        context: first(|config| config.max_position_embeddings.or(config.n_positions)),
    })
}
