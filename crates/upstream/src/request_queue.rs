//! The bounded queue that feeds a worker's request stream. Knows nothing of what the requests mean.
//!
//! Requests are refused when the queue is full. A stop never is: there is at most one per handle, and a
//! client that left must free its work. A stop whose request has not left yet removes it instead.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio_stream::Stream;

use super::handles::Handle;

/// Why a request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    #[error("the queue to the worker is full")]
    Full,
    #[error("the connection to the worker is closed")]
    Closed,
}

#[derive(Debug)]
struct Message<M> {
    handle: Handle,
    /// Stops the handle instead of starting it.
    is_stop: bool,
    request: M,
}

#[derive(Debug)]
struct State<M> {
    queue: VecDeque<Message<M>>,
    waiting_requests: usize,
    waker: Option<Waker>,
    closed: bool,
}

/// The sending half; the stream half is [`RequestQueue::stream`].
#[derive(Debug)]
pub struct RequestQueue<M> {
    state: Mutex<State<M>>,
    capacity: usize,
}

impl<M> RequestQueue<M> {
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
    /// [`NotSent`]: nothing was queued.
    pub fn send(&self, handle: Handle, request: M) -> Result<(), NotSent> {
        let waker = {
            let mut state = self.state.lock();
            if state.closed {
                return Err(NotSent::Closed);
            }
            if state.waiting_requests >= self.capacity {
                return Err(NotSent::Full);
            }
            state.waiting_requests += 1;
            state.queue.push_back(Message {
                handle,
                is_stop: false,
                request,
            });
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Queues the stop of a handle, or takes its request back if that is still here.
    pub fn stop(&self, handle: Handle, stop: impl FnOnce() -> M) {
        let waker = {
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            let waiting = state
                .queue
                .iter()
                .position(|message| message.handle == handle && !message.is_stop);
            if let Some(position) = waiting {
                state.queue.remove(position);
                state.waiting_requests -= 1;
                return;
            }
            state.queue.push_back(Message {
                handle,
                is_stop: true,
                request: stop(),
            });
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends the stream after the stops that are queued; the requests are dropped.
    pub fn close(&self) {
        let waker = {
            let mut state = self.state.lock();
            state.closed = true;
            // The server may still run what they stop.
            state.queue.retain(|message| message.is_stop);
            state.waiting_requests = 0;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The messages in order; ends with [`RequestQueue::close`].
    pub fn stream(self: &Arc<Self>) -> QueuedRequests<M> {
        QueuedRequests(Arc::clone(self))
    }
}

/// The receiving half of an [`RequestQueue`]; one per queue.
#[derive(Debug)]
pub struct QueuedRequests<M>(Arc<RequestQueue<M>>);

impl<M> Stream for QueuedRequests<M> {
    type Item = M;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.0.state.lock();
        if let Some(message) = state.queue.pop_front() {
            state.waiting_requests -= usize::from(!message.is_stop);
            return Poll::Ready(Some(message.request));
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
    use std::time::Duration;

    use inflight_kserve::inference::ModelInferRequest;

    use super::*;

    fn named(id: &str) -> ModelInferRequest {
        ModelInferRequest {
            id: id.to_owned(),
            ..ModelInferRequest::default()
        }
    }

    fn drain(stream: &mut QueuedRequests<ModelInferRequest>) -> Vec<String> {
        let mut context = Context::from_waker(Waker::noop());
        let mut ids = Vec::new();
        while let Poll::Ready(Some(message)) = Pin::new(&mut *stream).poll_next(&mut context) {
            ids.push(message.id);
        }
        ids
    }

    #[test]
    fn a_full_queue_refuses_requests_and_never_stops() {
        let queue = Arc::new(RequestQueue::new(1));
        let mut stream = queue.stream();
        queue.send(Handle::new(1), named("1")).unwrap();
        assert_eq!(queue.send(Handle::new(2), named("2")), Err(NotSent::Full));
        queue.stop(Handle::new(9), || named("stop 9"));
        assert_eq!(drain(&mut stream), ["1", "stop 9"]);
        queue.send(Handle::new(2), named("2")).unwrap();
        assert_eq!(drain(&mut stream), ["2"]);
    }

    #[test]
    fn a_stop_takes_back_a_request_that_has_not_left() {
        let queue = Arc::new(RequestQueue::new(2));
        let mut stream = queue.stream();
        for handle in [1, 1, 1] {
            // It leaves room for another one.
            queue.send(Handle::new(handle), named("1")).unwrap();
            queue.stop(Handle::new(handle), || named("stop 1"));
        }
        queue.send(Handle::new(2), named("2")).unwrap();
        assert_eq!(drain(&mut stream), ["2"]);
        queue.stop(Handle::new(2), || named("stop 2"));
        assert_eq!(drain(&mut stream), ["stop 2"]);
    }

    #[test]
    fn a_closed_queue_ends_its_stream() {
        let queue = Arc::new(RequestQueue::new(4));
        let mut stream = queue.stream();
        queue.send(Handle::new(1), named("1")).unwrap();
        queue.stop(Handle::new(9), || named("stop 9"));
        queue.close();
        assert_eq!(queue.send(Handle::new(2), named("2")), Err(NotSent::Closed));
        // What runs is still stopped.
        assert_eq!(drain(&mut stream), ["stop 9"]);
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(
            Pin::new(&mut stream).poll_next(&mut context),
            Poll::Ready(None)
        ));
    }

    /// `make sanitize` looks here for races.
    #[test]
    fn what_other_threads_send_leaves_once_or_is_stopped() {
        const REQUESTS: u64 = 20;
        let queue = Arc::new(RequestQueue::new(1 << 10));
        let mut stream = queue.stream();
        let (sender, left) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let next = |context: &mut Context<'_>| Pin::new(&mut stream).poll_next(context);
            let mut next = Box::new(next);
            let reading = async {
                let mut left = Vec::new();
                while let Some(message) = std::future::poll_fn(&mut next).await {
                    left.push(message);
                }
                left
            };
            let _ = sender.send(runtime.unwrap().block_on(reading));
        });
        let senders = [0, REQUESTS].map(|first| {
            let queue = Arc::clone(&queue);
            std::thread::spawn(move || {
                for number in first..first + REQUESTS {
                    queue.send(Handle::new(number), (number, false)).unwrap();
                    queue.stop(Handle::new(number), || (number, true));
                }
            })
        });
        for sender in senders {
            sender.join().unwrap();
        }
        queue.close();
        let mut left = left.recv_timeout(Duration::from_secs(60)).unwrap();
        // A request that left is stopped behind it; one that was taken back needs no stop.
        left.sort_unstable();
        for pair in left.chunks(2) {
            assert_eq!(pair, [(pair[0].0, false), (pair[0].0, true)]);
        }
    }
}
