//! A batch that this process runs: its lines on their way from the store to their results. Owns which are waiting, which
//! run and which are to be kept; knows nothing of other batches.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use inflight_base::wall_clock::unix_seconds;
use inflight_batches::{
    BatchId, Claim, Close, Done, Outcome, Status, Store, StoreError, Usage, Work, output_line,
};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::line::{self, LineResponse, Next};
use crate::batches::Batches;
use crate::metrics::LineEnd;
use crate::state::AppState;

/// Lines that are read from the store at once, and their bytes.
const READ: usize = 32;
const READ_BYTES: usize = 4 << 20;
/// With fewer left, the next are read.
const FEW: usize = READ / 2;
/// How long what the store could not do waits.
const PAUSE: Duration = Duration::from_secs(5);
/// Lines that wait to be tried again; beyond, no others are begun.
const MOST_LATER: usize = 64;

/// A line before its result.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) work: Work,
    /// How often it was tried in vain.
    tries: u32,
}

/// What a task of a batch came to.
#[derive(Debug)]
pub(super) enum Ran {
    Line {
        batch: BatchId,
        line: Waiting,
        answer: LineResponse,
    },
    Imported {
        batch: BatchId,
        result: Result<bool, StoreError>,
    },
    /// Lines after the one with this number.
    Read {
        batch: BatchId,
        after: i64,
        result: Result<Vec<Work>, StoreError>,
    },
    Closed {
        batch: BatchId,
        result: Result<(), StoreError>,
    },
}

impl Ran {
    pub(super) fn batch(&self) -> BatchId {
        match self {
            Self::Line { batch, .. }
            | Self::Imported { batch, .. }
            | Self::Read { batch, .. }
            | Self::Closed { batch, .. } => *batch,
        }
    }

    /// Whether the batch has ended, or is another's.
    pub(super) fn is_end(&self) -> bool {
        matches!(
            self,
            Self::Closed {
                result: Ok(()) | Err(StoreError::LeaseLost),
                ..
            }
        )
    }
}

/// See the module. What still runs is broken off when this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) claim: Claim,
    waiting: VecDeque<Waiting>,
    /// To be tried again, and when.
    later: Vec<(Instant, Waiting)>,
    /// The last line that was read from the store.
    read: i64,
    is_read_out: bool,
    running: HashMap<i64, AbortHandle>,
    /// What reads lines from the store.
    reading: Option<AbortHandle>,
    /// What begins or ends the batch: nothing else is done meanwhile.
    changing: Option<AbortHandle>,
    /// The store is not asked before.
    not_before: Instant,
    /// Results that are not yet kept.
    done: Vec<Done>,
    /// Those that are being written.
    writing: Arc<Vec<Done>>,
}

impl Held {
    pub(super) fn new(claim: Claim) -> Self {
        Self {
            claim,
            waiting: VecDeque::new(),
            later: Vec::new(),
            read: 0,
            is_read_out: false,
            running: HashMap::new(),
            reading: None,
            changing: None,
            not_before: Instant::now(),
            done: Vec::new(),
            writing: Arc::default(),
        }
    }

    pub(super) fn id(&self) -> BatchId {
        self.claim.batch.id
    }

    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    /// Has its lines read from its file, unless they are being read.
    pub(super) fn import(&mut self, batches: &Arc<Batches>, tasks: &mut JoinSet<Ran>) {
        if self.changing.is_some() || Instant::now() < self.not_before {
            return;
        }
        let (claim, batches) = (self.claim.clone(), Arc::clone(batches));
        self.changing = Some(tasks.spawn(async move {
            let batch = claim.batch.id;
            let now = unix_seconds();
            let result = batches.run(move |store| store.import(&claim, now)).await;
            batches.wake();
            Ran::Imported { batch, result }
        }));
    }

    /// Has the batch ended, unless it is being ended. What runs is broken off.
    pub(super) fn close(&mut self, batches: &Arc<Batches>, why: Close, tasks: &mut JoinSet<Ran>) {
        self.stop_lines();
        if self.changing.is_some() || Instant::now() < self.not_before {
            return;
        }
        let (claim, batches) = (self.claim.clone(), Arc::clone(batches));
        self.changing = Some(tasks.spawn(async move {
            let batch = claim.batch.id;
            let now = unix_seconds();
            let close = move |store: &Store| store.close(&claim, why, now);
            let result = batches.run(close).await;
            if result.is_ok() {
                tracing::info!(%batch, ?why, "a batch has ended");
            }
            Ran::Closed { batch, result }
        }));
    }

    fn stop_lines(&mut self) {
        for (_, task) in self.running.drain() {
            task.abort();
        }
        if let Some(task) = self.reading.take() {
            task.abort();
        }
        self.waiting.clear();
        self.later.clear();
        self.done.clear();
        self.writing = Arc::default();
    }

    /// The next line to begin; `None`: there is none now.
    pub(super) fn next(
        &mut self,
        batches: &Arc<Batches>,
        tasks: &mut JoinSet<Ran>,
        now: Instant,
    ) -> Option<Waiting> {
        // Results that cannot be kept are not added to.
        let is_ready = self.changing.is_none() && self.claim.batch.status == Status::InProgress;
        if !is_ready || !self.writing.is_empty() {
            return None;
        }
        if let Some(place) = self.later.iter().position(|(at, _)| *at <= now) {
            return Some(self.later.swap_remove(place).1);
        }
        self.read(batches, tasks, now);
        let line = self.waiting.pop_front();
        let is_idle = self.running.is_empty() && self.later.is_empty() && self.done.is_empty();
        if line.is_none() && is_idle && self.is_read_out {
            // Whatever has no result is read again.
            (self.read, self.is_read_out) = (0, false);
        }
        line
    }

    /// Has more lines read, if few are left.
    fn read(&mut self, batches: &Arc<Batches>, tasks: &mut JoinSet<Ran>, now: Instant) {
        let is_wanted = self.waiting.len() < FEW && self.later.len() < MOST_LATER;
        let is_read = self.reading.is_some() || self.is_read_out || now < self.not_before;
        if !is_wanted || is_read {
            return;
        }
        let (claim, batches, after) = (self.claim.clone(), Arc::clone(batches), self.read);
        self.reading = Some(tasks.spawn(async move {
            let batch = claim.batch.id;
            let read = move |store: &Store| store.waiting(&claim, after, READ, READ_BYTES);
            let result = batches.run(read).await;
            Ran::Read {
                batch,
                after,
                result,
            }
        }));
    }

    /// The store could not do something: it is asked again later.
    fn pause(&mut self, error: &StoreError, now: Instant) {
        super::failed(error);
        self.not_before = now + PAUSE;
    }

    /// Has a line tried again, from `at` on.
    pub(super) fn later(&mut self, line: Waiting, at: Instant) {
        self.later.push((at, line));
    }

    /// Runs a line.
    pub(super) fn run(
        &mut self,
        state: &Arc<AppState>,
        request: line::Request,
        line: Waiting,
        tasks: &mut JoinSet<Ran>,
    ) {
        let (batch, number, state) = (self.id(), line.work.number, Arc::clone(state));
        let task = tasks.spawn(async move {
            let answer = line::run(&state, request, &line.work.body).await;
            Ran::Line {
                batch,
                line,
                answer,
            }
        });
        self.running.insert(number, task);
    }

    /// Takes what a task came to, and says how a line ended.
    pub(super) fn take(&mut self, ran: Ran, now: Instant) -> Option<LineEnd> {
        match ran {
            Ran::Imported { batch, result } => {
                self.changing = None;
                match result {
                    // The next look at the store shows what it is now.
                    Ok(true) => tracing::info!(%batch, "a batch begins"),
                    Ok(false) => tracing::info!(%batch, "a batch has lines that are no requests"),
                    Err(error) => self.pause(&error, now),
                }
                None
            }
            // One that was asked for before the batch was lost and came back is not wanted.
            Ran::Read { after, .. } if self.reading.is_none() || after != self.read => None,
            Ran::Read { result, .. } => {
                self.reading = None;
                match result {
                    Ok(read) => {
                        self.is_read_out = read.is_empty();
                        self.read = read.last().map_or(self.read, |work| work.number);
                        let read = read.into_iter().map(|work| Waiting { work, tries: 0 });
                        self.waiting.extend(read);
                    }
                    Err(error) => self.pause(&error, now),
                }
                None
            }
            Ran::Closed { result, .. } => {
                self.changing = None;
                if let Err(error) = result {
                    self.pause(&error, now);
                }
                None
            }
            Ran::Line {
                mut line, answer, ..
            } => {
                self.running.remove(&line.work.number);
                match line::next(&answer, line.tries) {
                    Next::Again { after, counts } => {
                        line.tries += u32::from(counts);
                        self.later(line, now + after);
                        Some(LineEnd::Again)
                    }
                    Next::Keep => {
                        let done = self.result(&line.work, &answer);
                        let end = match done.succeeded {
                            true => LineEnd::Succeeded,
                            false => LineEnd::Failed,
                        };
                        self.done.push(done);
                        Some(end)
                    }
                }
            }
        }
    }

    fn result(&self, work: &Work, answer: &LineResponse) -> Done {
        let outcome = Outcome {
            status: answer.status,
            request_id: &answer.request_id,
            body: &answer.body,
        };
        let dialect = self.claim.batch.dialect;
        Done {
            number: work.number,
            succeeded: outcome.is_success(),
            result: output_line(dialect, &work.custom_id, &outcome),
            usage: Usage::of_answer(answer.body.get().as_bytes()),
        }
    }

    /// Results to keep; `None`: there are none.
    pub(super) fn results(&mut self) -> Option<Arc<Vec<Done>>> {
        if !self.done.is_empty() {
            let mut all = std::mem::take(&mut self.writing);
            Arc::make_mut(&mut all).append(&mut self.done);
            self.writing = all;
        }
        (!self.writing.is_empty()).then(|| Arc::clone(&self.writing))
    }

    /// They are kept.
    pub(super) fn recorded(&mut self) {
        self.writing = Arc::default();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let others = self.reading.iter().chain(&self.changing);
        for task in self.running.values().chain(others) {
            task.abort();
        }
    }
}
