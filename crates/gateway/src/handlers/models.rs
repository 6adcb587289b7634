//! The models that the workers serve.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use inflight_openai::{ApiError, ModelCard, ModelList};

use crate::error;
use crate::model::adapter::full_name;
use crate::state::AppState;
use crate::upstream::table::ModelEntry;

/// Every model that some worker serves or last served.
pub(crate) async fn list_models(State(state): State<Arc<AppState>>) -> Response {
    let models = state.table.models();
    let cards = models.values().flat_map(|entry| cards(entry)).collect();
    Json(ModelList::new(cards)).into_response()
}

/// One model by its name, which may have slashes.
pub(crate) async fn retrieve_model(
    State(state): State<Arc<AppState>>,
    model: Result<Path<String>, PathRejection>,
) -> Response {
    let Ok(Path(model)) = model else {
        return error::response(&ApiError::invalid_request(
            "model",
            "The model name in the path must be percent-encoded UTF-8.",
        ));
    };
    let models = state.table.models();
    let mut all = models.values().flat_map(|entry| cards(entry));
    match all.find(|card| card.id == model) {
        Some(card) => Json(card).into_response(),
        None => {
            let known = names(models.values());
            error::response(&ApiError::model_not_found(&model, &known))
        }
    }
}

/// What clients may name: the models and their adapters.
pub(super) fn names<'a>(models: impl Iterator<Item = &'a Arc<ModelEntry>>) -> Vec<String> {
    models
        .flat_map(|entry| cards(entry))
        .map(|card| card.id)
        .collect()
}

/// The model's card, then those of its adapters.
fn cards(entry: &ModelEntry) -> Vec<ModelCard> {
    let created = u64::try_from(entry.created).unwrap_or(0);
    let card = ModelCard::new(entry.name.clone(), created, entry.max_seq_len);
    let names = entry.adapters.iter();
    let adapters: Vec<ModelCard> = names
        .map(|name| card.adapter(full_name(&entry.name, name)))
        .collect();
    std::iter::once(card).chain(adapters).collect()
}
