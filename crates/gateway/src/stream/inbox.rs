//! The meeting point of one client request and the worker's rows. Owns the buffer between the
//! connection's reader and the response body; knows nothing of text, HTTP or protobuf.
//!
//! The reader appends under a lock that is uncontended but for a swap; the consumer swaps the filled
//! columns with its own empty ones, so buffers are reused and a token costs four bytes and no
//! allocation. What can pile up is bounded by the request's own max_tokens times its choices.

use std::task::{Context, Poll, Waker};
use std::time::Instant;

use inflight_kserve::step::{FinishReason, PromptLogProbs};
use parking_lot::Mutex;

/// What few rows carry, kept out of the way of those that do not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowDetails {
    /// gRPC status code and text: the request failed.
    pub error: Option<(i32, String)>,
    /// One per token of the row, or empty.
    pub log_probs: Vec<f32>,
    /// Alternatives per token; `top_ids` and `top_values` hold tokens × width, best first.
    pub top_width: usize,
    pub top_ids: Vec<i32>,
    pub top_values: Vec<f32>,
    /// Prompt tokens served from the KV cache.
    pub cached_tokens: Option<u32>,
    pub prompt_log_probs: Option<PromptLogProbs>,
    /// From a model that answers in text: what it says, and how many tokens that is.
    pub text: Option<String>,
    pub generated: u32,
    /// Tokens of the prompt, where the server counts them.
    pub prompt_tokens: Option<u32>,
}

/// New output of one choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub choice: u32,
    /// The row's tokens end here in [`Columns::tokens`]; they begin where the row before ended.
    pub tokens_end: usize,
    pub finish: FinishReason,
    /// No further row of this row's handle follows.
    pub last_of_handle: bool,
    pub details: Option<Box<RowDetails>>,
}

/// Rows and their tokens, in order of arrival.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Columns {
    pub rows: Vec<Row>,
    pub tokens: Vec<i32>,
}

impl Columns {
    /// Empties the columns and keeps their memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.tokens.clear();
    }

    fn push(
        &mut self,
        choice: u32,
        tokens: &[i32],
        finish: FinishReason,
        last_of_handle: bool,
        details: Option<Box<RowDetails>>,
    ) {
        self.tokens.extend_from_slice(tokens);
        let tokens_end = self.tokens.len();
        // A client that is behind gets one longer row instead of many short ones.
        if details.is_none()
            && let Some(last) = self.rows.last_mut()
            && last.choice == choice
            && last.finish == FinishReason::NotFinished
            && last.details.is_none()
        {
            last.tokens_end = tokens_end;
            last.finish = finish;
            last.last_of_handle = last_of_handle;
            return;
        }
        self.rows.push(Row {
            choice,
            tokens_end,
            finish,
            last_of_handle,
            details,
        });
    }
}

#[derive(Debug, Default)]
struct State {
    columns: Columns,
    waker: Option<Waker>,
    /// When the oldest unread row arrived.
    unread_since: Option<Instant>,
}

/// Rows on their way to one client.
#[derive(Debug, Default)]
pub struct Inbox {
    state: Mutex<State>,
}

impl Inbox {
    /// Appends a row; returns the consumer's waker if it waits, to be woken once the whole message is
    /// distributed.
    pub fn append(
        &self,
        choice: u32,
        tokens: &[i32],
        finish: FinishReason,
        last_of_handle: bool,
        details: Option<Box<RowDetails>>,
        now: Instant,
    ) -> Option<Waker> {
        let mut state = self.state.lock();
        state
            .columns
            .push(choice, tokens, finish, last_of_handle, details);
        state.unread_since.get_or_insert(now);
        state.waker.take()
    }

    /// Moves everything unread into `into`, which must be empty, or registers the task to be woken.
    pub fn poll_take(&self, context: &mut Context<'_>, into: &mut Columns) -> Poll<()> {
        let mut state = self.state.lock();
        if state.columns.rows.is_empty() {
            match &mut state.waker {
                Some(waker) => waker.clone_from(context.waker()),
                empty => *empty = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        state.unread_since = None;
        std::mem::swap(&mut state.columns, into);
        Poll::Ready(())
    }

    /// When the oldest unread row arrived; `None` when all is read.
    pub fn unread_since(&self) -> Option<Instant> {
        self.state.lock().unread_since
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn rows_ready_together_of_one_choice_become_one() {
        let inbox = Inbox::default();
        let now = Instant::now();
        for token in [1, 2, 3] {
            inbox.append(0, &[token], FinishReason::NotFinished, false, None, now);
        }
        inbox.append(1, &[9], FinishReason::NotFinished, false, None, now);
        inbox.append(0, &[4], FinishReason::Length, true, None, now);
        assert_eq!(inbox.unread_since(), Some(now));
        let mut columns = Columns::default();
        let waker = Waker::noop();
        assert!(
            inbox
                .poll_take(&mut Context::from_waker(waker), &mut columns)
                .is_ready()
        );
        let ends: Vec<_> = columns
            .rows
            .iter()
            .map(|row| (row.choice, row.tokens_end))
            .collect();
        assert_eq!(ends, [(0, 3), (1, 4), (0, 5)]);
        assert_eq!(columns.tokens, [1, 2, 3, 9, 4]);
        assert_eq!(inbox.unread_since(), None);
    }

    #[test]
    fn a_waiting_consumer_is_woken_once() {
        let inbox = Inbox::default();
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let mut columns = Columns::default();
        let mut context = Context::from_waker(&waker);
        assert!(inbox.poll_take(&mut context, &mut columns).is_pending());
        assert!(inbox.poll_take(&mut context, &mut columns).is_pending());
        let now = Instant::now();
        for token in [1, 2] {
            if let Some(waker) =
                inbox.append(0, &[token], FinishReason::NotFinished, false, None, now)
            {
                waker.wake();
            }
        }
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(inbox.poll_take(&mut context, &mut columns).is_ready());
        assert_eq!(columns.tokens, [1, 2]);
    }
}
