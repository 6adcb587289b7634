//! Where the responses to one request of a shared stream wait for its client. Owns their bounds. The first few wait
//! as they came, each a slice of the buffer it was read into. The others, of a client that is behind, are copied, and
//! all copies of a stream share one limit.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use inflight_kserve::streamed::EncodedResponse;
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::Status;

/// Responses of a request that wait as they came.
const FREE: usize = 64;
/// Bytes of the others that may wait, of all requests of a stream.
const MAX_BACKLOG: usize = 64 << 20;

/// Clients read too slowly for what waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client reads too slowly; more than {MAX_BACKLOG} bytes wait for clients like it")]
pub(super) struct Full;

impl From<Full> for Status {
    fn from(full: Full) -> Self {
        Self::resource_exhausted(full.to_string())
    }
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<EncodedResponse>,
    /// Bytes of those that were copied.
    detached: usize,
    waker: Option<Waker>,
    /// When the oldest of them came.
    unread_since: Option<Instant>,
    /// Nothing more comes.
    is_over: bool,
    /// Why nothing more comes; returned after the waiting responses.
    failure: Option<Status>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Mailbox {
    state: Mutex<State>,
    /// Bytes of copied responses, of all requests of the stream.
    backlog: Arc<AtomicUsize>,
}

/// Responses on their way to the client.
#[derive(Debug, Default)]
pub(super) struct Batch(VecDeque<EncodedResponse>);

impl Batch {
    /// The next response.
    pub(super) fn next(&mut self) -> Option<EncodedResponse> {
        self.0.pop_front()
    }
}

impl Mailbox {
    /// An empty one, whose copied responses count in `backlog`.
    pub(super) fn new(backlog: Arc<AtomicUsize>) -> Self {
        Self {
            state: Mutex::default(),
            backlog,
        }
    }

    /// Adds a response. Returns the client's waker if it waits, to be woken once everything is handed out.
    ///
    /// # Errors
    /// [`Full`]: the response is dropped.
    pub(super) fn put(
        &self,
        message: EncodedResponse,
        is_final: bool,
        now: Instant,
    ) -> Result<Option<Waker>, Full> {
        let mut state = self.state.lock();
        let response = if state.waiting.len() < FREE {
            message
        } else {
            let size = message.size();
            if self.backlog.load(Ordering::Relaxed) + size > MAX_BACKLOG {
                return Err(Full);
            }
            self.backlog.fetch_add(size, Ordering::Relaxed);
            state.detached += size;
            message.detached()
        };
        state.waiting.push_back(response);
        state.is_over |= is_final;
        state.unread_since.get_or_insert(now);
        Ok(state.waker.take())
    }

    /// Ends the responses with an error, after those that wait. Returns the client's waker if it waits.
    pub(super) fn fail(&self, status: Status) -> Option<Waker> {
        let mut state = self.state.lock();
        state.is_over = true;
        state.failure = Some(status);
        state.waker.take()
    }

    /// Moves everything that waits into `taken`, which must be empty, or registers the client to be woken. Ready
    /// without any once the last response has been taken.
    ///
    /// # Errors
    /// Why nothing more comes. Once.
    pub(super) fn poll_take(
        &self,
        context: &mut Context<'_>,
        taken: &mut Batch,
    ) -> Poll<Result<(), Status>> {
        let mut state = self.state.lock();
        if state.waiting.is_empty() {
            if let Some(status) = state.failure.take() {
                return Poll::Ready(Err(status));
            }
            if state.is_over {
                return Poll::Ready(Ok(()));
            }
            match &mut state.waker {
                Some(waker) => waker.clone_from(context.waker()),
                empty => *empty = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        std::mem::swap(&mut state.waiting, &mut taken.0);
        self.free(&mut state);
        Poll::Ready(Ok(()))
    }

    /// When the oldest response came that has not been taken; `None` when all are.
    pub(super) fn unread_since(&self) -> Option<Instant> {
        self.state.lock().unread_since
    }

    /// Drops what waits: nobody will take it.
    pub(super) fn discard(&self) {
        let mut state = self.state.lock();
        state.waiting.clear();
        self.free(&mut state);
    }

    /// Nothing waits any more.
    fn free(&self, state: &mut State) {
        state.unread_since = None;
        let detached = std::mem::take(&mut state.detached);
        if detached > 0 {
            self.backlog.fetch_sub(detached, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use inflight_kserve::inference::{ModelInferResponse, ModelStreamInferResponse};
    use inflight_kserve::streamed::StreamedResponse;

    use super::*;

    fn response(id: &str) -> EncodedResponse {
        let message = ModelStreamInferResponse {
            infer_response: Some(ModelInferResponse {
                id: id.to_owned(),
                ..ModelInferResponse::default()
            }),
            ..ModelStreamInferResponse::default()
        };
        EncodedResponse::from(&message)
    }

    fn take(mailbox: &Mailbox) -> Poll<Result<Vec<String>, Status>> {
        let mut taken = Batch::default();
        let mut context = Context::from_waker(Waker::noop());
        mailbox.poll_take(&mut context, &mut taken).map_ok(|()| {
            let responses = std::iter::from_fn(|| taken.next());
            let ids = responses.map(|it| it.view().unwrap().id.to_owned());
            ids.collect()
        })
    }

    #[test]
    fn a_client_that_is_behind_gets_every_response_in_order() {
        let backlog = Arc::new(AtomicUsize::new(0));
        let mailbox = Mailbox::new(Arc::clone(&backlog));
        let sent: Vec<String> = (0..3 * FREE).map(|number| number.to_string()).collect();
        for id in &sent {
            mailbox.put(response(id), false, Instant::now()).unwrap();
        }
        assert!(backlog.load(Ordering::Relaxed) > 0);
        assert!(mailbox.unread_since().is_some());
        assert!(matches!(take(&mailbox), Poll::Ready(Ok(ids)) if ids == sent));
        assert_eq!(backlog.load(Ordering::Relaxed), 0);
        assert_eq!(mailbox.unread_since(), None);
        assert!(take(&mailbox).is_pending());
    }

    #[test]
    fn a_failure_comes_after_what_waits_and_once() {
        let mailbox = Mailbox::new(Arc::default());
        mailbox.put(response("1"), false, Instant::now()).unwrap();
        mailbox.fail(Status::unavailable("gone"));
        assert!(matches!(take(&mailbox), Poll::Ready(Ok(ids)) if ids == ["1"]));
        assert!(matches!(take(&mailbox), Poll::Ready(Err(status)) if status.message() == "gone"));
        assert!(matches!(take(&mailbox), Poll::Ready(Ok(ids)) if ids.is_empty()));
    }

    #[test]
    fn slow_clients_share_one_limit_and_free_it() {
        let backlog = Arc::new(AtomicUsize::new(MAX_BACKLOG));
        let mailbox = Mailbox::new(Arc::clone(&backlog));
        let now = Instant::now();
        for _ in 0..FREE {
            mailbox.put(response("1"), false, now).unwrap();
        }
        assert_eq!(mailbox.put(response("1"), false, now).err(), Some(Full));
        backlog.store(0, Ordering::Relaxed);
        mailbox.put(response("1"), false, now).unwrap();
        assert!(backlog.load(Ordering::Relaxed) > 0);
        mailbox.discard();
        assert_eq!(backlog.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_last_response_ends_it() {
        let mailbox = Mailbox::new(Arc::default());
        let now = Instant::now();
        mailbox.put(response("1"), false, now).unwrap();
        mailbox.put(response("2"), true, now).unwrap();
        assert!(matches!(take(&mailbox), Poll::Ready(Ok(ids)) if ids == ["1", "2"]));
        assert!(matches!(take(&mailbox), Poll::Ready(Ok(ids)) if ids.is_empty()));
    }

    #[test]
    fn the_limit_counts_what_comes() {
        let size = response("1").size();
        for (waiting, fits) in [(MAX_BACKLOG - size, true), (MAX_BACKLOG - size + 1, false)] {
            let mailbox = Mailbox::new(Arc::new(AtomicUsize::new(waiting)));
            let put = || mailbox.put(response("1"), false, Instant::now()).is_ok();
            for _ in 0..FREE {
                assert!(put());
            }
            assert_eq!(put(), fits);
        }
    }
}
