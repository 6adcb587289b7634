//! Which request each handle of a connection belongs to. Owns handles and the way of rows to inboxes,
//! be they a step message's or a stream's of its own; knows nothing of gRPC, of what the rows mean, or of clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use inflight_kserve::step::{FinishReason, Row, StepBatch};
use parking_lot::Mutex;
use slab::Slab;

use super::triton::answer::Answer;
use crate::stream::inbox::{Inbox, RowDetails};

/// gRPC status codes that rows of our own making carry.
pub const CODE_INTERNAL: i32 = 13;
pub const CODE_UNAVAILABLE: i32 = 14;
pub const CODE_DEADLINE_EXCEEDED: i32 = 4;

/// How often the handles are looked through for stalled clients at most.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Entry {
    generation: u32,
    inbox: Arc<Inbox>,
    /// The handle's sequence i is the request's choice `first_choice + i`.
    first_choice: u32,
    sequences: u32,
}

impl Entry {
    /// Ends the request with an error row; returns the consumer's waker if it waits.
    fn fail(&self, code: i32, text: &str, now: Instant) -> Option<Waker> {
        let details = Some(failure(code, text));
        let reason = FinishReason::NotFinished;
        self.inbox
            .append(self.first_choice, &[], reason, true, details, now)
    }
}

#[derive(Debug, Default)]
struct State {
    entries: Slab<Entry>,
    generation: u32,
    closed: bool,
    last_sweep: Option<Instant>,
}

/// The connection is lost: no handle can be opened on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection to the worker is closed")]
pub struct Closed;

/// The handles of one connection.
#[derive(Debug, Default)]
pub struct Registry {
    state: Mutex<State>,
    active: AtomicUsize,
}

impl Registry {
    /// Opens a handle whose rows go to `inbox`.
    ///
    /// # Errors
    /// [`Closed`] once the connection is lost.
    pub fn open(
        &self,
        inbox: Arc<Inbox>,
        first_choice: u32,
        sequences: u32,
    ) -> Result<u64, Closed> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Closed);
        }
        // A key is used again, a handle is not: a late row of a cancelled request finds no entry.
        state.generation = state.generation.wrapping_add(1);
        let generation = state.generation;
        let key = state.entries.insert(Entry {
            generation,
            inbox,
            first_choice,
            sequences,
        });
        self.active.store(state.entries.len(), Ordering::Relaxed);
        Ok(handle(generation, key))
    }

    /// Forgets a handle; true if rows of it could still have come.
    pub fn close_handle(&self, handle: u64) -> bool {
        let mut state = self.state.lock();
        let found = find(&state.entries, handle);
        if let Some(key) = found {
            state.entries.remove(key);
            self.active.store(state.entries.len(), Ordering::Relaxed);
        }
        found.is_some()
    }

    /// Handles that still wait for rows.
    pub fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Gives each row to its inbox and wakes each waiting consumer once. Returns how many tokens went to
    /// living requests.
    pub fn distribute(&self, batch: &StepBatch, now: Instant) -> u64 {
        let mut wakers: Vec<Waker> = Vec::new();
        let mut delivered = 0u64;
        {
            let mut state = self.state.lock();
            for row in batch.rows() {
                let Some(key) = find(&state.entries, row.handle) else {
                    continue;
                };
                let Some(entry) = state.entries.get(key) else {
                    continue;
                };
                let sequence = u32::try_from(row.sequence_index)
                    .ok()
                    .filter(|&sequence| sequence < entry.sequences);
                let waker = match sequence {
                    Some(sequence) => {
                        delivered += row.tokens.len() as u64;
                        entry.inbox.append(
                            entry.first_choice + sequence,
                            row.tokens,
                            row.finish_reason,
                            row.is_final,
                            details(&row),
                            now,
                        )
                    }
                    None => entry.inbox.append(
                        entry.first_choice,
                        &[],
                        FinishReason::NotFinished,
                        row.is_final,
                        Some(failure(
                            CODE_INTERNAL,
                            "a row has a sequence index nobody asked for",
                        )),
                        now,
                    ),
                };
                wakers.extend(waker);
                if row.is_final {
                    state.entries.remove(key);
                }
            }
            self.active.store(state.entries.len(), Ordering::Relaxed);
        }
        for waker in wakers {
            waker.wake();
        }
        delivered
    }

    /// Gives an answer of a handle's only sequence to its inbox. Returns how many tokens went to a
    /// living request.
    pub fn deliver(&self, handle: u64, answer: Answer, now: Instant) -> u64 {
        let (waker, delivered) = {
            let mut state = self.state.lock();
            let Some(key) = find(&state.entries, handle) else {
                return 0;
            };
            let Some(entry) = state.entries.get(key) else {
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
                state.entries.remove(key);
                self.active.store(state.entries.len(), Ordering::Relaxed);
            }
            (waker, delivered)
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        delivered
    }

    /// Ends one handle with an error row.
    pub fn fail(&self, handle: u64, code: i32, text: &str, now: Instant) {
        let waker = {
            let mut state = self.state.lock();
            let Some(key) = find(&state.entries, handle) else {
                return;
            };
            let entry = state.entries.remove(key);
            self.active.store(state.entries.len(), Ordering::Relaxed);
            entry.fail(code, text, now)
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends every handle with an error row and refuses new ones.
    pub fn fail_all(&self, code: i32, text: &str, now: Instant) {
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
    pub fn sweep_stalled(&self, now: Instant, patience: Duration) -> Vec<u64> {
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
            state.entries.retain(|key, entry| {
                let keep = entry
                    .inbox
                    .unread_since()
                    .is_none_or(|unread| since(unread) < patience);
                if !keep {
                    stalled.push(handle(entry.generation, key));
                    let text = "the client read too slowly for too long";
                    wakers.extend(entry.fail(CODE_DEADLINE_EXCEEDED, text, now));
                }
                keep
            });
            self.active.store(state.entries.len(), Ordering::Relaxed);
        }
        wakers.into_iter().for_each(Waker::wake);
        stalled
    }
}

/// A slab's key with its entry's generation.
fn handle(generation: u32, key: usize) -> u64 {
    u64::from(generation) << 32 | (key as u64 & 0xffff_ffff)
}

fn find(entries: &Slab<Entry>, handle: u64) -> Option<usize> {
    let key = (handle & 0xffff_ffff) as usize;
    let generation = (handle >> 32) as u32;
    entries
        .get(key)
        .filter(|entry| entry.generation == generation)
        .map(|_| key)
}

fn failure(code: i32, text: &str) -> Box<RowDetails> {
    Box::new(RowDetails {
        error: Some((code, text.to_owned())),
        ..RowDetails::default()
    })
}

/// What the row carries beyond tokens; the common row carries nothing.
fn details(row: &Row<'_>) -> Option<Box<RowDetails>> {
    if row.error.is_none()
        && row.log_probs.is_none()
        && row.top_log_probs.is_none()
        && row.cached_tokens.is_none()
        && row.prompt_log_probs.is_none()
    {
        return None;
    }
    Some(Box::new(RowDetails {
        error: row.error.map(|error| (error.code, error.text.clone())),
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
        ..RowDetails::default()
    }))
}

#[cfg(test)]
mod tests;
