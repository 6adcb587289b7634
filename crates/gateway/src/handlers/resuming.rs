//! A prepared request that continues at another worker. Owns what is sent again; when that happens is
//! `upstream`'s, and what was generated [`Resumption`]'s.

use std::sync::Arc;

use inflight_openai::ApiError;
use inflight_upstream::connection::Connection;
use inflight_upstream::delivery::Tried;
use inflight_upstream::dispatch::{Dispatched, NotDispatched};
use inflight_upstream::phases::Phases;
use inflight_upstream::survival::{Survival, Way};
use tokio::time::Instant;

use super::dispatching::{Progress, dispatch_prompts};
use super::prepared::Prepared;
use crate::middleware::RequestContext;
use crate::state::AppState;
use crate::stream::resumption::{Origin, Resumption};

/// How the request continues at another worker, and when; `None`: it cannot.
pub(super) fn resumption(
    state: &Arc<AppState>,
    prepared: &Arc<Prepared>,
    context: &RequestContext,
) -> Option<(Resumption, Survival<ApiError>)> {
    let may_move = state.resume_limits.most > 0 || prepared.may_split();
    if !may_move || prepared.has_beams() {
        return None;
    }
    let way = prepared.way()?;
    let choices = prepared.prompts.len() * prepared.generation.n as usize;
    let origin = Prompts {
        way,
        state: Arc::clone(state),
        prepared: Arc::clone(prepared),
        context: context.clone(),
    };
    let metrics = state.metrics.upstream.resumes.clone();
    Some((
        Resumption::new(Box::new(origin), choices),
        Survival::new(way, state.resume_limits, metrics),
    ))
}

/// See the module.
#[derive(Debug)]
struct Prompts {
    way: Way,
    state: Arc<AppState>,
    prepared: Arc<Prepared>,
    context: RequestContext,
}

impl Origin for Prompts {
    fn resume(
        &self,
        without: Option<&Connection>,
        generated: &[Option<&[i32]>],
        phases: Phases<'_>,
    ) -> Result<Dispatched, NotDispatched> {
        let progress = Progress {
            way: self.way,
            without,
            generated,
            phases,
        };
        dispatch_prompts(
            &self.state,
            &self.prepared,
            &self.context,
            &mut Tried::default(),
            Some(progress),
        )
    }

    fn is_over(&self) -> bool {
        self.state.ending.has_begun()
    }

    fn prompt_tokens(&self) -> usize {
        let prompts = self.prepared.prompts.iter();
        prompts.map(|prompt| prompt.tokens.len()).sum()
    }

    fn deadline(&self) -> Option<Instant> {
        self.context.deadline
    }
}
