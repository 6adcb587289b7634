//! How a request that has begun continues at another worker, from the token where it was. Owns what its choices have
//! generated; when it moves is [`Survival`]'s, and what is sent again is [`Origin`]'s. The choices notice neither.

use std::task::Context;

use http::{HeaderMap, HeaderName, HeaderValue};
use inflight_openai::ApiError;
use inflight_upstream::connection::Connection;
use inflight_upstream::delivery::ResumeLimits;
use inflight_upstream::dispatch::{Dispatched, NotDispatched};
use inflight_upstream::inbox::{DeltaDetails, Notice};
use inflight_upstream::metrics::{Resumes, RetryReason};
use inflight_upstream::process::Life;
use inflight_upstream::survival::{Mover, Report, Step, Survival, Way};
use inflight_upstream::transcript::Differs;
use tokio::time::Instant;

use super::generated::{Generated, New};

/// Says that an answer continued at another worker: in a header of an answer in one piece, behind a stream as a trailer.
const RESUMED: HeaderName = HeaderName::from_static("x-inflight-resumed");

/// What became of a request that is to continue elsewhere.
pub(super) type Resumed = Step<Dispatched, ApiError>;

/// What is said of an answer that continued, as headers or trailers.
pub(crate) fn noted(report: Report) -> HeaderMap {
    let value = HeaderValue::from_str(&report.to_string());
    value.map(|value| (RESUMED, value)).into_iter().collect()
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

/// See the module.
#[derive(Debug)]
pub(crate) struct Resumption {
    origin: Box<dyn Origin>,
    survival: Survival<ApiError>,
    /// Of each choice.
    generated: Vec<Generated>,
    /// Whether what came last has something new.
    has_new: bool,
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
        let generated = std::iter::repeat_with(Generated::default);
        Self {
            origin,
            survival: Survival::new(way, limits, metrics),
            generated: generated.take(choices).collect(),
            has_new: false,
        }
    }

    /// Why the request moved last; `None`: it has not.
    pub(super) fn reason(&self) -> Option<RetryReason> {
        self.survival.reason()
    }

    /// How the request continued at other workers; `None`: it did not.
    pub(super) fn report(&self) -> Option<Report> {
        self.survival.report()
    }

    /// Begins anew with a request of which nothing counts any more.
    pub(super) fn restart(&mut self) {
        self.generated.fill_with(Generated::default);
        self.survival.restart();
    }

    /// Takes a row of a choice, and returns what of it is new; `None`: all of it.
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
        let Some(own) = self.generated.get_mut(choice) else {
            return Ok(None);
        };
        if own.append(tokens, details) {
            self.has_new = true;
            return Ok(None);
        }
        match own.take(tokens, details, is_last) {
            Ok(new) => {
                self.has_new |= !new.is_repeated;
                Ok(Some(new))
            }
            Err(Differs) => {
                self.survival.differs();
                Err(ApiError::unavailable(
                    "The model's worker was lost, and another one generated another answer, which cannot continue \
                     from there. Retry the request.",
                ))
            }
        }
    }

    /// Whether it is the only way on: a choice has generated something, or no worker had the request.
    pub(super) fn is_needed(&self) -> bool {
        self.survival.has_outlived() || self.generated.iter().any(|own| !own.is_empty())
    }

    /// Whether the choice has generated anything.
    pub(super) fn has_begun(&self, choice: usize) -> bool {
        self.generated
            .get(choice)
            .is_some_and(|own| !own.is_empty())
    }

    /// Notes that output came, and when.
    pub(super) fn heard(&mut self, at: Instant) {
        self.survival.heard(std::mem::take(&mut self.has_new), at);
    }

    /// Whether the worker that had the request before need not keep it any longer.
    pub(super) fn poll_trial(&mut self, context: &mut Context<'_>) -> bool {
        self.survival.poll_trial(context)
    }

    /// Whether the worker that had the request before keeps it, because this one has brought nothing new.
    pub(super) fn is_on_trial(&self) -> bool {
        self.survival.is_on_trial()
    }

    /// Notes that the worker on trial has failed the request: the one that kept it has it again.
    pub(super) fn take_back(&mut self, reason: Option<RetryReason>, tried: &Life) {
        self.survival.take_back(reason, tried);
    }

    /// Notes that a worker has failed the request.
    ///
    /// # Errors
    /// It may not continue.
    pub(super) fn lose(
        &mut self,
        error: ApiError,
        reason: RetryReason,
        lost: &Life,
    ) -> Result<(), ApiError> {
        let is_over = self.origin.is_over();
        self.survival.lose(error, reason, lost, is_over)
    }

    /// Waits for a worker after `sent` have failed the request, which has generated nothing; `lost` was the last of them.
    ///
    /// # Errors
    /// It may not continue.
    pub(super) fn outlive(
        &mut self,
        error: ApiError,
        sent: u32,
        lost: &Life,
    ) -> Result<(), ApiError> {
        let is_over = self.origin.is_over();
        self.survival.outlive(error, sent, lost, is_over)
    }

    /// Notes that the request should continue elsewhere.
    pub(super) fn notice(&mut self, notice: Notice) {
        self.survival.notice(notice);
    }

    /// Whether the request is to continue elsewhere.
    pub(super) fn is_due(&self) -> bool {
        self.survival.is_due()
    }

    /// Continues if a worker takes the request, and looks again soon otherwise. `without` had it until now.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
        without: &Connection,
        has_ended: impl Fn(usize) -> bool,
    ) -> Resumed {
        let mut moving = Moving {
            origin: &*self.origin,
            without,
            generated: &self.generated,
            has_ended: &has_ended,
        };
        let step = self.survival.poll(context, &mut moving);
        if matches!(step, Step::Moved(_) | Step::Tried(_)) && self.survival.way() == Way::Replay {
            self.generated.iter_mut().for_each(Generated::replay);
        }
        step
    }
}

/// The request as it moves.
struct Moving<'a> {
    origin: &'a dyn Origin,
    without: &'a Connection,
    generated: &'a [Generated],
    has_ended: &'a dyn Fn(usize) -> bool,
}

impl Moving<'_> {
    /// What each choice has generated; `None`: it has ended.
    fn running(&self) -> impl Iterator<Item = Option<&[i32]>> {
        let own = self.generated.iter().enumerate();
        own.map(|(choice, own)| (!(self.has_ended)(choice)).then_some(own.tokens()))
    }
}

impl Mover for Moving<'_> {
    type Error = ApiError;
    type Sent = Dispatched;

    fn send(&mut self, may_return: bool) -> Result<Dispatched, NotDispatched> {
        let without = Some(self.without).filter(|_| !may_return);
        let generated: Vec<_> = self.running().collect();
        self.origin.resume(without, &generated)
    }

    fn is_over(&self) -> bool {
        self.origin.is_over()
    }

    fn deadline(&self) -> Option<Instant> {
        self.origin.deadline()
    }

    fn tokens(&self) -> usize {
        let generated = self.running().flatten();
        self.origin.prompt_tokens() + generated.map(<[i32]>::len).sum::<usize>()
    }

    fn server_stays(&self) -> bool {
        self.without.stays()
    }

    fn timed_out(&self) -> ApiError {
        ApiError::timeout("The request timed out.")
    }
}
