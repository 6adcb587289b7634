//! A prepared request that continues at another worker. Owns what is sent again; when that happens is
//! `upstream`'s, and what was generated [`PromptsMover`]'s.

use std::sync::Arc;

use inflight_openai::ApiError;
use inflight_streams::prompts_mover::{Origin, PromptsMover};
use inflight_upstream::delivery::Tried;
use inflight_upstream::dispatch::NotDispatched;
use inflight_upstream::survival::{Movable, Survival};
use tokio::time::Instant;

use super::dispatching::dispatch_prompts;
use super::prepared::Prepared;
use crate::middleware::RequestContext;
use crate::state::AppState;

/// How the request continues at another worker, and when; `None`: it cannot.
pub(super) fn prompts_mover(
    state: &Arc<AppState>,
    prepared: &Arc<Prepared>,
    context: &RequestContext,
) -> Option<(PromptsMover, Survival<ApiError>)> {
    let may_move = state.resume_limits.most > 0 || prepared.may_split();
    if !may_move || prepared.has_beams() {
        return None;
    }
    let way = prepared.way()?;
    let choices = prepared.prompts.len() * prepared.generation.n as usize;
    let origin = Origin {
        way,
        ending: state.ending.clone(),
        send: {
            let (state, prepared) = (Arc::clone(state), Arc::clone(prepared));
            let context = context.clone();
            Box::new(move |progress| {
                // It is given up in a moment.
                if context
                    .deadline
                    .is_some_and(|deadline| deadline <= Instant::now())
                {
                    return Err(NotDispatched::NoWorker);
                }
                let because = progress.because;
                let tried = &mut Tried::default();
                dispatch_prompts(&state, &prepared, &context, tried, because, Some(progress))
            })
        },
    };
    let prompts = prepared.prompts.iter();
    let movable = Movable {
        way,
        prompt_tokens: prompts.map(|prompt| prompt.tokens.len()).sum(),
    };
    let metrics = state.metrics.upstream.resumes.clone();
    Some((
        PromptsMover::new(origin, choices),
        Survival::new(movable, state.resume_limits, metrics),
    ))
}
