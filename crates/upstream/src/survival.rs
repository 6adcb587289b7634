//! When a request that has begun continues at another server. Owns why it is to move, how often and how long that is
//! tried; what is sent again and how its output is read is its [`Mover`]'s. `losses` counts the servers that were
//! lost, and `moves` what is reported.
//!
//! There are two ways. A server that can resume is sent what was generated, and brings what follows. Any other one
//! gets the request anew, with the same seed; what it repeats is compared, and what is new continues.
//!
//! A server that leaves or is silent still has its requests. Another one gets such a request on trial: until it brings
//! something new, the first server keeps the request and has it again if the other fails; for a while, if it leaves. So
//! nothing is lost when a whole fleet ends at once.

mod losses;
mod moves;

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use self::losses::Losses;
pub use self::moves::Report;
use self::moves::{Move, Moves};
use super::delivery::ResumeLimits;
use super::dispatch::{Dispatched, NotDispatched};
use super::inbox::Notice;
use crate::metrics::{Resumes, RetryReason};
use crate::process::Life;

/// How long a server that leaves keeps a request that another one has. One that ends as well refuses it at once; one
/// that has much to compute first may take long, and the first should leave in time.
const TRIAL: Duration = Duration::from_secs(1);
/// How soon a request that no server takes is offered again.
const RETRY_EVERY: Duration = Duration::from_millis(50);
/// How long a request whose context is computed is offered at least: nothing was lost, and some worker has room soon.
const HAND_OVER: Duration = Duration::from_secs(1);

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

    /// Notes that this server has it from here on.
    fn has_moved(&mut self, now: &mut Self::Work);

    /// Whether it must end where it is.
    fn is_over(&self) -> bool;

    /// Tokens that were generated of what has not ended.
    fn generated_tokens(&self) -> usize;
}

/// What is known of a request that can move, from its beginning on.
#[derive(Clone, Copy, Debug)]
pub struct Movable {
    pub way: Way,
    /// Tokens of all its prompts.
    pub prompt_tokens: usize,
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

impl<E> Cause<E> {
    /// What its server gave notice of; `None`: no server has it.
    fn notice(&self) -> Option<Notice> {
        match self {
            Self::Notice(notice) => Some(*notice),
            Self::Lost(..) | Self::HandOver(_) => None,
        }
    }

    /// What is wrong with its server; `None`: nothing, its part is done.
    fn reason(&self) -> Option<RetryReason> {
        match self {
            Self::Lost(_, reason) => Some(*reason),
            Self::Notice(notice) => Some(reason_of(*notice)),
            Self::HandOver(_) => None,
        }
    }
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

/// See the module. `E`: what the request's client reads of a failure.
#[derive(Debug)]
pub struct Survival<E> {
    request: Movable,
    limits: ResumeLimits,
    cause: Option<Cause<E>>,
    trial: Option<Trial>,
    /// When it began to wait for another server. Those that are full share the wait of what was before them.
    since: Option<Instant>,
    /// When it is offered again.
    retry: Option<Pin<Box<Sleep>>>,
    losses: Losses,
    moves: Moves,
    /// Whether it found no server before its first token.
    has_outlived: bool,
}

impl<E> Survival<E> {
    /// For a request that was sent.
    pub fn new(request: Movable, limits: ResumeLimits, metrics: Resumes) -> Self {
        Self {
            request,
            limits,
            cause: None,
            trial: None,
            since: None,
            retry: None,
            losses: Losses::new(limits.most),
            moves: Moves::new(request.way == Way::Replay, metrics),
            has_outlived: false,
        }
    }

    /// How the request continued at other servers; `None`: it did not.
    pub fn report(&self) -> Option<Report> {
        self.moves.report()
    }

    /// Resets, as if nothing had been generated.
    pub fn restart(&mut self) {
        self.cause = None;
        self.trial = None;
        self.since = None;
        self.retry = None;
        self.moves.restart();
    }

    /// Whether it found no server before its first token.
    pub fn has_outlived(&self) -> bool {
        self.has_outlived
    }

    /// Notes that output came, when, and whether any of it was new.
    pub fn heard(&mut self, has_new: bool, at: Instant) {
        if has_new {
            self.losses.bear_fruit();
            self.end_trial();
            self.moves.bear_fruit(at);
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

    /// The server on trial has the request from here on.
    fn end_trial(&mut self) {
        if let Some(trial) = self.trial.take() {
            // Until then the other one had it.
            self.moves.add(Move {
                reason: reason_of(trial.notice),
                tokens: trial.tokens,
                since: trial.since,
            });
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
            self.losses.add(tried);
        }
        if reason.is_some() && !self.losses.are_enough() {
            self.cause = Some(Cause::Notice(trial.notice));
            self.retry_soon();
        } else {
            // The server on trial is gone, and with it what it gave notice of.
            self.cause = None;
            self.since = None;
        }
    }

    fn retry_soon(&mut self) {
        self.retry = Some(Box::pin(tokio::time::sleep(RETRY_EVERY)));
    }

    /// Notes that another server generated something else, which ends the request.
    pub fn differs(&self) {
        self.moves.fail();
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
            self.retry_soon();
            return Ok(());
        }
        self.losses.add(lost);
        self.moves.lose();
        if self.losses.are_enough() {
            self.moves.fail();
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
        self.losses.begin_after(sent.saturating_sub(1));
        self.lose(error, RetryReason::Unavailable, lost, is_over)
    }

    /// Notes that its context is computed, and that another server continues. `error`: what its client hears if none takes
    /// it.
    pub fn hand_over(&mut self, error: E) {
        self.begin(Cause::HandOver(error));
    }

    /// Whether the server that continues after its context has brought nothing yet.
    pub fn is_handed_over(&self) -> bool {
        self.moves.is_handed_over()
    }

    /// Notes that the request should continue elsewhere.
    pub fn notice(&mut self, notice: Notice) {
        // To generate all of it again is worse than to wait for what its server still does.
        if self.request.way != Way::Resume {
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
            let Some(cause) = &self.cause else {
                return Step::Stays;
            };
            let (reason, notice) = (cause.reason(), cause.notice());
            if let Some(retry) = &mut self.retry {
                if retry.as_mut().poll(context).is_pending() {
                    return match notice {
                        Some(_) => Step::Stays,
                        None => Step::Waits,
                    };
                }
                self.retry = None;
            }
            let time = Instant::now();
            let tokens = self.request.prompt_tokens + request.generated_tokens();
            if request.is_over() || !self.may_move(reason, tokens, time) {
                return self.give_up();
            }
            match request.send(now, reason) {
                Ok(next) => {
                    self.sent(tokens, time);
                    return Step::Moved(next, reason);
                }
                Err(NotDispatched::NoWorker) if now.server_stays() && self.is_known_to_stay() => {
                    return self.give_up();
                }
                Err(NotDispatched::NoWorker | NotDispatched::Full) => self.retry_soon(),
            }
        }
    }

    /// Whether it may still be sent to another server, which would compute so many tokens again.
    fn may_move(&self, reason: Option<RetryReason>, tokens: usize, time: Instant) -> bool {
        let waited = self.since.map_or(Duration::ZERO, |since| time - since);
        match reason {
            Some(_) => tokens <= self.limits.tokens && waited < self.limits.wait,
            // What a context has computed is not computed again.
            None => waited < self.limits.wait.max(HAND_OVER),
        }
    }

    /// Whether a server that is still there has failed it for another reason than its end.
    fn is_known_to_stay(&self) -> bool {
        let failed =
            matches!(self.cause, Some(Cause::Lost(_, reason)) if !may_return(Some(reason)));
        failed && self.losses.are_long_ago()
    }

    /// Another server has it now, and computes so many tokens again.
    fn sent(&mut self, tokens: usize, time: Instant) {
        match self.cause.take() {
            Some(Cause::Lost(_, reason)) => self.moves.add(Move {
                reason,
                tokens,
                since: self.since.unwrap_or(time),
            }),
            Some(Cause::HandOver(_)) => self.moves.hand_over(self.since.take()),
            Some(Cause::Notice(notice)) => {
                let leaves = notice == Notice::Leaving;
                self.trial = Some(Trial {
                    notice,
                    tokens,
                    since: time,
                    until: leaves.then(|| Box::pin(tokio::time::sleep(TRIAL))),
                });
            }
            None => {}
        }
    }

    /// Notes that it was given up, perhaps while it waited for a server.
    pub fn given_up(&self) {
        if matches!(self.cause, Some(Cause::Lost(..) | Cause::HandOver(_))) {
            self.moves.fail();
        }
    }

    /// Ends what cannot continue, and leaves the rest where it is.
    fn give_up<S>(&mut self) -> Step<S, E> {
        self.since = None;
        match self.cause.take() {
            Some(Cause::Lost(error, _) | Cause::HandOver(error)) => {
                self.moves.fail();
                Step::Failed(error)
            }
            Some(Cause::Notice(_)) | None => Step::Stays,
        }
    }
}

#[cfg(test)]
mod tests;
