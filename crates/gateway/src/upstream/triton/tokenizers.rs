//! Tokenizers of plain Triton servers' models, which Triton does not serve. Owns reading them from the
//! directories of `--tokenizer` when the gateway starts; knows nothing of servers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inflight_text::{ModelFiles, TextError, TextModel};
use serde::Deserialize;

use crate::model::for_model::{ForModel, for_model};

/// The files that are read, where they are there.
const FILES: [&str; 6] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
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

/// A model's text and what its `config.json` says beside.
#[derive(Clone, Debug)]
pub(crate) struct TextFiles {
    pub text: Arc<TextModel>,
    pub vocabulary: Option<u32>,
    pub context: Option<u32>,
}

/// Every directory's text, and how long contexts are.
#[derive(Debug, Default)]
pub(crate) struct Tokenizers {
    texts: Vec<ForModel<TextFiles>>,
    contexts: Vec<ForModel<u32>>,
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
    pub(crate) fn load(
        directories: &[ForModel<PathBuf>],
        contexts: &[ForModel<u32>],
    ) -> Result<Self, TokenizerError> {
        let mut read: BTreeMap<&Path, TextFiles> = BTreeMap::new();
        let mut texts = Vec::new();
        for ForModel { model, value } in directories {
            let files = match read.get(value.as_path()) {
                Some(files) => files.clone(),
                None => {
                    let files = load(value)?;
                    read.insert(value, files.clone());
                    files
                }
            };
            texts.push(ForModel {
                model: model.clone(),
                value: files,
            });
        }
        Ok(Self {
            texts,
            contexts: contexts.to_vec(),
        })
    }

    /// The text of a Triton server's model.
    pub(crate) fn text(&self, model: &str) -> Option<&TextFiles> {
        for_model(&self.texts, model)
    }

    /// Prompt plus generated tokens that fit: as told by `--max-seq-len`, else what the model was
    /// made for.
    pub(crate) fn context(&self, model: &str) -> Option<u32> {
        let told = for_model(&self.contexts, model).copied();
        told.or_else(|| self.text(model)?.context)
    }
}

fn load(directory: &Path) -> Result<TextFiles, TokenizerError> {
    let mut files = ModelFiles::new();
    for name in FILES {
        let path = directory.join(name);
        match std::fs::read(&path) {
            Ok(content) => {
                files.insert(name.to_owned(), content);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && name != FILES[0] => {}
            Err(source) => return Err(TokenizerError::Read { path, source }),
        }
    }
    let text = TextModel::load(&files).map_err(|source| TokenizerError::Load {
        directory: directory.to_owned(),
        source,
    })?;
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
