//! What a connection still has to send. Owns the bounded queue that feeds the worker's request stream;
//! knows nothing of what the requests mean.
//!
//! Requests are refused when the queue is full. A stop never is: there is at most one per handle, and a
//! client that left must free its work. A stop whose request has not left yet removes it instead.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use inflight_kserve::inference::ModelInferRequest;
use parking_lot::Mutex;
use tokio_stream::Stream;

#[derive(Debug)]
struct State {
    /// The handle and its message; `false`: a stop.
    queue: VecDeque<(u64, bool, ModelInferRequest)>,
    waiting_requests: usize,
    waker: Option<Waker>,
    closed: bool,
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotQueued {
    #[error("the queue to the worker is full")]
    Full,
    #[error("the connection to the worker is closed")]
    Closed,
}

/// The sending half; the stream half is [`Outbound::stream`].
#[derive(Debug)]
pub struct Outbound {
    state: Mutex<State>,
    capacity: usize,
}

impl Outbound {
    /// A queue of at most `capacity` requests.
    pub fn new(capacity: usize) -> Self {
        let state = State {
            queue: VecDeque::new(),
            waiting_requests: 0,
            waker: None,
            closed: false,
        };
        Self {
            state: Mutex::new(state),
            capacity,
        }
    }

    /// Queues a request.
    ///
    /// # Errors
    /// [`NotQueued`]: nothing was queued.
    pub fn send(&self, handle: u64, request: ModelInferRequest) -> Result<(), NotQueued> {
        let waker = {
            let mut state = self.state.lock();
            if state.closed {
                return Err(NotQueued::Closed);
            }
            if state.waiting_requests >= self.capacity {
                return Err(NotQueued::Full);
            }
            state.waiting_requests += 1;
            state.queue.push_back((handle, true, request));
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Queues the stop of a handle, or takes its request back if that is still here.
    pub fn stop(&self, handle: u64, message: impl FnOnce() -> ModelInferRequest) {
        let waker = {
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            let waiting = state
                .queue
                .iter()
                .position(|(queued, request, _)| *queued == handle && *request);
            if let Some(position) = waiting {
                state.queue.remove(position);
                state.waiting_requests -= 1;
                return;
            }
            state.queue.push_back((handle, false, message()));
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends the stream; what is queued is dropped.
    pub fn close(&self) {
        let waker = {
            let mut state = self.state.lock();
            state.closed = true;
            state.queue.clear();
            state.waiting_requests = 0;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The messages in order; ends with [`Outbound::close`].
    pub fn stream(self: &Arc<Self>) -> OutboundStream {
        OutboundStream(Arc::clone(self))
    }
}

/// The receiving half of an [`Outbound`]; one per queue.
#[derive(Debug)]
pub struct OutboundStream(Arc<Outbound>);

impl Stream for OutboundStream {
    type Item = ModelInferRequest;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.0.state.lock();
        if let Some((_, request, message)) = state.queue.pop_front() {
            state.waiting_requests -= usize::from(request);
            return Poll::Ready(Some(message));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(id: &str) -> ModelInferRequest {
        ModelInferRequest {
            id: id.to_owned(),
            ..ModelInferRequest::default()
        }
    }

    fn drain(stream: &mut OutboundStream) -> Vec<String> {
        let mut context = Context::from_waker(Waker::noop());
        let mut ids = Vec::new();
        while let Poll::Ready(Some(message)) = Pin::new(&mut *stream).poll_next(&mut context) {
            ids.push(message.id);
        }
        ids
    }

    #[test]
    fn a_full_queue_refuses_requests_and_never_stops() {
        let outbound = Arc::new(Outbound::new(1));
        let mut stream = outbound.stream();
        outbound.send(1, named("1")).unwrap();
        assert_eq!(outbound.send(2, named("2")), Err(NotQueued::Full));
        outbound.stop(9, || named("stop 9"));
        assert_eq!(drain(&mut stream), ["1", "stop 9"]);
        outbound.send(2, named("2")).unwrap();
        assert_eq!(drain(&mut stream), ["2"]);
    }

    #[test]
    fn a_stop_takes_back_a_request_that_has_not_left() {
        let outbound = Arc::new(Outbound::new(4));
        let mut stream = outbound.stream();
        outbound.send(1, named("1")).unwrap();
        outbound.send(2, named("2")).unwrap();
        outbound.stop(1, || named("stop 1"));
        assert_eq!(drain(&mut stream), ["2"]);
        outbound.stop(2, || named("stop 2"));
        assert_eq!(drain(&mut stream), ["stop 2"]);
    }

    #[test]
    fn a_closed_queue_ends_its_stream() {
        let outbound = Arc::new(Outbound::new(4));
        let mut stream = outbound.stream();
        outbound.send(1, named("1")).unwrap();
        outbound.close();
        assert_eq!(outbound.send(2, named("2")), Err(NotQueued::Closed));
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(
            Pin::new(&mut stream).poll_next(&mut context),
            Poll::Ready(None)
        ));
    }
}
