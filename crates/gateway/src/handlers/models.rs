//! The models that the workers serve.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use inflight_openai::{ApiError, ModelCard, ModelList};

use crate::error;
use crate::state::AppState;
use crate::upstream::table::ModelEntry;

/// Every model that some worker serves or last served.
pub(crate) async fn list_models(State(state): State<Arc<AppState>>) -> Response {
    let models = state.table.models();
    let cards = models.values().map(|entry| card(entry)).collect();
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
    match models.get(&model) {
        Some(entry) => Json(card(entry)).into_response(),
        None => {
            let known: Vec<&String> = models.keys().collect();
            error::response(&ApiError::model_not_found(&model, &known))
        }
    }
}

fn card(entry: &ModelEntry) -> ModelCard {
    let created = u64::try_from(entry.created).unwrap_or(0);
    ModelCard::new(entry.name.clone(), created, entry.max_seq_len)
}
