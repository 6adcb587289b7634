//! `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, vLLM's: adapters at every worker of a model, while they
//! run.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use inflight_clients::admission::Work;
use inflight_models::adapter::{full_name, readings};
use inflight_openai::ApiError;
use inflight_openai::lora::{LoadAdapter, UnloadAdapter};
use inflight_upstream::adapter_control::{Change, Outcome, change};
use inflight_upstream::table::ModelEntry;
use tonic::Code;

use super::asking::Asking;
use super::{generate, models};
use crate::error::HttpError;
use crate::state::AppState;

/// `POST /v1/load_lora_adapter`.
pub(crate) async fn load_adapter(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, HttpError> {
    require_allowed(&state)?;
    let received = generate::receive(&state, request).await?;
    let parse = |_: &Asking<'_>, body: &[u8]| LoadAdapter::parse(body);
    let (asked, _arrival) = received.work(&state, Work::Computes, parse).await?;
    let (base, name) = find(&state, &asked.name)?;
    let wanted = Change::Load {
        path: &asked.path,
        in_place: asked.in_place,
    };
    let outcomes = change(&state.table, &base.name, &name, wanted).await;
    if outcomes.is_empty() {
        return Err(HttpError::from(nobody_asked(&base, &name)));
    }
    check(outcomes, "loaded", &full_name(&base.name, &name))?;
    // vLLM's words.
    let text = format!("Success: LoRA adapter '{}' added successfully.", asked.name);
    Ok(text.into_response())
}

/// `POST /v1/unload_lora_adapter`.
pub(crate) async fn unload_adapter(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, HttpError> {
    require_allowed(&state)?;
    let received = generate::receive(&state, request).await?;
    let parse = |_: &Asking<'_>, body: &[u8]| UnloadAdapter::parse(body);
    let (asked, _arrival) = received.work(&state, Work::Computes, parse).await?;
    let (base, name) = find(&state, &asked.name)?;
    if !base.adapters.contains(&name) {
        let known = models::names(std::iter::once(&base));
        return Err(HttpError::from(ApiError::model_not_found(
            &full_name(&base.name, &name),
            &known,
        )));
    }
    let outcomes = change(&state.table, &base.name, &name, Change::Unload).await;
    check(outcomes, "unloaded", &full_name(&base.name, &name))?;
    let text = format!(
        "Success: LoRA adapter '{}' removed successfully.",
        asked.name
    );
    Ok(text.into_response())
}

fn require_allowed(state: &AppState) -> Result<(), ApiError> {
    if state.allows_lora_loading {
        return Ok(());
    }
    Err(ApiError::forbidden(
        "lora_loading_not_allowed",
        "This gateway does not load or unload LoRA adapters while it runs. Start it with `--allow-lora-loading`, and \
         the workers with `--adapter-dir`.",
    ))
}

/// The model and the adapter of `base:adapter`; where one model is served, its adapters may be named alone.
fn find(state: &AppState, asked: &str) -> Result<(Arc<ModelEntry>, String), ApiError> {
    for (base, adapter) in readings(asked) {
        if let Ok(entry) = state.table.find(base) {
            return Ok((entry, adapter.to_owned()));
        }
    }
    let models = state.table.models();
    let mut entries = models.values();
    match (entries.next(), entries.next()) {
        (Some(only), None) => Ok((Arc::clone(only), asked.to_owned())),
        (None, _) => Err(ApiError::unavailable("No worker is ready. Retry later.")),
        _ => Err(ApiError::invalid_request(
            "lora_name",
            "Several models are served. Name the adapter as `base:adapter`, with the name of a model from `/v1/models`.",
        )),
    }
}

fn nobody_asked(base: &ModelEntry, name: &str) -> ApiError {
    if base.adapters.contains(name) {
        return ApiError::invalid_request(
            "lora_name",
            format!(
                "The adapter `{}` is loaded already. Unload it first, or send `load_inplace` as true to put these files \
                 in its place.",
                full_name(&base.name, name)
            ),
        );
    }
    ApiError::unsupported(
        "lora_name",
        format!(
            "No worker can load adapters of `{}` while it runs: only Inflight workers do, for their first model.",
            base.name
        ),
    )
}

/// # Errors
/// Some worker has failed; the text gives each one's reason.
fn check(outcomes: Vec<Outcome>, done: &str, adapter: &str) -> Result<(), ApiError> {
    let all = outcomes.len();
    let failed = outcomes
        .into_iter()
        .filter_map(|outcome| Some((outcome.address, outcome.done.err()?)));
    let failed: Vec<_> = failed.collect();
    if failed.is_empty() {
        return Ok(());
    }
    let again = failed
        .iter()
        .all(|(_, status)| would_fail_again(status.code()));
    let reasons: Vec<String> = failed
        .iter()
        .map(|(address, status)| format!("`{address}`: {}", status.message()))
        .collect();
    let text = format!(
        "The adapter `{adapter}` was {done} by {} of {all} workers. {}.",
        all - failed.len(),
        reasons.join("; ")
    );
    Err(match again {
        true => ApiError::invalid_request("lora_name", text),
        false => ApiError::unavailable(text),
    })
}

/// Whether a worker's refusal stays the same for as long as nobody changes something.
fn would_fail_again(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::NotFound
            | Code::Unimplemented
            | Code::ResourceExhausted
            | Code::FailedPrecondition
    )
}
