//! `inflight.v1.ModelAssets`: describes the model and sends the files that a gateway needs of it.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use inflight_kserve::assets::model_assets_server::ModelAssets;
use inflight_kserve::assets::{
    Adapter, AssetChunk, DescribeRequest, FetchRequest, ModelDescription,
};
use inflight_kserve::content_hash;
use tonic::{Request, Response, Status};

use crate::executor::{self, ModelInfo};

/// Far below any message limit, so that clients with default limits can read a large tokenizer.
const CHUNK_BYTES: usize = 256 * 1024;

/// The files and their description, which never change while the worker runs.
pub(crate) struct Assets {
    description: ModelDescription,
    files: BTreeMap<String, Bytes>,
}

impl Assets {
    pub(crate) fn new(
        served_model_name: String,
        core_model_name: &str,
        files: BTreeMap<String, Bytes>,
        info: &ModelInfo,
    ) -> Self {
        let created = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let description = ModelDescription {
            served_model_name,
            core_model_name: core_model_name.to_owned(),
            content_hash: content_hash(files.iter().map(|(name, data)| (name.as_str(), &data[..]))),
            created_unix_seconds: i64::try_from(created.as_secs()).unwrap_or(i64::MAX),
            executor: info.executor.clone(),
            max_seq_len: info.max_seq_len,
            max_input_len: info.max_input_len,
            max_beam_width: info.max_beam_width,
            vocab_size: info.vocab_size,
            capabilities: info.capabilities.clone(),
            adapters: info.adapters.iter().map(announced).collect(),
        };
        Self { description, files }
    }
}

fn announced(adapter: &executor::Adapter) -> Adapter {
    Adapter {
        name: adapter.name.clone(),
        lora_task_id: adapter.lora_task_id,
    }
}

#[tonic::async_trait]
impl ModelAssets for Assets {
    async fn describe(
        &self,
        _request: Request<DescribeRequest>,
    ) -> Result<Response<ModelDescription>, Status> {
        Ok(Response::new(self.description.clone()))
    }

    type FetchStream = futures_util::stream::Iter<std::vec::IntoIter<Result<AssetChunk, Status>>>;

    async fn fetch(
        &self,
        request: Request<FetchRequest>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let asked = request.into_inner().content_hash;
        if asked != self.description.content_hash {
            return Err(Status::failed_precondition(format!(
                "content hash `{asked}` is not this worker's `{}`; call Describe again",
                self.description.content_hash
            )));
        }
        // Chunks are slices of the files: the whole list is small.
        let chunks: Vec<Result<AssetChunk, Status>> =
            self.files.iter().flat_map(chunks).map(Ok).collect();
        Ok(Response::new(futures_util::stream::iter(chunks)))
    }
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
