//! `inflight.v1.ModelAssets`: describes the models and sends the files that a gateway needs of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use inflight_base::content_hash;
use inflight_base::wall_clock::unix_seconds;
use inflight_kserve::assets::model_assets_server::ModelAssets;
use inflight_kserve::assets::{
    AdapterList, AssetChunk, DescribeRequest, FetchRequest, ModelDescription, Phases,
    WatchAdaptersRequest,
};
use tonic::{Request, Response, Status};

use crate::adapters::{self, AdapterUpdates, Adapters};
use crate::executor::capability;
use crate::hosted::Hosted;

/// Far below any message limit, so that clients with default limits can read a large tokenizer.
const CHUNK_BYTES: usize = 256 * 1024;

/// Every model's files and description, of which only the first model's adapters change while the worker runs.
pub(crate) struct Assets {
    /// The first model's, which has the others in it.
    description: ModelDescription,
    /// By their hash, which models may share.
    files: BTreeMap<String, BTreeMap<String, Bytes>>,
    /// The first model's.
    adapters: Arc<Adapters>,
}

impl Assets {
    pub(crate) fn new(models: &[Hosted], adapters: Arc<Adapters>, phases: Phases) -> Self {
        let mut described = models.iter().map(|model| describe(model, phases));
        let mut description = described.next().unwrap_or_default();
        description.further_models = described.collect();
        let files = models
            .iter()
            .map(|model| (hash(&model.assets), model.assets.clone()));
        Self {
            files: files.collect(),
            description,
            adapters,
        }
    }
}

fn hash(files: &BTreeMap<String, Bytes>) -> String {
    content_hash(files.iter().map(|(name, data)| (name.as_str(), &data[..])))
}

fn describe(model: &Hosted, phases: Phases) -> ModelDescription {
    let info = &model.info;
    let own = std::iter::once(capability::CACHE_STATE.to_owned());
    ModelDescription {
        served_model_name: model.served_name.clone(),
        core_model_name: model.names.core().to_string(),
        content_hash: hash(&model.assets),
        created_unix_seconds: unix_seconds(),
        executor: info.executor.clone(),
        max_seq_len: info.max_seq_len,
        max_input_len: info.max_input_len,
        max_beam_width: info.max_beam_width,
        vocab_size: info.vocab_size,
        capabilities: info.capabilities.iter().cloned().chain(own).collect(),
        adapters: adapters::announced(&info.adapters),
        further_models: Vec::new(),
        weights: info.weights.clone(),
        phases: phases.into(),
    }
}

#[tonic::async_trait]
impl ModelAssets for Assets {
    async fn describe(
        &self,
        _request: Request<DescribeRequest>,
    ) -> Result<Response<ModelDescription>, Status> {
        Ok(Response::new(ModelDescription {
            adapters: self.adapters.announced(),
            ..self.description.clone()
        }))
    }

    type FetchStream = futures_util::stream::Iter<std::vec::IntoIter<Result<AssetChunk, Status>>>;

    async fn fetch(
        &self,
        request: Request<FetchRequest>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let asked = request.into_inner().content_hash;
        let Some(files) = self.files.get(&asked) else {
            let own: Vec<&str> = self.files.keys().map(String::as_str).collect();
            return Err(Status::failed_precondition(format!(
                "content hash `{asked}` is not this worker's `{}`; call Describe again",
                own.join("` or `")
            )));
        };
        // Chunks are slices of the files: the whole list is small.
        let chunks: Vec<Result<AssetChunk, Status>> =
            files.iter().flat_map(chunks).map(Ok).collect();
        Ok(Response::new(futures_util::stream::iter(chunks)))
    }

    type WatchAdaptersStream =
        futures_util::stream::BoxStream<'static, Result<AdapterList, Status>>;

    async fn watch_adapters(
        &self,
        _request: Request<WatchAdaptersRequest>,
    ) -> Result<Response<Self::WatchAdaptersStream>, Status> {
        let updates = futures_util::stream::unfold(self.adapters.updates(), next);
        Ok(Response::new(Box::pin(updates)))
    }
}

async fn next(
    mut updates: AdapterUpdates,
) -> Option<(Result<AdapterList, Status>, AdapterUpdates)> {
    let adapters = updates.next().await?;
    Some((Ok(AdapterList { adapters }), updates))
}

/// A file's chunks, in order; an empty file is one empty chunk.
fn chunks((name, content): (&String, &Bytes)) -> impl Iterator<Item = AssetChunk> {
    let count = content.len().div_ceil(CHUNK_BYTES).max(1);
    (0..count).map(move |place| {
        let start = place * CHUNK_BYTES;
        let end = (start + CHUNK_BYTES).min(content.len());
        AssetChunk {
            file_name: name.clone(),
            data: content.slice(start..end),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_in_chunks_of_bounded_size() {
        let content = Bytes::from(vec![7; CHUNK_BYTES * 2 + 1]);
        let sizes: Vec<usize> = chunks((&"f".to_owned(), &content))
            .map(|chunk| chunk.data.len())
            .collect();
        assert_eq!(sizes, [CHUNK_BYTES, CHUNK_BYTES, 1]);
        assert_eq!(chunks((&"f".to_owned(), &Bytes::new())).count(), 1);
    }
}
