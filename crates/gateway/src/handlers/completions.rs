//! Completions: prompts are texts or token ids, one or many, taken as they are.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use inflight_clients::admission::Work;
use inflight_models::served::ServedModel;
use inflight_openai::chunk::AnswerKind;
use inflight_openai::completions::{self, CompletionRequest, Prompt};
use inflight_openai::{ApiError, Parsed};
use inflight_text::Scope;
use inflight_translate::requested::Requested;
use inflight_upstream::placement::BlockKeys;
use tokio::time::Instant;

use super::answering;
use super::asking::Asking;
use super::generate;
use super::locate::locate_for_text;
use super::prepared::{Pictures, Prepared};
use super::prompt::{self, SpecialTokens};
use super::thinking;
use crate::error::HttpError;
use crate::state::AppState;

/// `POST /v1/completions`.
pub(crate) async fn create_completion(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, HttpError> {
    let received = generate::receive(&state, request).await?;
    let (prepared, arrival) = received.prepare(&state, Work::Computes, prepare).await?;
    Ok(answering::answer(&state, &prepared, arrival, AnswerKind::Completion).await?)
}

fn prepare(asking: &Asking<'_>, body: &[u8]) -> Result<Prepared, ApiError> {
    prepare_parsed(asking, completions::parse(body)?)
}

/// The tokens of a request's longest prompt, which is not sent from here.
///
/// # Errors
/// 400 where the model has no tokenizer here for a text, or that cannot take it.
pub(super) fn longest(
    served: &ServedModel,
    request: CompletionRequest,
    scope: Scope,
) -> Result<Vec<u32>, ApiError> {
    let special = SpecialTokens::of(&request.generation, SpecialTokens::Added);
    let adds = special == SpecialTokens::Added;
    let mut longest = Vec::new();
    for prompt in request.prompts {
        let tokens = match prompt {
            Prompt::Tokens(tokens) => tokens,
            Prompt::Text(text) => {
                let model = served.text.as_deref();
                let model = model.ok_or_else(|| prompt::no_tokenizer("prompt"))?;
                prompt::tokenize(served, model, "prompt", &text, adds, scope)?
            }
        };
        if tokens.len() > longest.len() {
            longest = tokens;
        }
    }
    Ok(longest)
}

/// Prepares a checked request.
///
/// # Errors
/// 404 or 503 without a model; 400 where the model cannot do what is asked.
pub(super) fn prepare_parsed(
    state: &Asking<'_>,
    parsed: Parsed<CompletionRequest>,
) -> Result<Prepared, ApiError> {
    let mut request = parsed.request;
    let model = locate_for_text(state, &mut request.generation.model)?;
    let lora = model.adapter.as_ref().map(|adapter| adapter.task_id);
    let requested = Requested::completion(&request)
        .with_lora(lora)
        .with_scope(state.scope_of(&request.generation));
    let special = SpecialTokens::of(&request.generation, SpecialTokens::Added);
    let started = Instant::now();
    let mut prompts = Vec::with_capacity(request.prompts.len());
    for prompt in std::mem::take(&mut request.prompts) {
        prompts.push(match prompt {
            Prompt::Text(text) => {
                prompt::text(&requested, &model.served, text, special, request.echo)?
            }
            Prompt::Tokens(tokens) => {
                prompt::tokens(&requested, &model.served, &tokens, request.echo)?
            }
        });
    }
    let format = state
        .formats
        .of(&model.entry.name, model.served.text.as_deref());
    if let Some(budget) = thinking::budget(&request.generation, format, &model.served)? {
        prompts.iter_mut().for_each(|prompt| budget.apply(prompt));
    }
    state
        .metrics
        .tokenize_time
        .observe(started.elapsed().as_secs_f64());
    Ok(Prepared {
        model,
        log_probs: requested.log_probs,
        answer: None,
        generation: request.generation,
        prompts,
        ignored: parsed.ignored,
        images: Pictures::default(),
        block_keys: BlockKeys::default(),
    })
}
