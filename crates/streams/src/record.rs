//! What is measured and logged of one request. Owns its times, its token counts and its line in the log, and holds
//! its place among the admitted ones: when it is dropped, the place is free and the client's quota is charged. Knows
//! nothing of the request's content.

use std::sync::Arc;
use std::time::Duration;

use inflight_base::milliseconds;
use inflight_base::wall_clock;
use inflight_clients::admission::Admitted;
use inflight_clients::client::Owner;
use inflight_upstream::metrics::RetryReason;
use inflight_upstream::trace::{GeneratedCounts, Trace};
use tokio::time::Instant;

use crate::metrics::{IntervalBatch, Metrics, ModelMetrics};
use crate::requests::{End, Facts, OpenFacts, Requests};

/// Measures a request while it lives, then logs and counts how it ended; holds its place among the admitted ones.
#[derive(Debug)]
pub struct RequestRecord {
    metrics: Arc<Metrics>,
    of_model: ModelMetrics,
    pub(super) request_id: Arc<str>,
    started: Instant,
    /// When a worker was first sent the request.
    sent: Instant,
    first_output: Option<Instant>,
    /// `None`: the next output says nothing about the time between tokens.
    last_output: Option<Instant>,
    intervals: IntervalBatch,
    pub(super) prompt_tokens: Option<u64>,
    completion_tokens: u64,
    end: &'static str,
    /// Of a failure.
    status: u16,
    /// Whether an answer has begun. A failure before that has its own response and log line.
    is_answered: bool,
    /// Whether the prompt has been counted for the client's key.
    prompt_is_counted: bool,
    admitted: Admitted,
    trace: Trace,
    /// What the console shows; `None`: it is off.
    facts: Option<OpenFacts>,
    /// Tokens of the prompt that the worker had in its cache.
    pub(super) cached_tokens: u64,
}

impl RequestRecord {
    /// A request for the served `model` that arrived at `started`, was admitted, and has been sent to a worker now.
    /// `prompt_tokens` are `None` where the gateway does not count them.
    pub fn new(
        metrics: Arc<Metrics>,
        model: &str,
        request_id: Arc<str>,
        started: Instant,
        prompt_tokens: Option<u64>,
        admitted: Admitted,
        trace: Trace,
    ) -> Self {
        metrics.active_requests.inc();
        let of_model = metrics.for_model(model);
        of_model.tokens_in.inc_by(prompt_tokens.unwrap_or(0));
        admitted.used(prompt_tokens.unwrap_or(0));
        Self {
            of_model,
            metrics,
            request_id,
            started,
            sent: Instant::now(),
            first_output: None,
            last_output: None,
            intervals: IntervalBatch::default(),
            prompt_tokens,
            completion_tokens: 0,
            end: "cancelled",
            status: 0,
            is_answered: false,
            prompt_is_counted: prompt_tokens.is_some(),
            admitted,
            trace,
            facts: None,
            cached_tokens: 0,
        }
    }

    /// Adds what the console shows, to clients of the same owner.
    pub fn listed(mut self, requests: &Arc<Requests>, route: &'static str, owner: &Owner) -> Self {
        let facts = requests.add(Facts::new(
            Arc::clone(&self.request_id),
            route,
            self.of_model.model(),
            owner.clone(),
            self.started,
        ));
        facts.prompt(self.prompt_tokens);
        self.facts = Some(facts);
        self
    }

    /// Notes the worker that has it now, `because` of what was wrong with the one before.
    pub(super) fn sent_to(&self, worker: &Arc<str>, because: Option<RetryReason>) {
        if let Some(facts) = &self.facts {
            facts.sent(worker, because.map(|reason| reason.label()));
        }
    }

    /// Notes output that `arrived` then: `choices` choices have `generated` tokens in all by now.
    pub(super) fn output(&mut self, arrived: Instant, generated: u64, choices: usize) {
        let new = generated.saturating_sub(self.completion_tokens);
        self.completion_tokens = generated;
        if let Some(facts) = &self.facts {
            facts.generated(generated);
        }
        if self.first_output.is_none() {
            if let Some(facts) = &self.facts {
                facts.first_output(arrived - self.started);
            }
            self.first_output = Some(arrived);
            self.trace.output(arrived);
            let waited = (arrived - self.started).as_secs_f64();
            self.of_model.time_to_first_token.observe(waited);
        }
        if let Some(last) = self.last_output.replace(arrived)
            && new > 0
        {
            let each = u32::try_from(new.div_ceil(choices.max(1) as u64)).unwrap_or(u32::MAX);
            self.intervals.observe(new, (arrived - last) / each);
            if self.intervals.is_full() {
                self.intervals.flush(&self.of_model.inter_token_time);
            }
        }
    }

    /// The time that a worker has taken so far, and when its first output came, counted from the request's arrival.
    pub(super) fn times(&self) -> Option<(Duration, Duration)> {
        let first = self.first_output? - self.started;
        let last = self.last_output.or(self.first_output)?;
        Some((last.saturating_duration_since(self.sent), first))
    }

    /// Notes that every choice has finished.
    pub(super) fn finished(&mut self, all_stopped: bool) {
        self.end = if all_stopped { "stop" } else { "length" };
    }

    /// Notes a failure with this status.
    pub(super) fn failed(&mut self, status: u16) {
        self.end = "error";
        self.status = status;
    }

    /// Notes that the client will see this answer: what fails from here on has no separate response.
    pub(super) fn answered(&mut self) {
        self.is_answered = true;
    }

    /// Begins anew, at another worker. The time to the first token is that of the first output anywhere.
    pub(super) fn restart(&mut self) {
        self.end = "cancelled";
        self.completion_tokens = 0;
        self.last_output = None;
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        self.metrics.active_requests.dec();
        self.intervals.flush(&self.of_model.inter_token_time);
        self.of_model.ended(self.end);
        let prompt = self.prompt_tokens.filter(|_| !self.prompt_is_counted);
        self.admitted
            .used(prompt.unwrap_or(0) + self.completion_tokens);
        self.trace.generated(|| GeneratedCounts {
            model: self.of_model.name().to_owned(),
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            end: self.end,
        });
        if self.end == "error" && self.status >= 500 {
            self.trace.failed(|| self.status.to_string());
        }
        let total = self.started.elapsed();
        if matches!(self.end, "stop" | "length") {
            self.of_model.request_time.observe(total.as_secs_f64());
        }
        if let Some(facts) = &self.facts {
            facts.prompt(self.prompt_tokens);
            facts.ended(End {
                at: wall_clock::now(),
                total,
                finish: self.end,
                status: self.status,
                cached_tokens: self.cached_tokens,
                failure: None,
            });
        }
        if self.end == "error" && !self.is_answered {
            return;
        }
        let first = self
            .first_output
            .map(|first| milliseconds(first - self.started));
        tracing::info!(
            request_id = %self.request_id,
            model = %self.of_model.name(),
            prompt_tokens = self.prompt_tokens,
            completion_tokens = self.completion_tokens,
            first_token_ms = first,
            total_ms = milliseconds(total),
            finish = self.end,
            "request ended"
        );
    }
}
