//! The prompts of a prepared request on their way to one worker, from the beginning or to continue. When they go there
//! is `upstream`'s.

use inflight_streams::prompts_mover::Progress;
use inflight_upstream::delivery::Tried;
use inflight_upstream::dispatch::{Dispatched, NotDispatched, dispatch, dispatch_phases};
use inflight_upstream::metrics::RetryReason;
use inflight_upstream::phases::Phases;
use inflight_upstream::placement::Prompts;
use inflight_upstream::prompt_request::PromptRequest;
use inflight_upstream::survival::Way;
use inflight_upstream::table::Suits;
use tokio::time::Instant;

use super::prepared::Prepared;
use crate::middleware::RequestContext;
use crate::state::AppState;

/// Sends all prompts to a worker that has not been tried, from the beginning or to continue. From the beginning, it may be
/// a worker for contexts, whose answer ends with what another one continues with. `because`: of what was wrong with the
/// worker that had it.
pub(super) fn dispatch_prompts(
    state: &AppState,
    prepared: &Prepared,
    context: &RequestContext,
    tried: &mut Tried,
    because: Option<RetryReason>,
    progress: Option<Progress<'_>>,
) -> Result<Dispatched, NotDispatched> {
    // Looked up again: another worker may have come since.
    let current = match tried.is_empty() && progress.is_none() {
        true => None,
        false => state.table.find(&prepared.model.entry.name).ok(),
    };
    let entry = current.as_ref().unwrap_or(&prepared.model.entry);
    let generated = progress.map_or(&[][..], |progress| progress.generated);
    let located = &prepared.model;
    let deadline = context.deadline;
    let timeout = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let sending = context.trace.sending();
    let n = prepared.generation.n;
    let phases = progress.map_or(Phases::Both, |progress| progress.phases);
    let prompts = prepared.prompts.iter().enumerate();
    let prompts = prompts.map(|(place, prompt)| PromptRequest {
        params: &prompt.params,
        tokens: &prompt.tokens,
        text: &prompt.text,
        stop: &prepared.generation.stop,
        is_counted: prompt.count.is_some(),
        request_id: &context.id,
        trace: sending.as_ref().map(|sending| &sending.context),
        timeout,
        generated: generated.chunks(n as usize).nth(place).unwrap_or_default(),
        phases,
    });
    let prompts: Vec<PromptRequest<'_>> = prompts.collect();
    let asked = Prompts::new(&prompts, &prepared.block_keys);
    let suits = Suits {
        content_hash: &located.served.description.content_hash,
        adapter: located.adapter.as_ref(),
        phases,
        resumes: progress.is_some_and(|progress| progress.way == Way::Resume),
        weights: progress.map(|_| &*located.served.description.weights),
        watched: false,
        without: progress.and_then(|progress| progress.without),
    };
    let dispatched = match progress.is_none() && prepared.may_split() {
        true => dispatch_phases(entry, state.disaggregate, suits, tried, &asked, n)?,
        false => dispatch(entry, suits, tried, &asked, n)?,
    };
    let worker = dispatched.handles.worker();
    context
        .trace
        .sent(sending, "ModelStreamInfer", worker, because);
    Ok(dispatched)
}
