//! The way of a server's output to the inboxes of its requests. Rejects invalid rows; knows nothing
//! of sockets, of what the output means, or of clients.

use std::sync::Arc;
use std::task::Waker;

use inflight_kserve::step::{FinishReason, Row, RowError, StepBatch};
use tokio::time::Instant;
use tonic::Status;

use super::handles::{Handle, Handles, Waiting};
use super::inbox::{Inbox, Notice, OutputDetails};
use super::rpc;

/// The sequences of a handle.
#[derive(Debug, Default)]
pub struct Sequences {
    /// The first of them is this choice of the request, and the others follow it.
    pub first_choice: u32,
    /// How many are wanted.
    pub count: u32,
    /// How many more the server sends.
    pub spare: u32,
    /// Tokens of each at most, which bounds what can wait in an inbox.
    pub max_tokens: u32,
    /// Tokens that each had before, where the request is resumed.
    pub before: Vec<u32>,
}

/// What one response brings to the only sequence of a handle.
#[derive(Debug)]
pub struct SequenceOutput {
    pub tokens: Vec<i32>,
    pub finish: FinishReason,
    /// Nothing more follows for the handle.
    pub last: bool,
    pub details: Option<Box<OutputDetails>>,
}

/// Where the output of a handle goes.
#[derive(Debug)]
pub struct Recipient {
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

impl Recipient {
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
}

impl Waiting for Recipient {
    fn unread_since(&self) -> Option<Instant> {
        self.inbox.unread_since()
    }

    fn fail(&self, why: &Status, now: Instant) -> Option<Waker> {
        let details = Some(Box::new(OutputDetails {
            error: Some((why.code(), why.message().to_owned())),
            ..OutputDetails::default()
        }));
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
pub struct Distributed {
    /// Tokens that went to open handles.
    pub tokens: u64,
    /// Handles that were failed for their rows, and whose work is still to be stopped.
    pub overrun: Vec<Handle>,
}

/// The requests of one connection whose output goes to inboxes.
#[derive(Debug, Default)]
pub struct Registry {
    pub(super) handles: Handles<Recipient>,
}

impl Registry {
    /// Opens a handle whose output goes to `inbox`.
    ///
    /// # Errors
    /// Why the connection is lost.
    pub fn open(&self, inbox: Arc<Inbox>, sequences: Sequences) -> Result<Handle, Status> {
        let mut received = sequences.before;
        let all = sequences.count.saturating_add(sequences.spare);
        received.resize(all as usize, 0);
        self.handles.open(|_| Recipient {
            inbox,
            first_choice: sequences.first_choice,
            sequences: sequences.count,
            received,
            max_tokens: sequences.max_tokens,
        })
    }

    /// Leaves a notice for every open request.
    pub fn notify(&self, notice: Notice) {
        let mut open = self.handles.lock();
        let wakers = open.values().map(|entry| entry.inbox.notify(notice));
        let wakers: Vec<Option<Waker>> = wakers.collect();
        for waker in wakers {
            open.wake(waker);
        }
    }

    /// Puts each row of a step message into its inbox and wakes each waiting consumer once. A row that its
    /// request cannot have ends the request with an error.
    pub fn distribute(&self, batch: &StepBatch, now: Instant) -> Distributed {
        let mut distributed = Distributed::default();
        let mut open = self.handles.lock();
        for row in batch.rows() {
            let handle = Handle::new(row.id.0);
            let Some(entry) = open.get_mut(handle) else {
                continue;
            };
            let mut ends = row.is_final;
            let waker = match entry.count(row.sequence_index, row.tokens.len()) {
                // Not wanted; but its row may be the request's last.
                Ok(sequence) if sequence >= entry.sequences && row.error.is_none() => {
                    let reason = FinishReason::NotFinished;
                    let end = row.is_final.then_some(entry.first_choice);
                    end.and_then(|choice| entry.inbox.append(choice, &[], reason, true, None, now))
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
                    entry.fail(&Status::internal(bad.to_string()), now)
                }
            };
            open.wake(waker);
            if ends {
                open.remove(handle);
            }
        }
        distributed
    }

    /// Puts an answer into its inbox. Returns how many tokens went to an open handle.
    pub fn deliver(&self, handle: Handle, answer: SequenceOutput, now: Instant) -> u64 {
        let mut open = self.handles.lock();
        let Some(entry) = open.get(handle) else {
            return 0;
        };
        let details = answer.details.as_ref();
        let uncounted = details.map_or(0, |details| details.generated);
        let delivered = answer.tokens.len() as u64 + u64::from(uncounted);
        let waker = entry.inbox.append(
            entry.first_choice,
            &answer.tokens,
            answer.finish,
            answer.last,
            answer.details,
            now,
        );
        open.wake(waker);
        if answer.last {
            open.remove(handle);
        }
        delivered
    }
}

/// What the row carries beyond tokens; the common row carries nothing.
fn details(row: &Row<'_>) -> Option<Box<OutputDetails>> {
    if row.error.is_none()
        && row.log_probs.is_none()
        && row.top_log_probs.is_none()
        && row.cached_tokens.is_none()
        && row.context_phase.is_none()
        && row.prompt_log_probs.is_none()
    {
        return None;
    }
    // A worker may send megabytes, and clients may get to see it.
    let error = |error: &RowError| (error.code, rpc::abbreviated(&error.text).to_owned());
    Some(Box::new(OutputDetails {
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
        context_phase: row.context_phase.cloned(),
        prompt_log_probs: row.prompt_log_probs.cloned(),
        ..OutputDetails::default()
    }))
}

#[cfg(test)]
mod tests;
