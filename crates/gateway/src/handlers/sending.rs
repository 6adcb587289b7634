//! A prepared request as `upstream` delivers it. Owns what is sent to the worker, the choices that its output goes
//! to, and the error when it fails before its answer begins. `upstream` decides when it goes to another worker.

use std::sync::Arc;

use inflight_clients::admission::Admitted;
use inflight_clients::client::Owner;
use inflight_openai::ApiError;
use inflight_streams::active_request::ActiveRequest;
use inflight_streams::choice::Choice;
use inflight_streams::error::{given_up, no_worker};
use inflight_streams::logprobs::LogProbs;
use inflight_streams::record::RequestRecord;
use inflight_text::StopMatcher;
use inflight_upstream::delivery::{CallContext, Deliverable, Sent, Tried, deliver};
use inflight_upstream::dispatch::NotDispatched;
use inflight_upstream::expiry::{DEADLINE_GRACE, Expiry, GivenUp};
use inflight_upstream::metrics::RetryReason;

use super::arrival::Arrival;
use super::dispatching::dispatch_prompts;
use super::prepared::Prepared;
use super::resuming::prompts_mover;
use crate::middleware::RequestContext;
use crate::state::AppState;

/// Sends a prepared request to a worker, and waits until the answer can be sent: for the first output of a stream, or
/// for the whole answer otherwise.
///
/// # Errors
/// 503 when no worker takes it; the request failed, and no other worker can take it; 504 when its first token took
/// too long.
pub(super) async fn send(
    state: &Arc<AppState>,
    prepared: &Arc<Prepared>,
    arrival: Arrival,
) -> Result<ActiveRequest, ApiError> {
    let owner = arrival.owner();
    let Arrival {
        context, admitted, ..
    } = arrival;
    let first_output = match prepared.is_in_parts() {
        true => state.first_output(context.started),
        false => None,
    };
    let call = CallContext {
        first_output,
        ..context.call()
    };
    // Later than its worker ends it, which is given the deadline.
    let deadline = context.deadline.map(|deadline| deadline + DEADLINE_GRACE);
    let mut expiry = Expiry::new(&state.ending, deadline);
    let mut sending = Sending {
        state,
        prepared,
        context: &context,
        owner,
        admitted: Some(admitted),
        active: None,
    };
    let retries = &state.metrics.upstream.retries;
    deliver(&mut sending, &call, &mut expiry, retries).await?;
    let active = sending.active.map(|active| active.expires(expiry));
    active.ok_or_else(ApiError::internal)
}

/// See the module.
struct Sending<'a> {
    state: &'a Arc<AppState>,
    prepared: &'a Arc<Prepared>,
    context: &'a RequestContext,
    owner: Owner,
    /// Until the first worker has it.
    admitted: Option<Admitted>,
    active: Option<ActiveRequest>,
}

impl Deliverable for Sending<'_> {
    type Error = ApiError;

    fn send(&mut self, tried: &mut Tried, because: Option<RetryReason>) -> Result<Sent, ApiError> {
        let Self {
            state,
            prepared,
            context,
            ..
        } = self;
        let dispatched = dispatch_prompts(state, prepared, context, tried, because, None);
        let dispatched = dispatched.map_err(|error| match error {
            NotDispatched::NoWorker => no_worker(),
            NotDispatched::Full => {
                ApiError::unavailable("The model's worker is not keeping up. Retry later.")
            }
        })?;
        let connection = dispatched.handles.connection();
        let sent = Sent {
            address: Arc::clone(&connection.address),
            pulse: Arc::clone(&connection.pulse),
        };
        let choices = choices(self.prepared);
        match (&mut self.active, self.admitted.take()) {
            (Some(active), _) => {
                active.restart(
                    dispatched,
                    choices,
                    because.unwrap_or(RetryReason::Unavailable),
                );
            }
            (none, Some(admitted)) => {
                let record = record(self.state, self.prepared, self.context, admitted);
                let record = match &self.state.requests {
                    Some(requests) => record.listed(requests, self.context.route, &self.owner),
                    None => record,
                };
                let prompts_mover = prompts_mover(self.state, self.prepared, self.context);
                let active = ActiveRequest::new(dispatched, choices, record, prompts_mover);
                *none = Some(active);
            }
            (None, None) => return Err(ApiError::internal()),
        }
        Ok(sent)
    }

    async fn begin(&mut self) -> Result<(), ApiError> {
        match &mut self.active {
            Some(active) if !active.has_started() => active.wait_for_start().await,
            _ => Ok(()),
        }
    }

    async fn complete(&mut self) -> Result<(), ApiError> {
        match &mut self.active {
            Some(active) if !self.prepared.generation.stream => active.wait_for_end().await,
            _ => Ok(()),
        }
    }

    fn survives(&self) -> bool {
        self.active.as_ref().is_some_and(ActiveRequest::survives)
    }

    fn outlive(&mut self, error: ApiError, sent: usize) -> Result<(), ApiError> {
        match &mut self.active {
            Some(active) => active.outlive(error, sent),
            None => Err(error),
        }
    }

    fn retry_reason(&self, _: &ApiError) -> Option<RetryReason> {
        let active = self.active.as_ref();
        // What survives has tried other workers itself.
        let active = active.filter(|active| !active.survives());
        active.and_then(ActiveRequest::failed_because)
    }

    fn give_up(&mut self, why: GivenUp) -> ApiError {
        let error = given_up(why);
        if let Some(active) = &mut self.active {
            active.give_up(error.status());
        }
        error
    }
}

fn record(
    state: &AppState,
    prepared: &Prepared,
    context: &RequestContext,
    admitted: Admitted,
) -> RequestRecord {
    let counts = prepared.prompts.iter().map(|prompt| prompt.count);
    RequestRecord::new(
        Arc::clone(&state.metrics.streams),
        &prepared.model.entry.name,
        Arc::clone(&context.id),
        context.started,
        counts.sum(),
        admitted,
        context.trace.clone(),
    )
}

/// The choices of an answer of which there is nothing yet.
fn choices(prepared: &Prepared) -> Vec<Choice> {
    let tokenizer = prepared
        .model
        .served
        .text
        .as_ref()
        .map(|text| text.tokenizer());
    let decodes = tokenizer.filter(|_| !prepared.model.served.takes_text());
    let extensions = prepared.generation.extensions.as_deref();
    let shows_stops = extensions.is_some_and(|asked| asked.include_stop_str_in_output);
    let as_ids = extensions.is_some_and(|asked| asked.return_tokens_as_token_ids);
    let names_tokens = extensions.is_some_and(|asked| !asked.logprob_token_ids.is_empty());
    let lists = extensions.is_some_and(|asked| asked.return_token_ids);
    let counts = prepared.generation.continuous_usage;
    let stops = StopMatcher::new(&prepared.generation.stop);
    let stops = if shows_stops { stops.shown() } else { stops };
    let skip_special = prepared.generation.skip_special_tokens.unwrap_or(true);
    let n = prepared.generation.n;
    let mut choices = Vec::with_capacity(prepared.prompts.len() * n as usize);
    for prompt in &prepared.prompts {
        let end_ids = prompt.params.end_ids();
        for _ in 0..n {
            let log_probs = prepared.log_probs.zip(decodes).map(|(top, tokenizer)| {
                let mut log_probs = LogProbs::new(Arc::clone(tokenizer), top as usize);
                if as_ids {
                    log_probs = log_probs.with_ids_for_names();
                }
                if names_tokens {
                    log_probs = log_probs.with_own_first();
                }
                log_probs
            });
            let choice = Choice::new(
                decodes,
                skip_special,
                stops.clone(),
                Arc::clone(&end_ids),
                prompt.params.end_id,
                log_probs,
                prompt.echo.clone(),
            );
            let choice = if shows_stops {
                choice.with_stops()
            } else {
                choice
            };
            let choice = match lists || counts {
                true => choice.with_tokens(lists),
                false => choice,
            };
            let choice = match &prepared.answer {
                Some(options) => choice.with_answer(options, prepared.is_guided()),
                None => choice,
            };
            choices.push(match prepared.generation.max_tokens {
                Some(0) => choice.with_only_prompt(),
                _ => choice,
            });
        }
    }
    choices
}
