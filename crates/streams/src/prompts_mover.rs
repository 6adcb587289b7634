//! How a request that has begun continues at another worker, from the token where it was. Owns what its choices have
//! generated; when it moves is `upstream`'s, and what is sent again is [`Origin`]'s. The choices notice
//! neither.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use inflight_openai::ApiError;
use inflight_upstream::connection::Connection;
use inflight_upstream::dispatch::{Dispatched, NotDispatched};
use inflight_upstream::ending::Ending;
use inflight_upstream::inbox::OutputDetails;
use inflight_upstream::metrics::RetryReason;
use inflight_upstream::phases::Phases;
use inflight_upstream::survival::{Mover, Report, Way, may_return};
use inflight_upstream::transcript::Differs;

use super::generated::{Generated, New};

/// Says that an answer continued at another worker: in a header of an answer in one piece, behind a stream as a trailer.
const RESUMED: HeaderName = HeaderName::from_static("x-inflight-resumed");

/// What is said of an answer that continued, as headers or trailers.
pub fn noted(report: Report) -> HeaderMap {
    let value = HeaderValue::from_str(&report.to_string());
    value.map(|value| (RESUMED, value)).into_iter().collect()
}

/// What a request continues with at another worker.
#[derive(Clone, Copy)]
pub struct Progress<'a> {
    pub way: Way,
    /// What does not get it again.
    pub without: Option<&'a Connection>,
    /// What was wrong with the worker that had it; `None`: nothing, its part is done.
    pub because: Option<RetryReason>,
    /// What each choice has generated; `None`: it has ended.
    pub generated: &'a [Option<&'a [i32]>],
    pub phases: Phases<'a>,
}

type SendAgain = dyn Fn(Progress<'_>) -> Result<Dispatched, NotDispatched> + Send + Sync;

/// Where a request came from, so that it can be sent again.
pub struct Origin {
    /// How another worker brings what follows.
    pub way: Way,
    /// Sends it to a worker.
    pub send: Box<SendAgain>,
    /// The shutdown from which it ends where it is.
    pub ending: Ending,
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origin").finish_non_exhaustive()
    }
}

/// See the module.
#[derive(Debug)]
pub struct PromptsMover {
    origin: Origin,
    /// Of each choice.
    generated: Vec<Generated>,
    /// Whether what came last has something new.
    has_new: bool,
    /// What its context left, until another worker has it.
    context_phase: Option<Bytes>,
}

impl PromptsMover {
    /// For a request of so many choices that was sent.
    pub fn new(origin: Origin, choices: usize) -> Self {
        let generated = std::iter::repeat_with(Generated::default);
        Self {
            origin,
            generated: generated.take(choices).collect(),
            has_new: false,
            context_phase: None,
        }
    }

    /// Resets, as if nothing had been generated.
    pub(super) fn restart(&mut self) {
        self.generated.fill_with(Generated::default);
        self.context_phase = None;
    }

    /// Notes what its context left for the worker that continues.
    pub(super) fn leave(&mut self, params: Bytes) {
        self.context_phase = Some(params);
    }

    /// Takes a row of a choice, and returns what of it is new; `None`: all of it.
    ///
    /// # Errors
    /// It is not what an earlier worker generated.
    pub(super) fn take<'a>(
        &mut self,
        choice: usize,
        tokens: &'a [i32],
        details: Option<&OutputDetails>,
        is_last: bool,
    ) -> Result<Option<New<'a>>, Differs> {
        let Some(own) = self.generated.get_mut(choice) else {
            return Ok(None);
        };
        if own.append(tokens, details) {
            self.has_new = true;
            return Ok(None);
        }
        let new = own.take(tokens, details, is_last)?;
        // An end is new, whatever it comes with.
        self.has_new |= is_last || !new.is_repeated;
        Ok(Some(new))
    }

    /// Notes that a choice has ended, and has nothing to continue with.
    pub(super) fn ended(&mut self, choice: usize) {
        if let Some(own) = self.generated.get_mut(choice) {
            own.end();
        }
    }

    /// Whether a choice has generated something.
    pub(super) fn has_begun(&self) -> bool {
        self.generated.iter().any(|own| !own.is_empty())
    }

    /// Whether something new came since the last call.
    pub(super) fn take_new(&mut self) -> bool {
        std::mem::take(&mut self.has_new)
    }

    /// Which handles have counted their prompts, at the worker that has the request or before.
    fn counted(&self, now: &Dispatched) -> Vec<bool> {
        let groups = self.generated.chunks(now.handles.sequences().max(1));
        let has_begun = |group: &[Generated]| group.iter().any(|own| !own.is_empty());
        let was_counted = |group| now.counted.get(group) == Some(&true);
        groups
            .enumerate()
            .map(|(group, own)| has_begun(own) || was_counted(group))
            .collect()
    }
}

impl Mover for PromptsMover {
    type Error = ApiError;
    type Work = Dispatched;

    fn send(
        &mut self,
        now: &mut Dispatched,
        because: Option<RetryReason>,
    ) -> Result<Dispatched, NotDispatched> {
        let generated: Vec<_> = self.generated.iter().map(Generated::running).collect();
        let send = |phases| {
            (self.origin.send)(Progress {
                way: self.origin.way,
                without: Some(&**now.handles.connection()).filter(|_| !may_return(because)),
                because,
                generated: &generated,
                phases,
            })
        };
        let sent = match &self.context_phase {
            // A worker that cannot continue from its context computes it again.
            Some(params) => send(Phases::Generation(params)).or_else(|_| send(Phases::Both)),
            None => send(Phases::Both),
        }?;
        // Once: where that fails, its blocks may be gone.
        self.context_phase = None;
        Ok(Dispatched {
            counted: self.counted(now),
            ..sent
        })
    }

    fn has_moved(&mut self, _: &mut Dispatched) {
        if self.origin.way == Way::Replay {
            self.generated.iter_mut().for_each(Generated::replay);
        }
    }

    fn is_over(&self) -> bool {
        self.origin.ending.has_begun()
    }

    fn generated_tokens(&self) -> usize {
        let running = self.generated.iter().filter_map(Generated::running);
        running.map(<[i32]>::len).sum()
    }
}
