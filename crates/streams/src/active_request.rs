//! A request being answered: its choices, and what it holds at a worker. Owns when it is done, and that a choice that
//! ends early is stopped; knows nothing of response formats. How it continues after its worker is [`Holding`]'s.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use inflight_kserve::step::{FinishReason as WorkerReason, PromptLogProbs};
use inflight_openai::{ApiError, FinishReason, Usage};
use inflight_upstream::delivery::reason_of_code;
use inflight_upstream::dispatch::{Dispatched, OpenHandles};
use inflight_upstream::expiry::Expiry;
use inflight_upstream::holding::Holding;
use inflight_upstream::inbox::{ChoiceOutputs, Notice};
use inflight_upstream::metrics::RetryReason;
use inflight_upstream::survival::{Report, Step, Survival};

use super::choice::Choice;
use super::prompts_mover::PromptsMover;
use super::record::RequestRecord;
use crate::error;

/// A request being answered.
#[derive(Debug)]
pub struct ActiveRequest {
    holding: Holding<PromptsMover>,
    outputs: ChoiceOutputs,
    pub choices: Vec<Choice>,
    unfinished: usize,
    /// Per handle, once it has come.
    prompt_log_probs: Vec<Option<PromptLogProbs>>,
    /// Whether the gateway counted the prompt's tokens.
    prompt_is_counted: bool,
    has_started: bool,
    retry: Option<RetryReason>,
    record: RequestRecord,
}

impl ActiveRequest {
    /// Nothing has been generated yet. `prompts_mover`: how it continues at another worker, if it can.
    pub fn new(
        dispatched: Dispatched,
        choices: Vec<Choice>,
        record: RequestRecord,
        prompts_mover: Option<(PromptsMover, Survival<ApiError>)>,
    ) -> Self {
        record.sent_to(&dispatched.handles.connection().address, None);
        Self {
            outputs: ChoiceOutputs::default(),
            unfinished: choices.len(),
            choices,
            prompt_log_probs: vec![None; dispatched.handles.count()],
            holding: Holding::new(&record.request_id, dispatched, prompts_mover),
            prompt_is_counted: record.prompt_tokens.is_some(),
            has_started: false,
            retry: None,
            record,
        }
    }

    /// Is given up at `expiry`, from here on.
    pub fn expires(mut self, expiry: Expiry) -> Self {
        self.holding.expires(expiry);
        self
    }

    /// Begins anew with what was sent to another worker; what the first one answered is forgotten. Only
    /// while the client has got nothing.
    pub fn restart(&mut self, dispatched: Dispatched, choices: Vec<Choice>, because: RetryReason) {
        self.prompt_log_probs = vec![None; dispatched.handles.count()];
        // Stops what the first worker may still be doing.
        self.holding.restart(dispatched);
        self.note_move(Some(because));
        self.unfinished = choices.len();
        self.choices = choices;
        self.record.cached_tokens = 0;
        if !self.prompt_is_counted {
            self.record.prompt_tokens = None;
        }
        self.has_started = false;
        if let Some(prompts_mover) = self.holding.request_mut() {
            prompts_mover.restart();
        }
        self.record.restart();
    }

    fn handles(&self) -> &OpenHandles {
        &self.holding.work().handles
    }

    /// Notes which worker has it now, and what was wrong with the one that had it.
    fn note_move(&mut self, reason: Option<RetryReason>) {
        let address = &self.handles().connection().address;
        self.record.sent_to(address, reason);
        self.outputs.clear();
        self.retry = None;
    }

    /// Whether its worker's failures and absence are answered here, and not by sending it anew.
    pub fn survives(&self) -> bool {
        let has_begun = || self.holding.request().is_some_and(PromptsMover::has_begun);
        let survival = self.holding.survival();
        survival.is_some_and(|it| self.has_started || it.has_outlived() || has_begun())
    }

    /// Waits for another worker after `sent` ones have failed the request, where no other is ready now.
    ///
    /// # Errors
    /// What it failed with: its worker is still there, or the request cannot continue.
    pub fn outlive(&mut self, error: ApiError, sent: usize) -> Result<(), ApiError> {
        match self.retry.take() {
            Some(_) if self.handles().connection().may_be_lost() => {
                self.holding.outlive(error, sent)
            }
            _ => Err(error),
        }
    }

    /// How the request continued at other workers; `None`: it did not.
    pub fn resumed(&self) -> Option<Report> {
        self.holding.survival()?.report()
    }

    /// Why the request may go to another worker, once it has failed.
    pub fn failed_because(&self) -> Option<RetryReason> {
        self.retry
    }

    /// Whether any output has come.
    pub fn has_started(&self) -> bool {
        self.has_started
    }

    /// Waits for the first output: an error before it still gets its own HTTP status.
    ///
    /// # Errors
    /// The request failed.
    pub async fn wait_for_start(&mut self) -> Result<(), ApiError> {
        poll_fn(|context| self.poll_output(context)).await
    }

    /// Waits until every choice has finished.
    ///
    /// # Errors
    /// The request failed.
    pub async fn wait_for_end(&mut self) -> Result<(), ApiError> {
        while !self.is_done() {
            if !self.choices.iter().any(Choice::wants_each_token) {
                self.holding.work().inbox.gather();
            }
            poll_fn(|context| self.poll_output(context)).await?;
        }
        Ok(())
    }

    /// Takes in all output that is there; ready once there was some.
    ///
    /// # Errors
    /// The request failed; nothing more follows.
    pub(crate) fn poll_output(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ApiError>> {
        loop {
            match self.holding.poll(context) {
                Step::Stays => {}
                Step::Waits => return self.poll_expired(context),
                Step::Moved((), reason) => self.note_move(reason),
                Step::Failed(error) => {
                    self.record.failed(error.status());
                    return Poll::Ready(Err(error));
                }
            }
            self.outputs.clear();
            let inbox = &self.holding.work().inbox;
            let Poll::Ready(arrived) = inbox.poll_take(context, &mut self.outputs) else {
                return self.poll_expired(context);
            };
            let outputs = std::mem::take(&mut self.outputs);
            let result = self.take(&outputs);
            self.outputs = outputs;
            if let Some(at) = arrived.at {
                let prompts_mover = self.holding.request_mut();
                let has_new = prompts_mover.is_some_and(PromptsMover::take_new);
                self.holding.heard(has_new, at);
            }
            let result = match result {
                Ok(()) => Ok(()),
                Err(error) => {
                    let reason = self.retry.filter(|_| self.survives());
                    match self.holding.fail(error, reason) {
                        Step::Stays | Step::Waits => continue,
                        Step::Moved((), reason) => {
                            self.note_move(reason);
                            continue;
                        }
                        Step::Failed(error) => Err(error),
                    }
                }
            };
            // Before that, `deliver` moves it.
            if let Some(notice) = arrived.notice.filter(|_| self.survives()) {
                self.holding.notice(notice);
            }
            let Some(at) = arrived.at else {
                continue;
            };
            if result.is_ok() {
                // A notice that came before had nothing to continue with.
                if !self.has_started && self.handles().connection().is_leaving() {
                    self.holding.notice(Notice::Leaving);
                }
                self.has_started = true;
                self.holding.work_mut().handles.started();
                let (generated, choices) = (self.generated(), self.choices.len());
                self.record.output(at, generated, choices);
            }
            if let Err(error) = &result {
                self.record.failed(error.status());
            } else if self.is_done() {
                let all_stopped = self
                    .choices
                    .iter()
                    .all(|choice| choice.finish != Some(FinishReason::Length));
                self.record.finished(all_stopped);
            }
            return Poll::Ready(result);
        }
    }

    /// Ready once it is given up.
    fn poll_expired(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ApiError>> {
        self.holding.poll_expired(context).map(|why| {
            let error = error::given_up(why);
            // A client that reads slowly may hold the rest of the answer for long.
            self.handles().stop();
            self.record.failed(error.status());
            Err(error)
        })
    }

    fn take(&mut self, outputs: &ChoiceOutputs) -> Result<(), ApiError> {
        let mut start = 0;
        for delta in &outputs.list {
            let tokens = outputs
                .tokens
                .get(start..delta.tokens_end)
                .unwrap_or_default();
            start = delta.tokens_end;
            let details = delta.details.as_deref();
            let position = delta.choice as usize;
            let sequences = self.handles().sequences();
            let group = position / sequences;
            if let Some(details) = details {
                if let Some((code, text)) = &details.error {
                    if self.group_is_finished(group) {
                        // Its end has come, and its worker was lost before it was asked to stop.
                        continue;
                    }
                    let survival = self.holding.survival();
                    let is_handed_over = survival.is_some_and(Survival::is_handed_over);
                    // What one cannot continue from, another computes again.
                    let of_hand_over = is_handed_over.then_some(RetryReason::Unavailable);
                    self.retry = reason_of_code(*code).or(of_hand_over);
                    let failed = error::from_worker(*code, text, details.retry_after_ms);
                    if failed.status() >= 500 && (self.retry.is_none() || !self.survives()) {
                        tracing::warn!(
                            request_id = %self.record.request_id,
                            worker = self.handles().worker(),
                            ?code,
                            text,
                            "a request failed on the worker"
                        );
                    }
                    return Err(failed);
                }
                // Another worker counts the prompt again, and what was generated as well.
                let at = self.holding.work_mut();
                let counts = at.counted.get(group) != Some(&true);
                // The other choices of a prompt find what its first one has computed.
                let cached = details
                    .cached_tokens
                    .filter(|_| position.is_multiple_of(sequences));
                if let Some(tokens) = cached {
                    at.handles.found_cached(tokens);
                }
                if counts {
                    self.record.cached_tokens += u64::from(cached.unwrap_or(0));
                }
                if let Some(count) = details.prompt_tokens.filter(|_| counts) {
                    *self.record.prompt_tokens.get_or_insert(0) += u64::from(count);
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
            let context = details.and_then(|details| details.context_phase.as_ref());
            // Its worker was asked for no more than this token, and TensorRT-LLM's runtimes say either.
            let continues =
                [WorkerReason::Length, WorkerReason::NotFinished].contains(&delta.finish);
            let context = context.filter(|_| continues);
            if delta.last_of_handle
                && continues
                && context.is_none()
                && self.holding.work().handles.is_context()
            {
                // It would look like a whole answer.
                self.retry = Some(RetryReason::Unavailable);
                return Err(ApiError::internal());
            }
            let (finish, is_end) = match context {
                Some(_) => (WorkerReason::NotFinished, false),
                None => (delta.finish, delta.last_of_handle),
            };
            let is_open = finish == WorkerReason::NotFinished && !is_end;
            let is_last = finish != WorkerReason::NotFinished
                && !matches!(finish, WorkerReason::Cancelled | WorkerReason::TimedOut);
            let new = match self.holding.request_mut() {
                Some(prompts_mover) if !was_finished => {
                    prompts_mover.take(position, tokens, details, is_last)
                }
                _ => Ok(None),
            };
            let Ok(new) = new else {
                self.holding.differs();
                return Err(ApiError::unavailable(
                    "The model's worker was lost, and another one generated another answer, which cannot continue \
                     from there. Retry the request.",
                ));
            };
            let (tokens, details) = match &new {
                Some(new) if new.is_repeated && is_open => continue,
                Some(new) => (new.tokens, new.details.as_ref().or(details)),
                None => (tokens, details),
            };
            let prompt = self.prompt_log_probs.get(group).and_then(Option::as_ref);
            let taken = choice.take(tokens, finish, details, prompt);
            if taken.is_err() && finish == WorkerReason::Cancelled {
                // Nobody here asked for it.
                self.retry = Some(RetryReason::Unavailable);
            }
            taken?;
            if choice.finish.is_some() && !was_finished {
                self.unfinished -= 1;
                if let Some(prompts_mover) = self.holding.request_mut() {
                    prompts_mover.ended(position);
                }
                // A stop string may end the last choice of a handle whose worker would continue.
                if !is_end && self.group_is_finished(group) {
                    self.handles().cancel(group);
                }
            } else if let Some(params) = context {
                if let Some(prompts_mover) = self.holding.request_mut() {
                    prompts_mover.leave(params.clone());
                }
                self.holding.hand_over(error::no_worker())?;
            }
            if is_end && !self.group_is_finished(group) {
                tracing::error!(
                    request_id = %self.record.request_id,
                    worker = self.handles().worker(),
                    "the worker ended a request without a finish reason"
                );
                return Err(ApiError::internal());
            }
        }
        Ok(())
    }

    fn group_is_finished(&self, group: usize) -> bool {
        let sequences = self.handles().sequences();
        let first = group * sequences;
        let members = self
            .choices
            .get(first..first + sequences)
            .unwrap_or_default();
        members.iter().all(|choice| choice.finish.is_some())
    }

    /// Whether every choice has finished.
    pub(crate) fn is_done(&self) -> bool {
        self.unfinished == 0
    }

    /// The time that a worker has taken so far, and that until its first output, counted from the request's arrival.
    pub fn times(&self) -> Option<(Duration, Duration)> {
        self.record.times()
    }

    /// Says that the answer begins: what fails from here on has no separate response.
    pub fn begin_answer(&mut self) {
        self.record.answered();
    }

    /// Says that the request is given up, and with which status its client hears why.
    pub fn give_up(&mut self, status: u16) {
        self.holding.given_up();
        self.record.failed(status);
    }

    fn generated(&self) -> u64 {
        self.choices.iter().map(|choice| choice.tokens).sum()
    }

    /// Tokens of the prompt, where they are counted, and those of them that were in the cache.
    pub(crate) fn prompt_counts(&self) -> (Option<u64>, u64) {
        (self.record.prompt_tokens, self.record.cached_tokens)
    }

    /// The id that the client knows the request by.
    pub(crate) fn request_id(&self) -> &str {
        &self.record.request_id
    }

    /// The log probabilities of each choice's prompt, once they have come.
    pub(crate) fn prompt_log_probs(&self) -> Vec<Option<PromptLogProbs>> {
        let sequences = self.handles().sequences().max(1);
        let of = |choice: usize| self.prompt_log_probs.get(choice / sequences)?.clone();
        (0..self.choices.len()).map(of).collect()
    }

    /// The usage so far; `None` where nobody counts the prompt's tokens.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let usage = Usage::new(
            self.record.prompt_tokens?,
            self.generated(),
            self.record.cached_tokens,
        );
        let reasoning = self.choices.iter().map(Choice::reasoning_tokens).sum();
        Some(usage.with_reasoning(reasoning))
    }
}
