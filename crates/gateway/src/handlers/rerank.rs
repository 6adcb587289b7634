//! `/v1/rerank`: documents in the order of how well they fit a query, by the vectors of all.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use inflight_clients::admission::Work;
use inflight_openai::completions::Prompt;
use inflight_openai::rerank::{self, Ranking, RerankRequest};
use inflight_openai::{ApiError, IgnoredFields, Parsed};

use super::asking::Asking;
use super::pooling::{How, Input, PooledInputs};
use super::{generate, pooling};
use crate::error::HttpError;
use crate::state::AppState;

/// `POST /v1/rerank`.
pub(crate) async fn create_ranking(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, HttpError> {
    let received = generate::receive(&state, request).await?;
    let ((request, inputs, ignored), arrival) =
        received.work(&state, Work::Computes, prepare).await?;
    generate::count_ignored(&state, &ignored);
    let id = format!("rerank-{}", arrival.context.id);
    let pooled = inputs.pool(&state, arrival).await?;
    let (query, documents) = pooled
        .vectors
        .split_first()
        .ok_or_else(ApiError::internal)?;
    let ranking = Ranking::new(id, request, query, documents, pooled.tokens);
    Ok(pooling::answer(&ranking, &ignored, pooled.upstream)?)
}

/// The query first, then the documents.
fn prepare(
    state: &Asking<'_>,
    body: &[u8],
) -> Result<(RerankRequest, PooledInputs, IgnoredFields), ApiError> {
    let Parsed {
        mut request,
        ignored,
    } = rerank::parse(body)?;
    let query = Input {
        field: "query".to_owned(),
        prompt: Prompt::Text(std::mem::take(&mut request.query)),
        most: request.query_tokens,
    };
    let documents = request.documents.iter().enumerate();
    let documents = documents.map(|(index, text)| Input {
        field: format!("documents[{index}]"),
        prompt: Prompt::Text(text.clone()),
        most: request.document_tokens,
    });
    let inputs: Vec<_> = std::iter::once(query).chain(documents).collect();
    let how = How {
        pooling: request.pooling,
        adds: request.add_special_tokens,
        dimensions: None,
    };
    let inputs = PooledInputs::prepare(state, &mut request.model, inputs, &how)?;
    Ok((request, inputs, ignored))
}
