//! The helper processes of one model's templates. Owns how many there are, who waits for one, and when a
//! template that keeps exceeding its limits is no longer tried. Knows nothing of processes or bytes.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use super::helper::{Helper, HelperCommand, Lost};
use super::{Sources, TemplateError, TemplateInput, wire};

/// Processes of one template at most, on however many cores.
const HELPERS_LIMIT: usize = 4;
/// How long to wait for a helper before another is started: a rendering is much shorter than a start.
const START_DELAY: Duration = Duration::from_millis(5);
/// Helpers that have rendered more than this are replaced: their memory does not come back.
const RETIRING_BYTES: usize = 8 << 20;
/// Conversations of up to this many bytes are rendered by every honest template far below its limits.
const SMALL_BYTES: usize = 64 << 10;
/// So many small conversations that exceed a limit, within this time, and the template is not tried for
/// as long: each costs a process and its CPU time.
const STRIKES: usize = 3;
const SUSPENSION: Duration = Duration::from_secs(60);

pub(super) struct Pool {
    command: Arc<HelperCommand>,
    sources: Sources,
    /// [`Sources`] as a frame.
    init: Result<Vec<u8>, String>,
    state: Mutex<State>,
    freed: Condvar,
    size: usize,
}

#[derive(Default)]
struct State {
    idle: Vec<Helper>,
    /// Idle, rendering or being started.
    alive: usize,
    /// When small conversations exceeded a limit; the oldest first.
    strikes: VecDeque<Instant>,
}

impl Pool {
    /// A pool without helpers yet.
    pub(super) fn new(command: Arc<HelperCommand>, sources: Sources) -> Self {
        let init = serde_json::to_value(&sources)
            .map_err(|error| error.to_string())
            .and_then(|value| wire::frame(&value).map_err(|error| error.to_string()));
        let size = available_parallelism().map_or(1, |cores| cores.get().min(HELPERS_LIMIT));
        Self {
            command,
            sources,
            init,
            state: Mutex::default(),
            freed: Condvar::new(),
            size,
        }
    }

    /// Starts the first helper, so that the first conversation need not wait for it. Where it cannot be started, the
    /// first conversation reports why.
    pub(super) fn start_first(&self) {
        if let Ok(helper) = self.start() {
            let mut state = self.lock();
            state.alive += 1;
            state.idle.push(helper);
        }
    }

    pub(super) fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Renders in one of the helpers.
    pub(super) fn render(&self, input: &TemplateInput) -> Result<String, TemplateError> {
        let frame = wire::input_frame(input)?;
        let limits = self.sources.limits;
        let mut lent = self.lend()?;
        let mut outcome = lent.helper()?.render(&frame, limits);
        if let Err(Lost::Gone(_)) = outcome {
            // It may have ended while it was idle; a fresh one has not.
            lent.helper = None;
            outcome = lent.helper()?.render(&frame, limits);
        }
        let is_lost = outcome.is_err();
        let result = outcome.unwrap_or_else(|lost| match lost {
            Lost::Limit(error) | Lost::Gone(error) => Err(error),
        });
        let rendered = result.as_ref().map_or(0, String::len).max(frame.len());
        if is_lost || rendered > RETIRING_BYTES {
            lent.helper = None;
        }
        if frame.len() <= SMALL_BYTES
            && result
                .as_ref()
                .is_err_and(|error| is_lost || error.is_limit())
        {
            self.strike();
        }
        result
    }

    /// A helper, or the right to start one.
    fn lend(&self) -> Result<Lent<'_>, TemplateError> {
        #[expect(
            clippy::disallowed_methods,
            reason = "helpers are processes, which no paused clock stops"
        )]
        let started = Instant::now();
        let mut state = self.lock();
        loop {
            state.check_strikes(started)?;
            let waited = started.elapsed();
            let helper = state.idle.pop();
            let may_start = state.alive < self.size;
            let starts = may_start && (state.alive == 0 || waited >= START_DELAY);
            if helper.is_some() || starts {
                state.alive += usize::from(starts && helper.is_none());
                return Ok(Lent { pool: self, helper });
            }
            let patience = if may_start {
                START_DELAY
            } else {
                self.sources.limits.cpu_time
            };
            if waited >= patience {
                return Err(TemplateError::Busy);
            }
            state = self
                .freed
                .wait_timeout(state, patience.saturating_sub(waited))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn start(&self) -> Result<Helper, TemplateError> {
        let init = self.init.as_ref().map_err(|reason| TemplateError::Helper {
            reason: reason.clone(),
        })?;
        Helper::start(&self.command, init, self.sources.limits)
    }

    fn strike(&self) {
        let mut state = self.lock();
        #[expect(
            clippy::disallowed_methods,
            reason = "helpers are processes, which no paused clock stops"
        )]
        state.strikes.push_back(Instant::now());
        if state.strikes.len() > STRIKES {
            state.strikes.pop_front();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn check_strikes(&self, now: Instant) -> Result<(), TemplateError> {
        let (Some(first), Some(last)) = (self.strikes.front(), self.strikes.back()) else {
            return Ok(());
        };
        let rest = (*last + SUSPENSION).saturating_duration_since(now);
        if self.strikes.len() < STRIKES || *last - *first > SUSPENSION || rest.is_zero() {
            return Ok(());
        }
        Err(TemplateError::Suspended {
            times: STRIKES,
            seconds: rest.as_secs() + 1,
        })
    }
}

/// One of the pool's places, with the helper that has it.
struct Lent<'a> {
    pool: &'a Pool,
    helper: Option<Helper>,
}

impl Lent<'_> {
    /// The helper; starts one if there is none.
    fn helper(&mut self) -> Result<&mut Helper, TemplateError> {
        let helper = match self.helper.take() {
            Some(helper) => helper,
            None => self.pool.start()?,
        };
        Ok(self.helper.insert(helper))
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        match self.helper.take() {
            Some(helper) => state.idle.push(helper),
            None => state.alive -= 1,
        }
        drop(state);
        self.pool.freed.notify_one();
    }
}
