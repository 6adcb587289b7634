//! A request under way: its inbox, its choices and the handles it holds at a worker. Owns when it is
//! done and that what nobody waits for is stopped; knows nothing of response formats.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use inflight_kserve::step::PromptLogProbs;
use inflight_openai::{ApiError, FinishReason};
use tokio::sync::OwnedSemaphorePermit;

use super::choice::Choice;
use super::inbox::{Columns, Inbox};
use crate::error;
use crate::metrics::{EndLabels, Metrics};
use crate::upstream::connection::Connection;

/// Handles that are stopped when dropped, unless their last row has come.
#[derive(Debug)]
pub struct Handles {
    connection: Arc<Connection>,
    handles: Vec<u64>,
}

impl Handles {
    /// Holds no handle yet.
    pub fn new(connection: Arc<Connection>) -> Self {
        Self {
            connection,
            handles: Vec::new(),
        }
    }

    /// Takes over an open handle.
    pub fn push(&mut self, handle: u64) {
        self.handles.push(handle);
    }

    fn cancel(&self, group: usize) {
        if let Some(&handle) = self.handles.get(group) {
            self.connection.cancel(handle);
        }
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        // A handle whose last row came is unknown to the connection by now, and no stop is sent.
        for &handle in &self.handles {
            self.connection.cancel(handle);
        }
    }
}

/// Counts a request while it lives, and how it ended.
#[derive(Debug)]
pub struct Observed {
    metrics: Arc<Metrics>,
    request_id: Arc<str>,
    started: Instant,
    end: &'static str,
    _admitted: OwnedSemaphorePermit,
}

impl Observed {
    /// A request that arrived at `started` and was admitted.
    pub fn new(
        metrics: Arc<Metrics>,
        request_id: Arc<str>,
        started: Instant,
        admitted: OwnedSemaphorePermit,
    ) -> Self {
        metrics.active_requests.inc();
        Self {
            metrics,
            request_id,
            started,
            end: "cancelled",
            _admitted: admitted,
        }
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.metrics.active_requests.dec();
        self.metrics
            .generations
            .get_or_create(&EndLabels { end: self.end })
            .inc();
    }
}

/// A request under way.
#[derive(Debug)]
pub struct Generation {
    inbox: Arc<Inbox>,
    handles: Handles,
    columns: Columns,
    pub choices: Vec<Choice>,
    /// Choices per handle.
    sequences: usize,
    unfinished: usize,
    /// Per handle, once it has come.
    prompt_log_probs: Vec<Option<PromptLogProbs>>,
    /// `None`: neither the gateway nor, so far, the server has counted them.
    pub prompt_tokens: Option<u64>,
    pub cached_tokens: u64,
    started_rows: bool,
    observed: Observed,
}

impl Generation {
    /// Waits for the rows of `handles`, each with `sequences` of the `choices`.
    pub fn new(
        inbox: Arc<Inbox>,
        handles: Handles,
        choices: Vec<Choice>,
        sequences: usize,
        prompt_tokens: Option<u64>,
        observed: Observed,
    ) -> Self {
        let groups = handles.handles.len();
        Self {
            inbox,
            handles,
            columns: Columns::default(),
            unfinished: choices.len(),
            choices,
            sequences: sequences.max(1),
            prompt_log_probs: vec![None; groups],
            prompt_tokens,
            cached_tokens: 0,
            started_rows: false,
            observed,
        }
    }

    /// Takes in every row that is there; ready once there was at least one.
    ///
    /// # Errors
    /// The request failed; nothing more comes.
    pub fn poll_rows(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ApiError>> {
        self.columns.clear();
        if self
            .inbox
            .poll_take(context, &mut self.columns)
            .is_pending()
        {
            return Poll::Pending;
        }
        if !self.started_rows {
            self.started_rows = true;
            let waited = self.observed.started.elapsed().as_secs_f64();
            self.observed.metrics.time_to_first_token.observe(waited);
        }
        let columns = std::mem::take(&mut self.columns);
        let result = self.take(&columns);
        self.columns = columns;
        if result.is_err() {
            self.observed.end = "error";
        } else if self.is_done() {
            let all_stopped = self
                .choices
                .iter()
                .all(|choice| choice.finish == Some(FinishReason::Stop));
            self.observed.end = if all_stopped { "stop" } else { "length" };
        }
        Poll::Ready(result)
    }

    fn take(&mut self, columns: &Columns) -> Result<(), ApiError> {
        let mut start = 0;
        for row in &columns.rows {
            let tokens = columns
                .tokens
                .get(start..row.tokens_end)
                .unwrap_or_default();
            start = row.tokens_end;
            let details = row.details.as_deref();
            let position = row.choice as usize;
            let group = position / self.sequences;
            if let Some(details) = details {
                if let Some((code, text)) = &details.error {
                    let failed = error::from_row(*code, text);
                    if failed.status() >= 500 {
                        tracing::warn!(
                            request_id = %self.observed.request_id,
                            worker = %self.handles.connection.address,
                            code,
                            text,
                            "the worker failed a request"
                        );
                    }
                    return Err(failed);
                }
                self.cached_tokens += u64::from(details.cached_tokens.unwrap_or(0));
                if let Some(count) = details.prompt_tokens {
                    *self.prompt_tokens.get_or_insert(0) += u64::from(count);
                }
                if let Some(values) = &details.prompt_log_probs
                    && let Some(slot) = self.prompt_log_probs.get_mut(group)
                {
                    *slot = Some(values.clone());
                }
            }
            let Some(choice) = self.choices.get_mut(position) else {
                continue;
            };
            let was_finished = choice.finish.is_some();
            let prompt = self.prompt_log_probs.get(group).and_then(Option::as_ref);
            choice.take(tokens, row.finish, details, prompt)?;
            if choice.finish.is_some() && !was_finished {
                self.unfinished -= 1;
                // A stop string may end the last choice of a handle whose worker would go on.
                if !row.last_of_handle && self.group_is_finished(group) {
                    self.handles.cancel(group);
                }
            }
            if row.last_of_handle && !self.group_is_finished(group) {
                tracing::error!(
                    request_id = %self.observed.request_id,
                    worker = %self.handles.connection.address,
                    "the worker ended a request without a finish reason"
                );
                return Err(ApiError::internal());
            }
        }
        Ok(())
    }

    fn group_is_finished(&self, group: usize) -> bool {
        let first = group * self.sequences;
        let members = self
            .choices
            .get(first..first + self.sequences)
            .unwrap_or_default();
        members.iter().all(|choice| choice.finish.is_some())
    }

    /// Whether every choice has finished.
    pub fn is_done(&self) -> bool {
        self.unfinished == 0
    }

    /// Generated tokens of all choices so far.
    pub fn generated_tokens(&self) -> u64 {
        self.choices.iter().map(|choice| choice.tokens).sum()
    }
}
