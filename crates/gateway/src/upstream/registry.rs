//! Which request each handle of a connection belongs to. Owns handles and the way of a server's output to
//! inboxes; knows nothing of sockets, of what the output means, or of clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use inflight_kserve::step::{FinishReason, Row, RowError, StepBatch};
use parking_lot::Mutex;
use slotmap::{Key, KeyData, SlotMap};
use tonic::Code;

use super::inbox::{DeltaDetails, Inbox};
use super::rpc;

slotmap::new_key_type! {
    /// One request at one connection. Not used again, so that late output of a cancelled request finds
    /// nothing.
    pub(crate) struct Handle;
}

impl Handle {
    /// The handle with this number.
    pub(crate) fn new(number: u64) -> Self {
        Self::from(KeyData::from_ffi(number))
    }

    /// As it travels on the wire.
    pub(crate) fn number(self) -> u64 {
        self.data().as_ffi()
    }
}

/// What one response brings to the only sequence of a handle.
#[derive(Debug)]
pub(crate) struct Answer {
    pub tokens: Vec<i32>,
    pub finish: FinishReason,
    /// Nothing more follows for the handle.
    pub last: bool,
    pub details: Option<Box<DeltaDetails>>,
}

/// Handles are searched for stalled clients at most this often.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Entry {
    inbox: Arc<Inbox>,
    /// The handle's sequence i is the request's choice `first_choice + i`.
    first_choice: u32,
    /// Sequences that are wanted; more may come.
    sequences: u32,
    /// Tokens received of each sequence.
    received: Vec<u32>,
    /// Tokens that were asked for, of each sequence.
    max_tokens: u32,
}

impl Entry {
    /// Counts a row's tokens; what is wrong with the row, if anything.
    fn count(&mut self, sequence_index: i32, tokens: usize) -> Result<u32, BadRow> {
        let sequence = u32::try_from(sequence_index);
        let sequence = sequence.map_err(|_| BadRow::Sequence)?;
        let received = self.received.get_mut(sequence as usize);
        let received = received.ok_or(BadRow::Sequence)?;
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        *received = received.saturating_add(tokens);
        if *received > self.max_tokens {
            return Err(BadRow::TooManyTokens);
        }
        Ok(sequence)
    }

    /// Ends the request with an error; returns the consumer's waker if it waits.
    fn fail(&self, code: Code, text: &str, now: Instant) -> Option<Waker> {
        let details = Some(failure(code, text));
        let reason = FinishReason::NotFinished;
        self.inbox
            .append(self.first_choice, &[], reason, true, details, now)
    }
}

/// What no row of a request may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum BadRow {
    #[error("a row has a sequence index that was not requested")]
    Sequence,
    #[error("the worker sent more tokens than were requested")]
    TooManyTokens,
}

/// What became of a step message.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Distributed {
    /// Tokens that went to open handles.
    pub tokens: u64,
    /// Handles that were failed for their rows, and whose work is still to be stopped.
    pub overrun: Vec<Handle>,
}

#[derive(Debug, Default)]
struct State {
    entries: SlotMap<Handle, Entry>,
    closed: bool,
    last_sweep: Option<Instant>,
}

/// The connection is lost: no handle can be opened on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection to the worker is closed")]
pub(crate) struct Closed;

/// The handles of one connection.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    state: Mutex<State>,
    active: AtomicUsize,
}

impl Registry {
    /// Opens a handle whose output goes to `inbox`: `max_tokens` at most for each of its sequences, which
    /// bounds what can wait there. The worker sends `spare` sequences more, which nobody wants.
    ///
    /// # Errors
    /// [`Closed`] once the connection is lost.
    pub(crate) fn open(
        &self,
        inbox: Arc<Inbox>,
        first_choice: u32,
        sequences: u32,
        spare: u32,
        max_tokens: u32,
    ) -> Result<Handle, Closed> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Closed);
        }
        let handle = state.entries.insert(Entry {
            inbox,
            first_choice,
            sequences,
            received: vec![0; sequences.saturating_add(spare) as usize],
            max_tokens,
        });
        self.active.store(state.entries.len(), Ordering::Relaxed);
        Ok(handle)
    }

    /// Forgets a handle; true if output for it could still have come.
    pub(crate) fn close_handle(&self, handle: Handle) -> bool {
        let mut state = self.state.lock();
        let was_open = state.entries.remove(handle).is_some();
        self.active.store(state.entries.len(), Ordering::Relaxed);
        was_open
    }

    /// Handles that still wait for output.
    pub(crate) fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Puts each row of a step message into its inbox and wakes each waiting consumer once. A row that its
    /// request cannot have ends the request with an error.
    pub(crate) fn distribute(&self, batch: &StepBatch, now: Instant) -> Distributed {
        let mut wakers: Vec<Waker> = Vec::new();
        let mut distributed = Distributed::default();
        {
            let mut state = self.state.lock();
            for row in batch.rows() {
                let handle = Handle::new(row.id.0);
                let Some(entry) = state.entries.get_mut(handle) else {
                    continue;
                };
                let mut ends = row.is_final;
                let waker = match entry.count(row.sequence_index, row.tokens.len()) {
                    // Not wanted; but its row may be the request's last.
                    Ok(sequence) if sequence >= entry.sequences && row.error.is_none() => {
                        let reason = FinishReason::NotFinished;
                        let end = row.is_final.then_some(entry.first_choice);
                        end.and_then(|choice| {
                            entry.inbox.append(choice, &[], reason, true, None, now)
                        })
                    }
                    Ok(sequence) => {
                        distributed.tokens += row.tokens.len() as u64;
                        entry.inbox.append(
                            entry.first_choice + sequence,
                            row.tokens,
                            row.finish_reason,
                            row.is_final,
                            details(&row),
                            now,
                        )
                    }
                    Err(bad) => {
                        if !ends {
                            distributed.overrun.push(handle);
                            ends = true;
                        }
                        entry.fail(Code::Internal, &bad.to_string(), now)
                    }
                };
                wakers.extend(waker);
                if ends {
                    state.entries.remove(handle);
                }
            }
            self.active.store(state.entries.len(), Ordering::Relaxed);
        }
        for waker in wakers {
            waker.wake();
        }
        distributed
    }

    /// Puts an answer into its inbox. Returns how many tokens went to an open handle.
    pub(crate) fn deliver(&self, handle: Handle, answer: Answer, now: Instant) -> u64 {
        let (waker, delivered) = {
            let mut state = self.state.lock();
            let Some(entry) = state.entries.get(handle) else {
                return 0;
            };
            let uncounted = answer
                .details
                .as_ref()
                .map_or(0, |details| details.generated);
            let delivered = answer.tokens.len() as u64 + u64::from(uncounted);
            let waker = entry.inbox.append(
                entry.first_choice,
                &answer.tokens,
                answer.finish,
                answer.last,
                answer.details,
                now,
            );
            if answer.last {
                state.entries.remove(handle);
                self.active.store(state.entries.len(), Ordering::Relaxed);
            }
            (waker, delivered)
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        delivered
    }

    /// Ends one handle with an error; true if output for it could still have come.
    pub(crate) fn fail(&self, handle: Handle, code: Code, text: &str, now: Instant) -> bool {
        let waker = {
            let mut state = self.state.lock();
            let Some(entry) = state.entries.remove(handle) else {
                return false;
            };
            self.active.store(state.entries.len(), Ordering::Relaxed);
            entry.fail(code, text, now)
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Ends every handle with an error and refuses new ones.
    pub(crate) fn fail_all(&self, code: Code, text: &str, now: Instant) {
        let entries = {
            let mut state = self.state.lock();
            state.closed = true;
            self.active.store(0, Ordering::Relaxed);
            std::mem::take(&mut state.entries)
        };
        for (_, entry) in entries {
            if let Some(waker) = entry.fail(code, text, now) {
                waker.wake();
            }
        }
    }

    /// Ends the handles whose client has read nothing for `patience`, and returns them so that their
    /// work is stopped. Looks at most once a second: the scan is over all handles.
    pub(crate) fn sweep_stalled(&self, now: Instant, patience: Duration) -> Vec<Handle> {
        let mut stalled = Vec::new();
        let mut wakers = Vec::new();
        {
            let mut state = self.state.lock();
            let since = |past: Instant| now.saturating_duration_since(past);
            if state
                .last_sweep
                .is_some_and(|last| since(last) < SWEEP_EVERY)
            {
                return stalled;
            }
            state.last_sweep = Some(now);
            state.entries.retain(|handle, entry| {
                let keep = entry
                    .inbox
                    .unread_since()
                    .is_none_or(|unread| since(unread) < patience);
                if !keep {
                    stalled.push(handle);
                    let text = "the client stopped reading";
                    wakers.extend(entry.fail(Code::DeadlineExceeded, text, now));
                }
                keep
            });
            self.active.store(state.entries.len(), Ordering::Relaxed);
        }
        wakers.into_iter().for_each(Waker::wake);
        stalled
    }
}

fn failure(code: Code, text: &str) -> Box<DeltaDetails> {
    Box::new(DeltaDetails {
        error: Some((code, text.to_owned())),
        ..DeltaDetails::default()
    })
}

/// What the row carries beyond tokens; the common row carries nothing.
fn details(row: &Row<'_>) -> Option<Box<DeltaDetails>> {
    if row.error.is_none()
        && row.log_probs.is_none()
        && row.top_log_probs.is_none()
        && row.cached_tokens.is_none()
        && row.prompt_log_probs.is_none()
    {
        return None;
    }
    // A worker may send megabytes, and clients may get to see it.
    let error = |error: &RowError| (error.code, rpc::abbreviated(&error.text).to_owned());
    Some(Box::new(DeltaDetails {
        error: row.error.map(error),
        retry_after_ms: row.error.map_or(0, |error| error.retry_after_ms),
        log_probs: row.log_probs.map(<[f32]>::to_vec).unwrap_or_default(),
        top_width: row.top_log_probs.map_or(0, |top| top.width),
        top_ids: row
            .top_log_probs
            .map(|top| top.ids.to_vec())
            .unwrap_or_default(),
        top_values: row
            .top_log_probs
            .map(|top| top.values.to_vec())
            .unwrap_or_default(),
        cached_tokens: row.cached_tokens,
        prompt_log_probs: row.prompt_log_probs.cloned(),
        ..DeltaDetails::default()
    }))
}

#[cfg(test)]
mod tests;
