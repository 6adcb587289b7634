//! Which model a request means: one of the table's, or a LoRA adapter of one (`model:adapter`).

use std::borrow::Cow;
use std::sync::Arc;

use inflight_models::adapter::{Adapter, readings};
use inflight_models::capability::{Capability, has};
use inflight_models::served::ServedModel;
use inflight_openai::ApiError;
use inflight_streams::error::no_worker;
use inflight_upstream::table::{ModelEntry, NoModel};
use serde::Deserialize;

use super::models;
use crate::state::AppState;

/// A model that a request can be prepared for.
#[derive(Debug)]
pub(super) struct Located {
    pub(super) entry: Arc<ModelEntry>,
    /// What its workers serve.
    pub(super) served: Arc<ServedModel>,
    pub(super) adapter: Option<Adapter>,
}

/// What a body names its model; `None`: nothing, or it is not an object.
pub(crate) fn named_model(body: &[u8]) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        model: Option<Cow<'a, str>>,
    }
    // serde takes a list for a struct as well.
    let is_object = body.trim_ascii_start().starts_with(b"{");
    let named = is_object.then(|| serde_json::from_slice::<Named<'_>>(body));
    named?.ok()?.model
}

/// Whose servers a model may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Among {
    /// Those that take requests from here.
    Workers,
    /// Those that are only watched as well: somebody else sends them the request.
    Endpoints,
}

/// Finds the model of this name.
///
/// # Errors
/// 404 when no worker serves it, 503 when one may yet, or none that does is ready.
fn locate(state: &AppState, model: &str, among: Among) -> Result<Located, ApiError> {
    let missing = match state.table.find(model) {
        Ok(entry) => {
            let served = match among {
                Among::Workers => entry.next_served(),
                Among::Endpoints => entry.next_endpoint(),
            };
            let served = served.ok_or_else(|| none_ready(&entry, among))?;
            return Ok(Located {
                entry,
                served,
                adapter: None,
            });
        }
        Err(missing) => missing,
    };
    for (base, adapter) in readings(model) {
        if let Ok(entry) = state.table.find(base) {
            return with_adapter(state, entry, adapter, model, among);
        }
    }
    Err(match missing {
        NoModel::NotYet => {
            ApiError::unavailable("Not every worker has been reached yet. Retry later.")
        }
        NoModel::Unknown => not_found(state, model),
        NoModel::Refused(reason) => ApiError::model_not_served(&reason),
    })
}

/// Finds the model of this name, or the only one where the request names none, and names it.
///
/// # Errors
/// See [`locate`]; 400 where several could be meant.
pub(super) fn locate_or_only(state: &AppState, model: &mut String) -> Result<Located, ApiError> {
    locate_among(state, model, Among::Workers)
}

/// As [`locate_or_only`], among these servers.
///
/// # Errors
/// See there.
pub(super) fn locate_among(
    state: &AppState,
    model: &mut String,
    among: Among,
) -> Result<Located, ApiError> {
    if model.is_empty() {
        let models = state.table.models();
        let mut names = models.keys();
        *model = match (names.next(), names.next()) {
            (Some(only), None) => only.to_string(),
            (None, _) => {
                return Err(ApiError::unavailable(
                    "No model is served yet. Retry later.",
                ));
            }
            _ => {
                return Err(ApiError::model_missing(&self::models::names(
                    models.values(),
                )));
            }
        };
    }
    locate(state, model, among)
}

/// As [`locate_or_only`], of a model that takes text.
///
/// # Errors
/// See [`locate`]; 400 for a model that only transcribes.
pub(super) fn locate_for_text(state: &AppState, model: &mut String) -> Result<Located, ApiError> {
    let located = locate_or_only(state, model)?;
    if has(&located.served, Capability::Transcription) {
        return Err(ApiError::transcribes_only(model));
    }
    Ok(located)
}

fn with_adapter(
    state: &AppState,
    entry: Arc<ModelEntry>,
    name: &str,
    model: &str,
    among: Among,
) -> Result<Located, ApiError> {
    let found = match among {
        Among::Workers => entry.next_with(name),
        Among::Endpoints => entry.next_endpoint_with(name),
    };
    if let Some((served, adapter)) = found {
        return Ok(Located {
            entry,
            served,
            adapter: Some(adapter),
        });
    }
    // The workers that have it may be away.
    let is_away = || match among {
        Among::Workers => entry.next_served().is_none(),
        Among::Endpoints => entry.next_endpoint().is_none(),
    };
    if entry.adapters.contains(name) || is_away() {
        return Err(none_ready(&entry, among));
    }
    Err(not_found(state, model))
}

/// No worker can take a request of this model now, or ever.
fn none_ready(entry: &ModelEntry, among: Among) -> ApiError {
    if among == Among::Workers && entry.is_only_watched() {
        return ApiError::model_only_watched(&entry.name);
    }
    no_worker()
}

fn not_found(state: &AppState, model: &str) -> ApiError {
    let known = models::names(state.table.models().values());
    ApiError::model_not_found(model, &known)
}
