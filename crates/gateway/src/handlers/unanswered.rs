//! A request that a worker has and of which the client has seen nothing: no byte of a status or a body. Owns
//! that it goes to another worker when its own cannot answer, and how long its first token may take. How many
//! workers it may reach is `dispatch`'s, and which failures another worker may not have `stream`'s.
//!
//! The whole request is sent again, with the same seeds, so that the answer is the one that the first worker
//! would have given. A stream is final with its first output; an answer in one piece can begin anew until it
//! is complete.

use std::sync::Arc;
use std::time::Duration;

use inflight_openai::ApiError;
use tokio::time::Instant;

use super::generate::{self, Prepared};
use crate::metrics::{RetryLabels, RetryReason};
use crate::middleware::RequestContext;
use crate::state::AppState;
use crate::stream::active_request::ActiveRequest;
use crate::upstream::dispatch::Route;

/// See the module.
#[derive(Debug)]
pub(super) struct Unanswered<'a> {
    state: &'a AppState,
    prepared: &'a Prepared,
    context: RequestContext,
    route: Route,
    active: ActiveRequest,
    /// How long the first token may take, counted from the request's arrival.
    first_token: Option<Duration>,
}

/// What a wait for output ended with.
enum Waited {
    Output(Result<(), ApiError>),
    Silence,
    Timeout(Duration),
}

impl<'a> Unanswered<'a> {
    /// A request that was sent to the last worker of `route`.
    pub(super) fn new(
        state: &'a AppState,
        prepared: &'a Prepared,
        context: RequestContext,
        route: Route,
        active: ActiveRequest,
    ) -> Self {
        // Where an answer comes in one piece, its first token is not seen.
        let in_parts = prepared
            .prompts
            .iter()
            .all(|prompt| prompt.params.streaming)
            && prepared
                .model
                .served
                .triton()
                .is_none_or(|model| model.decoupled);
        Self {
            state,
            prepared,
            context,
            route,
            active,
            first_token: state.first_token_timeout.filter(|_| in_parts),
        }
    }

    /// Waits until the answer can be sent: for a stream's first output, else for all of it.
    ///
    /// # Errors
    /// The request failed, and no other worker can take it; 504 when its first token took too long.
    pub(super) async fn wait(mut self) -> Result<ActiveRequest, ApiError> {
        let mut heeds_silence = true;
        loop {
            match self.output(heeds_silence).await {
                Waited::Output(Ok(())) => {
                    if self.prepared.generation.stream || self.active.is_done() {
                        return Ok(self.active);
                    }
                }
                Waited::Output(Err(error)) => {
                    let reason = self.active.retry_reason().ok_or_else(|| error.clone())?;
                    if !self.send_elsewhere(reason) {
                        return Err(error);
                    }
                    heeds_silence = true;
                }
                // Without another worker, this one may yet go on.
                Waited::Silence => heeds_silence = self.send_elsewhere(RetryReason::Silent),
                Waited::Timeout(limit) => {
                    self.active.give_up();
                    return Err(ApiError::timeout(format!(
                        "The model generated nothing within {} s. Retry later.",
                        limit.as_secs()
                    )));
                }
            }
        }
    }

    async fn output(&mut self, heeds_silence: bool) -> Waited {
        let connection = Arc::clone(self.active.connection());
        let has_started = self.active.has_started();
        let limit = self.first_token.filter(|_| !has_started);
        let until = limit.map(|limit| Instant::from_std(self.context.started) + limit);
        let output = async {
            match has_started {
                true => self.active.wait_for_end().await,
                false => self.active.wait_for_start().await,
            }
        };
        tokio::select! {
            biased;
            result = output => Waited::Output(result),
            () = connection.pulse.silence(), if heeds_silence => Waited::Silence,
            limit = reached(until, limit) => Waited::Timeout(limit),
        }
    }

    /// Sends the request to a worker that has not had it; false if there is none.
    fn send_elsewhere(&mut self, reason: RetryReason) -> bool {
        let Self {
            state, prepared, ..
        } = *self;
        // Looked up again: another worker may have come since.
        let entry = state.table.find(&prepared.model.entry.name);
        let entry = entry.as_ref().unwrap_or(&prepared.model.entry);
        self.context.trace.leaving(reason.label());
        let Ok(dispatched) = generate::send(prepared, entry, &mut self.route, &self.context) else {
            return false;
        };
        tracing::info!(
            request_id = %self.context.id,
            from = %self.active.connection().address,
            to = dispatched.handles.worker(),
            reason = reason.label(),
            "request sent to another worker"
        );
        let labels = RetryLabels::from(reason);
        state.metrics.retries.get_or_create(&labels).inc();
        self.active.restart(dispatched, generate::choices(prepared));
        true
    }
}

/// Resolves to the limit when its time has come; never without one.
async fn reached(until: Option<Instant>, limit: Option<Duration>) -> Duration {
    match until.zip(limit) {
        Some((until, limit)) => {
            tokio::time::sleep_until(until).await;
            limit
        }
        None => std::future::pending().await,
    }
}
