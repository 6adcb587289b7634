//! When a request that has begun continues at another server. Owns why it is to move, how often and how long that is
//! tried, and what is reported of it; what is sent again and how its output is read is its [`Mover`]'s.
//!
//! There are two ways. A server that can resume is sent what was generated, and brings what follows. Any other one
//! gets the request anew, with the same seed; what it repeats is compared, and what is new continues.
//!
//! A server that leaves or is silent still has its requests. Another one gets such a request on trial: until it brings
//! something new, the first server keeps the request and has it again if the other fails; for a while, if it leaves. So
//! nothing is lost when a whole fleet ends at once.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::delivery::ResumeLimits;
use super::dispatch::{Dispatched, NotDispatched};
use super::inbox::Notice;
use crate::metrics::{Resumes, RetryLabels, RetryReason};
use crate::process::Life;

/// How many servers in a row may be lost without new output. A request that itself ends servers must not reach all
/// of them. One that is known to have survived the loss does not count.
const FRUITLESS: usize = 3;
/// A server that ends is missed earlier: all its connections end at the same time.
const MISSED_WITHIN: Duration = Duration::from_millis(500);
/// How long a server that leaves keeps a request that another one has. One that ends as well refuses it at once; one
/// that has much to compute first may take long, and the first should leave in time.
const TRIAL: Duration = Duration::from_secs(1);
/// How soon a request that no server takes is offered again.
const RETRY_EVERY: Duration = Duration::from_millis(50);
/// How long a request whose context is computed is offered at least: nothing was lost, and some worker has room soon.
const HAND_OVER: Duration = Duration::from_secs(1);
/// How long after it failed its requests it may take until a server is known to have ended: a plain Triton is looked at
/// once a second. One that is still there then has failed them for another reason, and waiting does not help.
const ENDING: Duration = Duration::from_millis(1500);

/// How another server brings what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It takes what was generated.
    Resume,
    /// It generates all of it again.
    Replay,
}

/// The work on a request at one server. Dropping it stops it.
pub trait Work {
    /// The server's `host:port`.
    fn server(&self) -> &str;

    /// The server's process.
    fn life(&self) -> &Life;

    /// Whether the server is neither lost nor about to end.
    fn server_stays(&self) -> bool;
}

impl Work for Dispatched {
    fn server(&self) -> &str {
        self.handles.worker()
    }

    fn life(&self) -> &Life {
        self.handles.connection().life()
    }

    fn server_stays(&self) -> bool {
        self.handles.connection().stays()
    }
}

/// A request that can move.
pub trait Mover {
    /// What its client reads of a failure.
    type Error: std::fmt::Debug;
    type Work: Work;

    /// Sends it to a server, to continue there, `because` of what is wrong with the one that has it `now`; `None`:
    /// nothing, its part is done.
    ///
    /// # Errors
    /// None takes it now.
    fn send(
        &mut self,
        now: &mut Self::Work,
        because: Option<RetryReason>,
    ) -> Result<Self::Work, NotDispatched>;

    /// Notes that this server has it from here on, and brings what follows in this way.
    fn has_moved(&mut self, now: &mut Self::Work, way: Way);

    /// Whether it must end where it is.
    fn is_over(&self) -> bool;

    /// When it must have been answered.
    fn deadline(&self) -> Option<Instant>;

    /// Tokens of its prompts.
    fn prompt_tokens(&self) -> usize;

    /// Tokens that were generated of what has not ended.
    fn generated_tokens(&self) -> usize;

    /// Its deadline has passed.
    fn timed_out(&self) -> Self::Error;
}

/// Whether the server that has a request may get it again. One that is full or has done its part has nothing against it.
pub fn may_return(because: Option<RetryReason>) -> bool {
    matches!(because, None | Some(RetryReason::Full))
}

/// Why a request is to continue elsewhere.
#[derive(Debug)]
enum Cause<E> {
    /// Its server has failed it. What its client hears if no other takes it.
    Lost(E, RetryReason),
    /// Its server still has it.
    Notice(Notice),
    /// Its context is computed, and its server was for that alone. What its client hears if no other takes it.
    HandOver(E),
}

fn reason_of(notice: Notice) -> RetryReason {
    match notice {
        Notice::Silent => RetryReason::Silent,
        Notice::Leaving => RetryReason::Leaving,
    }
}

/// What became of a request that may continue elsewhere. `S`: the work at its next server.
#[derive(Debug)]
pub enum Step<S, E> {
    /// Its server keeps it for now.
    Stays,
    /// No server has it yet.
    Waits,
    /// Another server has it, for this reason; `None`: for what follows its context. While [`Survival::is_on_trial`], the
    /// one that had it keeps it.
    Moved(S, Option<RetryReason>),
    /// It ends.
    Failed(E),
}

/// What the client may learn in the end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// How often it continued at another server.
    pub times: u32,
    /// How often of these that generated all of it again.
    pub replayed: u32,
    /// Tokens that were computed again.
    pub tokens: usize,
    /// How long nothing came because of it.
    pub pause: Duration,
}

/// As a header, a trailer or a parameter has it.
impl std::fmt::Display for Report {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "times={}, replayed={}, tokens={}, pause-ms={}",
            self.times,
            self.replayed,
            self.tokens,
            self.pause.as_millis()
        )
    }
}

/// A server that has a request which another one still has.
#[derive(Debug)]
struct Trial {
    notice: Notice,
    /// Tokens that it computes again.
    tokens: usize,
    since: Instant,
    /// How long the other one keeps it; `None`: as long as nothing new comes.
    until: Option<Pin<Box<Sleep>>>,
}

/// A server that has the request and has brought nothing new yet. It counts once it does: one that is full, or ends as
/// well, has not continued it.
#[derive(Clone, Copy, Debug)]
struct Uncounted {
    reason: RetryReason,
    /// Tokens that it computes again.
    tokens: usize,
    /// When no server had the request.
    since: Instant,
}

/// A server that was lost without new output.
#[derive(Clone, Debug)]
struct Loss {
    life: Life,
    at: Instant,
}

impl Loss {
    fn of(life: &Life) -> Self {
        let (life, at) = (life.clone(), Instant::now());
        Self { life, at }
    }

    /// Whether the request may have ended the server, for all that is known.
    fn may_have_ended_it(&self) -> bool {
        let stayed = self.life.is_connected() && self.at.elapsed() >= MISSED_WITHIN;
        !stayed && !self.life.went_on()
    }
}

/// See the module. `E`: what the request's client reads of a failure.
#[derive(Debug)]
pub struct Survival<E> {
    way: Way,
    limits: ResumeLimits,
    metrics: Resumes,
    cause: Option<Cause<E>>,
    trial: Option<Trial>,
    /// When it began to wait for another server. Those that are full share the wait of what was before them.
    since: Option<Instant>,
    uncounted: Option<Uncounted>,
    /// When the last new output came.
    last_new: Option<Instant>,
    retry: Option<Pin<Box<Sleep>>>,
    losses: u32,
    /// Since the last new output.
    fruitless: Vec<Loss>,
    /// Whether it found no server before its first token.
    has_outlived: bool,
    /// When its context was computed, until the first output after it.
    handed_over: Option<Instant>,
    report: Report,
}

impl<E> Survival<E> {
    /// For a request that was sent.
    pub fn new(way: Way, limits: ResumeLimits, metrics: Resumes) -> Self {
        Self {
            way,
            limits,
            metrics,
            cause: None,
            trial: None,
            since: None,
            uncounted: None,
            last_new: None,
            retry: None,
            losses: 0,
            fruitless: Vec::new(),
            has_outlived: false,
            handed_over: None,
            report: Report::default(),
        }
    }

    /// How another server brings what follows.
    pub fn way(&self) -> Way {
        self.way
    }

    /// How the request continued at other servers; `None`: it did not.
    pub fn report(&self) -> Option<Report> {
        Some(self.report).filter(|report| report.times > 0)
    }

    /// Resets, as if nothing had been generated.
    pub fn restart(&mut self) {
        self.cause = None;
        self.trial = None;
        self.since = None;
        self.uncounted = None;
        self.retry = None;
        self.last_new = None;
        self.handed_over = None;
    }

    /// Whether it found no server before its first token.
    pub fn has_outlived(&self) -> bool {
        self.has_outlived
    }

    /// Notes that output came, when, and whether any of it was new.
    pub fn heard(&mut self, has_new: bool, at: Instant) {
        if has_new {
            self.fruitless.clear();
            self.end_trial();
            self.count(at);
            if let Some(since) = self.handed_over.take() {
                let took = at.saturating_duration_since(since);
                self.metrics.hand_over.observe(took.as_secs_f64());
            }
        }
        // A server that was silent has it again; one that leaves still does.
        if matches!(self.cause, Some(Cause::Notice(Notice::Silent))) {
            self.cause = None;
            self.retry = None;
        }
        if has_new && self.cause.is_none() {
            self.since = None;
        }
    }

    /// Counts the last move, which has brought something new. Its pause begins with the last output: a silent server had
    /// said nothing for a while before it was noticed.
    fn count(&mut self, at: Instant) {
        let before = self.last_new.replace(at);
        let Some(Uncounted {
            reason,
            tokens,
            since,
        }) = self.uncounted.take()
        else {
            return;
        };
        let pause = at.saturating_duration_since(before.unwrap_or(since));
        let labels = RetryLabels::from(reason);
        self.metrics.resumed.get_or_create(&labels).inc();
        self.metrics.tokens.inc_by(tokens as u64);
        self.metrics.pause.observe(pause.as_secs_f64());
        self.report.times += 1;
        self.report.replayed += u32::from(self.way == Way::Replay);
        self.report.tokens += tokens;
        self.report.pause += pause;
    }

    /// The server on trial has the request from here on.
    fn end_trial(&mut self) {
        if let Some(trial) = self.trial.take() {
            // Until then the other one had it.
            self.moved(reason_of(trial.notice), trial.tokens, trial.since);
            self.since = None;
        }
    }

    /// Whether the server that had the request before need not keep it any longer.
    pub fn poll_trial(&mut self, context: &mut Context<'_>) -> bool {
        let trial = self.trial.as_mut();
        let until = trial.and_then(|trial| trial.until.as_mut());
        let is_over = until.is_some_and(|until| until.as_mut().poll(context).is_ready());
        if is_over {
            self.end_trial();
        }
        is_over
    }

    /// Whether the server that had the request before keeps it, because this one has brought nothing new.
    pub fn is_on_trial(&self) -> bool {
        self.trial.is_some()
    }

    /// Notes that the server on trial has failed the request: the one that kept it has it again. `reason`: why another
    /// one may do better. `tried`: the server on trial.
    pub fn take_back(&mut self, reason: Option<RetryReason>, tried: &Life) {
        let Some(trial) = self.trial.take() else {
            return;
        };
        if reason != Some(RetryReason::Full) {
            self.losses += 1;
            self.fruitless.push(Loss::of(tried));
        }
        if reason.is_some() && !self.has_lost_enough() {
            self.cause = Some(Cause::Notice(trial.notice));
            self.retry = Some(Box::pin(tokio::time::sleep(RETRY_EVERY)));
        } else {
            // What the server on trial gave notice of is over with it.
            self.cause = None;
            self.since = None;
        }
    }

    fn has_lost_enough(&self) -> bool {
        let ended = self
            .fruitless
            .iter()
            .filter(|loss| loss.may_have_ended_it());
        self.losses > self.limits.most || ended.count() >= FRUITLESS
    }

    /// Notes that another server generated something else, which ends the request.
    pub fn differs(&self) {
        self.metrics.failed.inc();
    }

    /// Notes that a server has failed the request.
    ///
    /// # Errors
    /// It may not continue.
    pub fn lose(
        &mut self,
        error: E,
        reason: RetryReason,
        lost: &Life,
        is_over: bool,
    ) -> Result<(), E> {
        if is_over {
            return Err(error);
        }
        if reason == RetryReason::Full {
            // It had no part in that, and the server may have room soon.
            self.since.get_or_insert_with(Instant::now);
            self.cause = Some(Cause::Lost(error, reason));
            self.retry = Some(Box::pin(tokio::time::sleep(RETRY_EVERY)));
            return Ok(());
        }
        self.losses += 1;
        self.fruitless.push(Loss::of(lost));
        // From here on it is a request that was lost.
        self.handed_over = None;
        if self.has_lost_enough() {
            self.metrics.failed.inc();
            return Err(error);
        }
        self.begin(Cause::Lost(error, reason));
        Ok(())
    }

    /// Waits for a server after `sent` have failed the request, which has generated nothing; `lost` was the last of them.
    ///
    /// # Errors
    /// It may not continue.
    pub fn outlive(&mut self, error: E, sent: usize, lost: &Life, is_over: bool) -> Result<(), E> {
        self.has_outlived = true;
        let before = sent.saturating_sub(1);
        self.fruitless = vec![Loss::of(&Life::default()); before];
        self.lose(error, RetryReason::Unavailable, lost, is_over)
    }

    /// Notes that its context is computed, and that another server continues. `error`: what its client hears if none takes
    /// it.
    pub fn hand_over(&mut self, error: E) {
        self.begin(Cause::HandOver(error));
    }

    /// Whether the server that continues after its context has brought nothing yet.
    pub fn is_handed_over(&self) -> bool {
        self.handed_over.is_some()
    }

    /// Notes that the request should continue elsewhere.
    pub fn notice(&mut self, notice: Notice) {
        // To generate all of it again is worse than to wait for what its server still does.
        if self.way != Way::Resume {
            return;
        }
        match &mut self.cause {
            None => self.begin(Cause::Notice(notice)),
            Some(Cause::Notice(earlier)) if *earlier < notice => {
                *earlier = notice;
                self.retry = None;
            }
            Some(_) => {}
        }
    }

    fn begin(&mut self, cause: Cause<E>) {
        self.cause = Some(cause);
        self.retry = None;
        self.since = Some(Instant::now());
    }

    /// Whether the request is to continue elsewhere.
    pub fn is_due(&self) -> bool {
        self.cause.is_some()
    }

    /// Continues if a server takes the request, and looks again soon otherwise.
    pub fn poll<M: Mover<Error = E>>(
        &mut self,
        context: &mut Context<'_>,
        request: &mut M,
        now: &mut M::Work,
    ) -> Step<M::Work, E> {
        loop {
            if let Some(retry) = &mut self.retry {
                if retry.as_mut().poll(context).is_pending() {
                    return match self.cause {
                        Some(Cause::Lost(..) | Cause::HandOver(_)) => Step::Waits,
                        _ => Step::Stays,
                    };
                }
                self.retry = None;
            }
            let Some(cause) = &self.cause else {
                return Step::Stays;
            };
            let time = Instant::now();
            let (notice, lost) = match cause {
                Cause::Notice(notice) => (Some(*notice), None),
                Cause::Lost(_, reason) => (None, Some(*reason)),
                Cause::HandOver(_) => (None, None),
            };
            if notice.is_none() && request.deadline().is_some_and(|until| until <= time) {
                self.metrics.failed.inc();
                return Step::Failed(request.timed_out());
            }
            let waited = self.since.map_or(Duration::ZERO, |since| time - since);
            let tokens = request.prompt_tokens() + request.generated_tokens();
            let reason = notice.map(reason_of).or(lost);
            // What a context has computed is not computed again.
            let is_dear = reason.is_some() && tokens > self.limits.tokens;
            let wait = match reason {
                Some(_) => self.limits.wait,
                None => self.limits.wait.max(HAND_OVER),
            };
            if is_dear || waited >= wait || request.is_over() {
                return self.give_up();
            }
            match request.send(now, reason) {
                Ok(sent) => {
                    self.cause = None;
                    let Some(reason) = reason else {
                        self.handed_over = self.since.take();
                        return Step::Moved(sent, None);
                    };
                    let Some(notice) = notice else {
                        self.moved(reason, tokens, self.since.unwrap_or(time));
                        return Step::Moved(sent, Some(reason));
                    };
                    let leaves = notice == Notice::Leaving;
                    self.trial = Some(Trial {
                        notice,
                        tokens,
                        since: time,
                        until: leaves.then(|| Box::pin(tokio::time::sleep(TRIAL))),
                    });
                    return Step::Moved(sent, Some(reason));
                }
                Err(NotDispatched::NoWorker)
                    if lost.is_some()
                        && !may_return(lost)
                        && self.is_long_lost()
                        && now.server_stays() =>
                {
                    return self.give_up();
                }
                Err(NotDispatched::NoWorker | NotDispatched::Full) => {
                    self.retry = Some(Box::pin(tokio::time::sleep(RETRY_EVERY)));
                }
            }
        }
    }

    /// Whether the last loss is so long ago that a server which ended would be known to have. An earlier loss does not
    /// count, though nothing new has come since.
    fn is_long_lost(&self) -> bool {
        let last = self.fruitless.last();
        last.is_none_or(|loss| loss.at.elapsed() >= ENDING)
    }

    /// Another server has the request. The pause goes back to the first one that was lost.
    fn moved(&mut self, reason: RetryReason, tokens: usize, since: Instant) {
        self.uncounted = Some(Uncounted {
            reason,
            tokens,
            since: self.uncounted.map_or(since, |earlier| earlier.since),
        });
    }

    /// Ends what cannot continue, and leaves the rest where it is.
    fn give_up<S>(&mut self) -> Step<S, E> {
        self.since = None;
        match self.cause.take() {
            Some(Cause::Lost(error, _) | Cause::HandOver(error)) => {
                self.metrics.failed.inc();
                Step::Failed(error)
            }
            Some(Cause::Notice(_)) | None => Step::Stays,
        }
    }
}
