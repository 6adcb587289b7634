//! The models that the workers serve, in OpenAI's form, or in Anthropic's for its clients.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use inflight_anthropic::{ModelInfo, ModelPage, PageQuery};
use inflight_models::adapter::full_name;
use inflight_openai::{ApiError, ModelCard, ModelList};
use inflight_upstream::table::ModelEntry;
use jiff::Timestamp;

use crate::error::{self, HttpError};
use crate::query;
use crate::state::AppState;

/// Every model that some worker serves or last served.
pub(crate) async fn list_models(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, HttpError> {
    let models = state.table.models();
    let cards = models.values().flat_map(|entry| cards(entry));
    if !is_anthropic(&request) {
        return Ok(Json(ModelList::new(cards.collect())).into_response());
    }
    let query = PageQuery::read(&query::pairs(request.uri()))?;
    Ok(Json(ModelPage::new(cards.map(info).collect(), &query)?).into_response())
}

/// One model by its name, which may have slashes.
pub(crate) async fn retrieve_model(
    State(state): State<Arc<AppState>>,
    model: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, HttpError> {
    let Ok(Path(model)) = model else {
        return Err(HttpError::from(ApiError::invalid_request(
            "model",
            "The model name in the path must be percent-encoded UTF-8.",
        )));
    };
    let models = state.table.models();
    let mut all = models.values().flat_map(|entry| cards(entry));
    match all.find(|card| card.id == model) {
        Some(card) if is_anthropic(&request) => Ok(Json(info(card)).into_response()),
        Some(card) => Ok(Json(card).into_response()),
        None => {
            let known = names(models.values());
            Err(HttpError::from(ApiError::model_not_found(&model, &known)))
        }
    }
}

fn is_anthropic(request: &Request) -> bool {
    error::is_anthropic(request.uri().path(), request.headers())
}

/// A card in Anthropic's form.
fn info(card: ModelCard) -> ModelInfo {
    let created = i64::try_from(card.created).unwrap_or_default();
    let created = Timestamp::from_second(created).unwrap_or_default();
    ModelInfo::new(card.id, created.to_string(), card.max_model_len)
}

/// What clients may name: the models and their adapters.
pub(super) fn names<'a>(models: impl Iterator<Item = &'a Arc<ModelEntry>>) -> Vec<String> {
    models
        .flat_map(|entry| cards(entry))
        .map(|card| card.id)
        .collect()
}

/// The model's card, then those of its adapters; none of a model that cannot be asked here.
fn cards(entry: &ModelEntry) -> Vec<ModelCard> {
    if entry.is_only_watched() {
        return Vec::new();
    }
    let created = u64::try_from(entry.created).unwrap_or(0);
    let card = ModelCard::new(entry.name.clone(), created, entry.max_seq_len);
    let names = entry.adapters.iter();
    let adapters: Vec<ModelCard> = names
        .map(|name| card.adapter(full_name(&entry.name, name)))
        .collect();
    std::iter::once(card).chain(adapters).collect()
}
