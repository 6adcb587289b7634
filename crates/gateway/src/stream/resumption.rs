//! How a request that has begun continues at another worker, from the token where it was. Owns what its choices have
//! generated, when it moves, how long it waits for a worker, and what is reported of it; which worker there is, and
//! what is sent to it, is [`Origin`]'s.
//!
//! There are two ways. A worker that can resume is sent what was generated, and brings what follows. Any other one
//! gets the request anew, with the same seed; what it repeats is compared, and what is new continues. The choices
//! themselves notice neither.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use inflight_openai::ApiError;
use inflight_upstream::connection::Connection;
use inflight_upstream::delivery::ResumeLimits;
use inflight_upstream::dispatch::{Dispatched, NotDispatched};
use inflight_upstream::inbox::{DeltaDetails, Notice};
use inflight_upstream::metrics::{RetryLabels, RetryReason};
use tokio::time::{Instant, Sleep};

use super::transcript::{Differs, New, Transcript};
use crate::metrics::Resumes;

/// Says that an answer continued at another worker: in a header of an answer in one piece, behind a stream as a trailer.
pub(crate) const RESUMED: HeaderName = HeaderName::from_static("x-inflight-resumed");

/// How many workers in a row may be lost without a new token. A request that itself ends workers must not reach all
/// of them.
const FRUITLESS: u32 = 3;
/// How soon a request that no worker takes is offered again.
const RETRY_EVERY: Duration = Duration::from_millis(50);

/// How another worker brings what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It takes what was generated.
    Resume,
    /// It generates all of it again.
    Replay,
}

/// Where a request came from, so that it can be sent again.
pub(crate) trait Origin: std::fmt::Debug + Send + Sync {
    /// Sends it to a worker, but not to `without`, to continue after what each choice has generated; `None`: the choice
    /// has ended.
    ///
    /// # Errors
    /// None takes it now.
    fn resume(
        &self,
        without: Option<&Connection>,
        generated: &[Option<&[i32]>],
    ) -> Result<Dispatched, NotDispatched>;

    /// Whether it must end where it is.
    fn is_over(&self) -> bool;

    /// Tokens of all its prompts.
    fn prompt_tokens(&self) -> usize;

    /// When it must have been answered.
    fn deadline(&self) -> Option<Instant>;
}

/// Why a request is to continue elsewhere.
#[derive(Debug)]
enum Cause {
    /// Its worker has failed it. What its client hears if no other takes it.
    Lost(ApiError, RetryReason),
    /// Its worker still has it.
    Notice(Notice),
}

impl Cause {
    fn reason(&self) -> RetryReason {
        match self {
            Self::Lost(_, reason) => *reason,
            Self::Notice(Notice::Silent) => RetryReason::Silent,
            Self::Notice(Notice::Leaving) => RetryReason::Leaving,
        }
    }
}

/// What became of a request that is to continue elsewhere.
#[derive(Debug)]
pub(super) enum Resumed {
    /// Its worker keeps it for now.
    Stays,
    /// No worker has it yet.
    Waits,
    /// Another worker has it.
    Moved(Dispatched),
    /// It ends.
    Failed(ApiError),
}

/// What the client may learn in the end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    /// How often it continued at another worker.
    pub times: u32,
    /// How often of these that generated all of it again.
    pub replayed: u32,
    /// Tokens that were computed again.
    pub tokens: usize,
    /// How long nothing came because of it.
    pub pause: Duration,
}

impl Report {
    /// As a header or a trailer has it.
    pub(crate) fn header_value(&self) -> Option<HeaderValue> {
        let Self {
            times,
            replayed,
            tokens,
            ..
        } = self;
        let pause = self.pause.as_millis();
        let value =
            format!("times={times}, replayed={replayed}, tokens={tokens}, pause-ms={pause}");
        HeaderValue::from_str(&value).ok()
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Resumption {
    origin: Box<dyn Origin>,
    limits: ResumeLimits,
    metrics: Resumes,
    way: Way,
    /// Of each choice.
    generated: Vec<Transcript>,
    cause: Option<Cause>,
    since: Option<Instant>,
    retry: Option<Pin<Box<Sleep>>>,
    losses: u32,
    fruitless: u32,
    /// Whether no worker was there before it had generated anything.
    has_outlived: bool,
    /// Until the first new output after a move.
    is_paused: bool,
    /// Whether what came last has something new.
    has_new: bool,
    pub(super) report: Report,
}

impl Resumption {
    /// For a request of so many choices that was sent.
    pub(crate) fn new(
        origin: Box<dyn Origin>,
        way: Way,
        limits: ResumeLimits,
        metrics: Resumes,
        choices: usize,
    ) -> Self {
        Self {
            origin,
            limits,
            metrics,
            way,
            generated: std::iter::repeat_with(Transcript::default)
                .take(choices)
                .collect(),
            cause: None,
            since: None,
            retry: None,
            losses: 0,
            fruitless: 0,
            has_outlived: false,
            is_paused: false,
            has_new: false,
            report: Report::default(),
        }
    }

    /// Begins anew with a request of which nothing counts any more.
    pub(super) fn restart(&mut self) {
        self.generated.iter_mut().for_each(Transcript::clear);
        self.cause = None;
        self.retry = None;
    }

    /// Takes a row of a choice, and returns what of it is new.
    ///
    /// # Errors
    /// 503: it is not what an earlier worker generated.
    pub(super) fn take<'a>(
        &mut self,
        choice: usize,
        tokens: &'a [i32],
        details: Option<&DeltaDetails>,
        is_last: bool,
    ) -> Result<Option<New<'a>>, ApiError> {
        let Some(transcript) = self.generated.get_mut(choice) else {
            return Ok(None);
        };
        match transcript.take(tokens, details, is_last) {
            Ok(new) => {
                self.has_new |= !new.is_repeated;
                Ok(Some(new))
            }
            Err(Differs) => {
                self.metrics.failed.inc();
                Err(ApiError::unavailable(
                    "The model's worker was lost, and another one generated another answer, which cannot continue \
                     from there. Retry the request.",
                ))
            }
        }
    }

    /// Whether it is the only way on: a choice has generated something, or no worker had the request.
    pub(super) fn is_needed(&self) -> bool {
        self.has_outlived || self.generated.iter().any(|own| !own.is_empty())
    }

    /// Whether the choice has generated anything.
    pub(super) fn has_begun(&self, choice: usize) -> bool {
        self.generated
            .get(choice)
            .is_some_and(|own| !own.is_empty())
    }

    /// Notes that output came then.
    pub(super) fn heard(&mut self, at: Instant) {
        let has_new = std::mem::take(&mut self.has_new);
        if has_new {
            self.fruitless = 0;
        }
        if has_new && std::mem::take(&mut self.is_paused) {
            let since = self.since.take().unwrap_or(at);
            let pause = at.saturating_duration_since(since);
            self.report.pause += pause;
            self.metrics.pause.observe(pause.as_secs_f64());
        }
        // A worker that was silent has it again; one that leaves still does.
        if matches!(self.cause, Some(Cause::Notice(Notice::Silent))) {
            self.cause = None;
            self.retry = None;
            self.since = None;
        }
    }

    /// Notes that the worker has failed the request.
    ///
    /// # Errors
    /// It may not continue.
    pub(super) fn lose(&mut self, error: ApiError, reason: RetryReason) -> Result<(), ApiError> {
        if self.origin.is_over() {
            return Err(error);
        }
        if reason == RetryReason::Full {
            // It had no part in that, and the worker may have room soon.
            self.begin(Cause::Lost(error, reason));
            self.retry = Some(Box::pin(tokio::time::sleep(RETRY_EVERY)));
            return Ok(());
        }
        self.losses += 1;
        self.fruitless += 1;
        if self.losses > self.limits.most || self.fruitless >= FRUITLESS {
            self.metrics.failed.inc();
            return Err(error);
        }
        self.begin(Cause::Lost(error, reason));
        Ok(())
    }

    /// Waits for a worker after `sent` have failed the request, which has generated nothing.
    ///
    /// # Errors
    /// It may not continue.
    pub(super) fn outlive(&mut self, error: ApiError, sent: u32) -> Result<(), ApiError> {
        self.has_outlived = true;
        self.fruitless = sent.saturating_sub(1);
        self.lose(error, RetryReason::Unavailable)
    }

    /// Notes that the request had better continue elsewhere.
    pub(super) fn notice(&mut self, notice: Notice) {
        // To generate all of it again is worse than to wait for what its worker still does.
        if self.way == Way::Resume && !matches!(self.cause, Some(Cause::Lost(..))) {
            self.begin(Cause::Notice(notice));
        }
    }

    fn begin(&mut self, cause: Cause) {
        self.cause = Some(cause);
        self.retry = None;
        self.since.get_or_insert_with(Instant::now);
    }

    /// Whether the request is to continue elsewhere.
    pub(super) fn is_due(&self) -> bool {
        self.cause.is_some()
    }

    /// Continues if a worker takes the request, and looks again soon otherwise. `without` had it until now.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
        without: &Connection,
        has_ended: impl Fn(usize) -> bool,
    ) -> Resumed {
        loop {
            if let Some(retry) = &mut self.retry {
                if retry.as_mut().poll(context).is_pending() {
                    return match self.cause {
                        Some(Cause::Lost(..)) => Resumed::Waits,
                        _ => Resumed::Stays,
                    };
                }
                self.retry = None;
            }
            let Some(cause) = &self.cause else {
                return Resumed::Stays;
            };
            let generated = self.generated.iter().enumerate();
            let generated = generated.map(|(choice, own)| match has_ended(choice) {
                true => None,
                false => Some(own.tokens()),
            });
            let generated: Vec<Option<&[i32]>> = generated.collect();
            let again = self.origin.prompt_tokens()
                + generated
                    .iter()
                    .flatten()
                    .map(|own| own.len())
                    .sum::<usize>();
            let now = Instant::now();
            let is_lost = matches!(cause, Cause::Lost(..));
            if is_lost && self.origin.deadline().is_some_and(|until| until <= now) {
                self.metrics.failed.inc();
                return Resumed::Failed(ApiError::timeout("The request timed out."));
            }
            let has_waited = |since: Instant| now - since >= self.limits.wait;
            let is_late = self.origin.is_over() || self.since.is_some_and(has_waited);
            if again > self.limits.tokens || is_late {
                return self.give_up();
            }
            let is_full = matches!(cause, Cause::Lost(_, RetryReason::Full));
            let without = Some(without).filter(|_| !is_full);
            match self.origin.resume(without, &generated) {
                Ok(dispatched) => {
                    let labels = RetryLabels::from(cause.reason());
                    self.metrics.resumed.get_or_create(&labels).inc();
                    self.metrics.tokens.inc_by(again as u64);
                    self.report.times += 1;
                    if self.way == Way::Replay {
                        self.report.replayed += 1;
                        self.generated.iter_mut().for_each(Transcript::replay);
                    }
                    self.report.tokens += again;
                    if matches!(self.cause.take(), Some(Cause::Notice(_))) {
                        // Until now its worker had it.
                        self.since = Some(now);
                    }
                    self.is_paused = true;
                    return Resumed::Moved(dispatched);
                }
                // One that is still there and has failed the request will not be another one soon.
                Err(NotDispatched::NoWorker) if is_lost && without.is_some_and(stays) => {
                    return self.give_up();
                }
                Err(NotDispatched::NoWorker | NotDispatched::Full) => {
                    self.retry = Some(Box::pin(tokio::time::sleep(RETRY_EVERY)));
                }
            }
        }
    }

    /// Ends what cannot continue, and leaves the rest where it is.
    fn give_up(&mut self) -> Resumed {
        self.since = None;
        match self.cause.take() {
            Some(Cause::Lost(error, _)) => {
                self.metrics.failed.inc();
                Resumed::Failed(error)
            }
            Some(Cause::Notice(_)) | None => Resumed::Stays,
        }
    }
}

/// Whether the worker is neither lost nor about to end.
fn stays(worker: &Connection) -> bool {
    !worker.is_lost() && !worker.is_leaving()
}
