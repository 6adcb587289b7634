//! The text files of plain Triton servers' models, which do not serve them. Owns reading them from the
//! directories of `--tokenizer` when the gateway starts; knows nothing of servers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use inflight_text::{ModelFiles, TextError, TextModel};
use serde::Deserialize;

/// The files that are read, where they are there.
const FILES: [&str; 6] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
    "config.json",
];

/// A value for one model of a Triton server, or for all that have none of their own: `[MODEL=]VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForModel<T> {
    pub model: Option<String>,
    pub value: T,
}

impl<T: FromStr> FromStr for ForModel<T>
where
    T::Err: std::fmt::Display,
{
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (model, value) = match text.split_once('=') {
            Some((model, value)) => (Some(model.to_owned()), value),
            None => (None, text),
        };
        if value.is_empty() || model.as_deref() == Some("") {
            return Err("write it as VALUE or MODEL=VALUE".to_owned());
        }
        let value = value.parse().map_err(|error: T::Err| error.to_string())?;
        Ok(Self { model, value })
    }
}

/// The value for `model`: its own, else the one for all.
pub fn for_model<'a, T>(values: &'a [ForModel<T>], model: &str) -> Option<&'a T> {
    let own = values
        .iter()
        .find(|one| one.model.as_deref() == Some(model));
    let own = own.or_else(|| values.iter().find(|one| one.model.is_none()));
    own.map(|one| &one.value)
}

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error(
        "cannot read `{path}`; give `--tokenizer` the directory of the model's Hugging Face files"
    )]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot use the files in `{directory}`")]
    Load {
        directory: PathBuf,
        #[source]
        source: TextError,
    },
}

/// A model's text and what its `config.json` says beside.
#[derive(Clone, Debug)]
pub struct TextFiles {
    pub text: Arc<TextModel>,
    pub vocabulary: Option<u32>,
    pub context: Option<u32>,
}

/// Every directory's text, and how long contexts are.
#[derive(Debug, Default)]
pub struct Tokenizers {
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
    pub fn load(
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
    pub fn text(&self, model: &str) -> Option<&TextFiles> {
        for_model(&self.texts, model)
    }

    /// Prompt plus generated tokens that fit: as told by `--max-seq-len`, else what the model was
    /// made for.
    pub fn context(&self, model: &str) -> Option<u32> {
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
