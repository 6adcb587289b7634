//! What is still done for a request that is prepared, before it is sent: one step each. Their order is
//! [`Received::prepare_with`](super::generate::Received::prepare_with)'s; what they change is [`Prepared`]'s.

use inflight_openai::ApiError;
use inflight_streams::answer::CallDemand;
use inflight_upstream::survival::Way;

use super::arrival::Arrival;
use super::prepared::Prepared;
use crate::state::AppState;

/// Holds a place for each of its sequences.
pub(super) fn take_places(
    state: &AppState,
    arrival: &mut Arrival,
    prepared: &Prepared,
) -> Result<(), ApiError> {
    let sequences = prepared.prompts.len() * prepared.generation.n as usize;
    arrival.admitted.widen(&state.admission, sequences)
}

/// Marks it as its key's, and as one that nobody waits for.
pub(super) fn mark(arrival: &Arrival, prepared: &mut Prepared) {
    let client = arrival.client.as_ref();
    if let Some(salt) = client.and_then(|client| client.cache_salt()) {
        prepared.salt_cache(&salt);
    }
    if arrival.context.is_idle {
        prepared.let_others_first();
    }
}

/// Fetches its images.
pub(super) async fn fetch_images(
    state: &AppState,
    arrival: &Arrival,
    prepared: &mut Prepared,
) -> Result<(), ApiError> {
    let wanted = std::mem::take(&mut prepared.images.wanted);
    if !wanted.is_empty() {
        let client = arrival.client.as_ref();
        let files = state.images.collect(&state.admission, client, wanted);
        prepared.add_images(files.await?);
    }
    Ok(())
}

/// Compiles what its answer is checked with.
pub(super) async fn compile_checks(state: &AppState, prepared: &Prepared) -> Result<(), ApiError> {
    for grammar in prepared.demand().into_iter().flat_map(CallDemand::grammars) {
        state.guides.compile(grammar).await?;
    }
    Ok(())
}

/// Refuses a guide that no executor could follow, or leaves the answer to the model where it is checked anyway. The
/// prompt still ends with the beginning of a guided call, which has no name yet: that is the model's to write, too.
pub(super) async fn check_guide(state: &AppState, prepared: &mut Prepared) -> Result<(), ApiError> {
    let extensions = prepared.generation.extensions.as_ref();
    let Some(guide) = extensions.and_then(|extensions| extensions.guide.as_ref()) else {
        return Ok(());
    };
    let may_drop = prepared.demand().is_some_and(|calls| calls.may_drop_guide);
    match state.guides.check(guide).await {
        Err(error) if error.status() == 400 && may_drop => {
            prepared.drop_guide();
            Ok(())
        }
        verdict => verdict,
    }
}

/// With its tokens, an answer whose worker is lost continues, and does not begin anew.
pub(super) fn ask_for_tokens_early(state: &AppState, prepared: &mut Prepared) {
    let is_timed = state.first_token_timeout.is_some();
    let resumes = state.resume_limits.most > 0 && prepared.way() == Some(Way::Resume);
    if prepared.model.served.triton().is_none() && (is_timed || resumes) {
        prepared.ask_for_tokens_early();
    }
}
