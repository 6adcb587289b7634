//! `/v1/embeddings`: each input becomes a vector.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use inflight_clients::admission::Work;
use inflight_openai::embeddings::{self, EmbeddingList, EmbeddingRequest};
use inflight_openai::{ApiError, IgnoredFields, Parsed};

use super::asking::Asking;
use super::pooling::{How, Input, PooledInputs};
use super::{generate, pooling};
use crate::error::HttpError;
use crate::state::AppState;

/// `POST /v1/embeddings`.
pub(crate) async fn create_embedding(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, HttpError> {
    let received = generate::receive(&state, request).await?;
    let ((request, inputs, ignored), arrival) =
        received.work(&state, Work::Computes, prepare).await?;
    generate::count_ignored(&state, &ignored);
    let pooled = inputs.pool(&state, arrival).await?;
    let list = EmbeddingList::new(
        request.model,
        pooled.vectors,
        request.encoding,
        pooled.tokens,
    );
    Ok(pooling::answer(&list, &ignored, pooled.upstream)?)
}

fn prepare(
    state: &Asking<'_>,
    body: &[u8],
) -> Result<(EmbeddingRequest, PooledInputs, IgnoredFields), ApiError> {
    let Parsed {
        mut request,
        ignored,
    } = embeddings::parse(body)?;
    let inputs = std::mem::take(&mut request.inputs);
    let alone = inputs.len() == 1;
    let inputs = inputs.into_iter().enumerate().map(|(index, input)| {
        let field = match alone {
            true => "input".to_owned(),
            false => format!("input[{index}]"),
        };
        Input {
            field,
            prompt: input,
            most: None,
        }
    });
    let how = How {
        pooling: request.pooling,
        adds: request.add_special_tokens,
        dimensions: request.dimensions,
    };
    let inputs = PooledInputs::prepare(state, &mut request.model, inputs, &how)?;
    Ok((request, inputs, ignored))
}
