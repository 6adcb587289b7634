//! What a worker says about its model, and the model's text files. Owns fetching, checking and caching
//! them by content hash; knows nothing of connections or requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use inflight_base::{blocking, content_hash};
use inflight_kserve::assets::model_assets_client::ModelAssetsClient;
use inflight_kserve::assets::{FetchRequest, ModelDescription};
use inflight_models::served::{MAX_NAME_BYTES, Protocol, ServedModel};
use inflight_text::{ModelFiles, TemplateSource, TextModel};
use parking_lot::Mutex;
use tonic::transport::Channel;

use super::super::chat_templates::ChatTemplates;

/// All files of a model together. Tokenizers of 128k–256k entries are 9–35 MB of JSON.
const MAX_ASSET_BYTES: usize = 256 << 20;
/// A SHA-256 in hex.
const HASH_CHARS: usize = 64;
/// For the whole transfer.
const FETCH_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a worker's model cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AssetError {
    #[error("cannot fetch the model's files: {0}")]
    Fetch(tonic::Status),
    #[error("the model's files were not received within {FETCH_TIMEOUT:?}")]
    Slow,
    #[error("the model's files are larger than {MAX_ASSET_BYTES} bytes")]
    TooLarge,
    #[error("the worker's description has no model name")]
    Nameless,
    #[error("a model name in the worker's description is longer than {MAX_NAME_BYTES} bytes")]
    LongName,
    #[error("a model name in the worker's description has control characters")]
    UnprintableName,
    #[error(
        "the worker's model files do not match their content hash: it claims `{claimed}`, and they are \
         `{actual}`"
    )]
    Hash { claimed: String, actual: String },
    #[error("the worker's content hash is not a SHA-256 in hex")]
    NoHash,
    #[error("cannot load the model's files")]
    Load(#[source] inflight_text::TextError),
    #[error("loading the model's files was interrupted")]
    Interrupted,
}

/// The content hash of a model's files, and the chat template that replaces the model's.
type Key = (String, Option<TemplateSource>);

/// Text models in use. Holds no model alive by itself.
#[derive(Debug)]
pub struct AssetCache {
    models: Mutex<BTreeMap<Key, Weak<TextModel>>>,
    templates: ChatTemplates,
}

impl AssetCache {
    /// An empty one.
    pub fn new(templates: ChatTemplates) -> Self {
        Self {
            models: Mutex::default(),
            templates,
        }
    }

    /// The described model, its files fetched unless a model with the same content hash is in use.
    ///
    /// # Errors
    /// [`AssetError`]: the worker cannot be used for now.
    pub async fn served_model(
        &self,
        client: &mut ModelAssetsClient<Channel>,
        description: ModelDescription,
    ) -> Result<Arc<ServedModel>, AssetError> {
        for name in [&description.served_model_name, &description.core_model_name] {
            check_name(name)?;
        }
        let hash = description.content_hash.clone();
        if hash.len() != HASH_CHARS || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(AssetError::NoHash);
        }
        let given = self.templates.given(&description.served_model_name);
        let key = (hash.clone(), given.cloned());
        let cached = self.models.lock().get(&key).and_then(Weak::upgrade);
        let text = match cached {
            Some(text) => text,
            None => {
                let files = tokio::time::timeout(FETCH_TIMEOUT, fetch(client, &hash))
                    .await
                    .map_err(|_| AssetError::Slow)??;
                // Building a large tokenizer takes seconds of CPU: not on the runtime's threads.
                let given = key.1.clone();
                let loaded = blocking::run(move || load(hash, &files, given.as_ref()));
                let loaded = loaded.await.map_err(|_| AssetError::Interrupted)??;
                if let (Some(template), None) = (loaded.built_in_template(), &key.1) {
                    tracing::warn!(
                        model = %description.served_model_name, %template,
                        "the model has no chat template; chats use a built-in one, unless `--chat-template` \
                         names another"
                    );
                }
                let text = Arc::new(loaded);
                let mut models = self.models.lock();
                models.retain(|_, model| model.strong_count() > 0);
                models.insert(key, Arc::downgrade(&text));
                text
            }
        };
        Ok(Arc::new(ServedModel {
            description,
            text: Some(text),
            template: None,
            protocol: Protocol::StepBatching,
        }))
    }
}

fn check_name(name: &str) -> Result<(), AssetError> {
    if name.is_empty() {
        return Err(AssetError::Nameless);
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(AssetError::LongName);
    }
    // They are logged as they are.
    if name.chars().any(char::is_control) {
        return Err(AssetError::UnprintableName);
    }
    Ok(())
}

/// The files as a text model, if they are what the worker claims. Other workers' answers are decoded with
/// whatever is in the cache under their hash, so that no worker may put something else there.
fn load(
    claimed: String,
    files: &ModelFiles,
    given: Option<&TemplateSource>,
) -> Result<TextModel, AssetError> {
    let bytes = files.iter().map(|(name, data)| (name.as_str(), &data[..]));
    let actual = content_hash(bytes);
    if actual != claimed {
        return Err(AssetError::Hash { claimed, actual });
    }
    TextModel::load_for_chat(files, given).map_err(AssetError::Load)
}

async fn fetch(
    client: &mut ModelAssetsClient<Channel>,
    content_hash: &str,
) -> Result<ModelFiles, AssetError> {
    let request = FetchRequest {
        content_hash: content_hash.to_owned(),
    };
    let mut stream = client
        .fetch(request)
        .await
        .map_err(AssetError::Fetch)?
        .into_inner();
    let mut files: ModelFiles = BTreeMap::new();
    let mut total = 0usize;
    while let Some(chunk) = stream.message().await.map_err(AssetError::Fetch)? {
        total += chunk.data.len() + chunk.file_name.len();
        if total > MAX_ASSET_BYTES {
            return Err(AssetError::TooLarge);
        }
        files
            .entry(chunk.file_name)
            .or_default()
            .extend_from_slice(&chunk.data);
    }
    Ok(files)
}
