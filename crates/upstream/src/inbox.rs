//! Where a server's output for one client request waits to be read. Owns the buffer between the
//! connection's reader and the response body; knows nothing of text, HTTP or protobuf.
//!
//! The reader appends under a lock that is uncontended but for a swap; the consumer swaps the filled
//! outputs with its own empty ones, so buffers are reused and a token costs four bytes and no
//! allocation. What can pile up is bounded by the request's own max_tokens times its choices. A consumer
//! that only needs the whole is woken at the end, and has what came until then when its server is lost.

use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use inflight_kserve::step::{FinishReason, PromptLogProbs};
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::Code;

/// What few outputs carry, boxed so that the others stay small.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutputDetails {
    /// The request failed, and why.
    pub error: Option<(Code, String)>,
    /// When a retry of the failed request may succeed; 0: not known.
    pub retry_after_ms: u32,
    /// One per token of the delta, or empty.
    pub log_probs: Vec<f32>,
    /// Alternatives per token; `top_ids` and `top_values` hold tokens × width, best first.
    pub top_width: usize,
    pub top_ids: Vec<i32>,
    pub top_values: Vec<f32>,
    /// Prompt tokens served from the KV cache.
    pub cached_tokens: Option<u32>,
    /// What its context phase left for the server that generates.
    pub context_phase: Option<Bytes>,
    pub prompt_log_probs: Option<PromptLogProbs>,
    /// From a model that answers in text: the new text, and how many tokens it is.
    pub text: Option<String>,
    pub generated: u32,
    /// Tokens of the prompt, where the server counts them.
    pub prompt_tokens: Option<u32>,
}

/// New output of one choice.
#[derive(Clone, Debug, PartialEq)]
pub struct ChoiceOutput {
    pub choice: u32,
    /// The output's tokens end here in [`ChoiceOutputs::tokens`]; they begin where the output before ended.
    pub tokens_end: usize,
    pub finish: FinishReason,
    /// Nothing more follows for the handle.
    pub last_of_handle: bool,
    pub details: Option<Box<OutputDetails>>,
}

/// Outputs and their tokens, in order of arrival.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChoiceOutputs {
    pub list: Vec<ChoiceOutput>,
    pub tokens: Vec<i32>,
}

impl ChoiceOutputs {
    /// Empties both and keeps their memory.
    pub fn clear(&mut self) {
        self.list.clear();
        self.tokens.clear();
    }

    fn push(
        &mut self,
        choice: u32,
        tokens: &[i32],
        finish: FinishReason,
        last_of_handle: bool,
        details: Option<Box<OutputDetails>>,
    ) {
        self.tokens.extend_from_slice(tokens);
        let tokens_end = self.tokens.len();
        // Outputs that wait together become one; their tokens stay apart.
        if details.is_none()
            && let Some(last) = self.list.last_mut()
            && last.choice == choice
            && last.finish == FinishReason::NotFinished
            && last.details.is_none()
        {
            last.tokens_end = tokens_end;
            last.finish = finish;
            last.last_of_handle = last_of_handle;
            return;
        }
        self.list.push(ChoiceOutput {
            choice,
            tokens_end,
            finish,
            last_of_handle,
            details,
        });
    }
}

/// Why a request should continue elsewhere, though its server still has it. The later one holds whatever becomes of the
/// one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notice {
    /// The server has stopped answering.
    Silent,
    /// The server is about to end.
    Leaving,
}

/// What a consumer was woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// When the oldest delta came; `None`: there is none.
    pub at: Option<Instant>,
    pub notice: Option<Notice>,
}

#[derive(Debug, Default)]
struct State {
    outputs: ChoiceOutputs,
    notice: Option<Notice>,
    waker: Option<Waker>,
    /// When the oldest unread delta arrived; the newest where it gathers.
    unread_since: Option<Instant>,
    /// Whether the consumer is woken only for what ends a choice or a handle.
    gathers: bool,
}

/// Output on its way to one client.
#[derive(Debug, Default)]
pub struct Inbox {
    state: Mutex<State>,
}

impl Inbox {
    /// Appends a delta. Returns the consumer's waker if it waits, to be woken once the whole message is
    /// distributed.
    pub fn append(
        &self,
        choice: u32,
        tokens: &[i32],
        finish: FinishReason,
        last_of_handle: bool,
        details: Option<Box<OutputDetails>>,
        now: Instant,
    ) -> Option<Waker> {
        let mut state = self.state.lock();
        let has_failed = details.as_ref().is_some_and(|it| it.error.is_some());
        let ends = last_of_handle || has_failed || finish != FinishReason::NotFinished;
        state
            .outputs
            .push(choice, tokens, finish, last_of_handle, details);
        if state.gathers {
            state.unread_since = Some(now);
            return state.waker.take_if(|_| ends);
        }
        state.unread_since.get_or_insert(now);
        state.waker.take()
    }

    /// From now on, wakes the consumer only for what ends a choice or a handle, and for notices.
    pub fn gather(&self) {
        self.state.lock().gathers = true;
    }

    /// Leaves a notice behind what waits. Returns the consumer's waker if it waits.
    pub fn notify(&self, notice: Notice) -> Option<Waker> {
        let mut state = self.state.lock();
        state.notice = state.notice.max(Some(notice));
        state.waker.take()
    }

    /// Moves everything unread into `into`, which must be empty, or registers the task to be woken.
    pub fn poll_take(&self, context: &mut Context<'_>, into: &mut ChoiceOutputs) -> Poll<Arrived> {
        let mut state = self.state.lock();
        let notice = state.notice.take();
        if state.outputs.list.is_empty() {
            if notice.is_some() {
                return Poll::Ready(Arrived { at: None, notice });
            }
            match &mut state.waker {
                Some(waker) => waker.clone_from(context.waker()),
                empty => *empty = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        let at = state.unread_since.take();
        std::mem::swap(&mut state.outputs, into);
        Poll::Ready(Arrived { at, notice })
    }

    /// When the oldest unread delta arrived; `None` when all is read, or nobody means to read it yet.
    pub fn unread_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        state.unread_since.filter(|_| !state.gathers)
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
    fn outputs_of_one_choice_that_wait_together_become_one() {
        let inbox = Inbox::default();
        let now = Instant::now();
        for token in [1, 2, 3] {
            inbox.append(0, &[token], FinishReason::NotFinished, false, None, now);
        }
        inbox.append(1, &[9], FinishReason::NotFinished, false, None, now);
        inbox.append(0, &[4], FinishReason::Length, true, None, now);
        assert_eq!(inbox.unread_since(), Some(now));
        let mut outputs = ChoiceOutputs::default();
        let waker = Waker::noop();
        assert!(
            inbox
                .poll_take(&mut Context::from_waker(waker), &mut outputs)
                .is_ready()
        );
        let ends: Vec<_> = outputs
            .list
            .iter()
            .map(|delta| (delta.choice, delta.tokens_end))
            .collect();
        assert_eq!(ends, [(0, 3), (1, 4), (0, 5)]);
        assert_eq!(outputs.tokens, [1, 2, 3, 9, 4]);
        assert_eq!(inbox.unread_since(), None);
    }

    #[test]
    fn a_consumer_of_the_whole_is_woken_at_the_end_and_has_not_stalled_until_then() {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        let mut outputs = ChoiceOutputs::default();
        let inbox = Inbox::default();
        inbox.gather();
        assert!(inbox.poll_take(&mut context, &mut outputs).is_pending());
        let first = Instant::now();
        let later = first + std::time::Duration::from_secs(1);
        let open = FinishReason::NotFinished;
        for (token, now) in [(1, first), (2, later)] {
            assert!(inbox.append(0, &[token], open, false, None, now).is_none());
        }
        assert_eq!(inbox.unread_since(), None);
        let error = Some(Box::new(OutputDetails {
            error: Some((Code::Unavailable, String::new())),
            ..OutputDetails::default()
        }));
        assert!(inbox.append(0, &[], open, false, error, later).is_some());
        let arrived = Arrived {
            at: Some(later),
            notice: None,
        };
        let taken = inbox.poll_take(&mut context, &mut outputs);
        assert_eq!(taken, Poll::Ready(arrived));
        assert_eq!(outputs.tokens, [1, 2]);
        for (finish, last) in [(FinishReason::EndId, false), (open, true)] {
            outputs.clear();
            assert!(inbox.poll_take(&mut context, &mut outputs).is_pending());
            assert!(inbox.append(0, &[3], finish, last, None, later).is_some());
            assert!(inbox.poll_take(&mut context, &mut outputs).is_ready());
        }
        outputs.clear();
        assert!(inbox.poll_take(&mut context, &mut outputs).is_pending());
        assert!(inbox.notify(Notice::Leaving).is_some());
    }

    #[test]
    fn a_notice_comes_once_and_behind_what_waited() {
        let inbox = Inbox::default();
        let now = Instant::now();
        let mut context = Context::from_waker(Waker::noop());
        let mut outputs = ChoiceOutputs::default();
        let mut take = || {
            outputs.clear();
            inbox.poll_take(&mut context, &mut outputs)
        };
        inbox.append(0, &[1], FinishReason::NotFinished, false, None, now);
        inbox.notify(Notice::Leaving);
        let notice = Some(Notice::Leaving);
        let at = Some(now);
        assert_eq!(take(), Poll::Ready(Arrived { at, notice }));
        assert_eq!(take(), Poll::Pending);
        inbox.notify(Notice::Leaving);
        assert_eq!(take(), Poll::Ready(Arrived { at: None, notice }));
        assert_eq!(take(), Poll::Pending);
        // One that leaves does so whether it answers or not.
        for both in [
            [Notice::Leaving, Notice::Silent],
            [Notice::Silent, Notice::Leaving],
        ] {
            for notice in both {
                inbox.notify(notice);
            }
            assert_eq!(take(), Poll::Ready(Arrived { at: None, notice }));
        }
    }

    #[test]
    fn a_waiting_consumer_is_woken_once() {
        let inbox = Inbox::default();
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let mut outputs = ChoiceOutputs::default();
        let mut context = Context::from_waker(&waker);
        assert!(inbox.poll_take(&mut context, &mut outputs).is_pending());
        assert!(inbox.poll_take(&mut context, &mut outputs).is_pending());
        let now = Instant::now();
        for token in [1, 2] {
            if let Some(waker) =
                inbox.append(0, &[token], FinishReason::NotFinished, false, None, now)
            {
                waker.wake();
            }
        }
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(inbox.poll_take(&mut context, &mut outputs).is_ready());
        assert_eq!(outputs.tokens, [1, 2]);
    }
}
