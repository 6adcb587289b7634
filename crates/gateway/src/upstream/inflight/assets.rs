//! What a worker says about its model, and the model's text files. Owns fetching, checking and caching
//! them by content hash; knows nothing of connections or requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use inflight_kserve::assets::model_assets_client::ModelAssetsClient;
use inflight_kserve::assets::{FetchRequest, ModelDescription};
use inflight_kserve::content_hash;
use inflight_text::{ModelFiles, TextModel};
use parking_lot::Mutex;
use tonic::transport::Channel;

use crate::model::served::{MAX_NAME_BYTES, Protocol, ServedModel};

/// All files of a model together. Tokenizers of 128k–256k entries are 9–35 MB of JSON.
const MAX_ASSET_BYTES: usize = 256 << 20;
/// A SHA-256 in hex.
const HASH_CHARS: usize = 64;
/// For the whole transfer.
const FETCH_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a worker's model cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AssetError {
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

/// Text models in use, by content hash. Holds no model alive by itself.
#[derive(Debug, Default)]
pub(crate) struct AssetCache {
    models: Mutex<BTreeMap<String, Weak<TextModel>>>,
}

impl AssetCache {
    /// The described model, its files fetched unless a model with the same content hash is in use.
    ///
    /// # Errors
    /// [`AssetError`]: the worker cannot be used for now.
    pub(crate) async fn served_model(
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
        let cached = self.models.lock().get(&hash).and_then(Weak::upgrade);
        let text = match cached {
            Some(text) => text,
            None => {
                let files = tokio::time::timeout(FETCH_TIMEOUT, fetch(client, &hash))
                    .await
                    .map_err(|_| AssetError::Slow)??;
                // Building a large tokenizer takes seconds of CPU: not on the runtime's threads.
                let claimed = hash.clone();
                let loaded = tokio::task::spawn_blocking(move || load(claimed, &files))
                    .await
                    .map_err(|_| AssetError::Interrupted)??;
                let text = Arc::new(loaded);
                let mut models = self.models.lock();
                models.retain(|_, model| model.strong_count() > 0);
                models.insert(hash, Arc::downgrade(&text));
                text
            }
        };
        Ok(Arc::new(ServedModel {
            description,
            text: Some(text),
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
fn load(claimed: String, files: &ModelFiles) -> Result<TextModel, AssetError> {
    let bytes = files.iter().map(|(name, data)| (name.as_str(), &data[..]));
    let actual = content_hash(bytes);
    if actual != claimed {
        return Err(AssetError::Hash { claimed, actual });
    }
    TextModel::load(files).map_err(AssetError::Load)
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
