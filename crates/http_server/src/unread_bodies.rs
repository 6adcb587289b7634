//! Responses over HTTP/2 that their client leaves unread are reset one by one. Owns how long a piece of
//! a response may wait for the client's windows; knows nothing of what responses say.
//!
//! Such a client reads its socket, so no timer there sees it, and hyper does not poll a body while bytes
//! of it wait for a window, so none in the body would fire. What is left is the task that hyper spawns
//! for each stream: dropped, it resets this stream and no other, and discards what is queued for it.
//! Cutting the connection would be simpler, but a proxy's connection carries many people's requests.
//!
//! A body therefore ends only when its last piece has left: what is done but unread stays in its task,
//! and a stream keeps its place among the requests, so that the limit on these bounds it too.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use inflight_clients::client::Client;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

/// At most this much waits at once, so that a client which reads slowly is seen to read at all. The
/// largest frame that a client accepts unless it says otherwise; more makes no fewer frames.
const PIECE_BYTES: usize = 16 * 1024;

tokio::task_local! {
    /// The delivery of the stream whose task this is; HTTP/1 has no such task.
    static DELIVERY: Arc<Delivery>;
}

/// What the body of a stream reports to the stream's task. Both run in that task: one after the other.
#[derive(Debug, Default)]
struct Delivery {
    pieces: AtomicU64,
    /// The piece handed out last has not left, as far as is known.
    waits: AtomicBool,
}

impl Delivery {
    fn handed(&self) {
        self.pieces.fetch_add(1, Ordering::Relaxed);
        self.waits.store(true, Ordering::Relaxed);
    }

    fn left(&self) {
        self.waits.store(false, Ordering::Relaxed);
    }

    /// Resolves when one piece has waited for `patience`. To be polled after each poll of the body.
    async fn given_up(&self, patience: Duration) {
        let mut timer = pin!(sleep_until(Instant::now()));
        let mut timed = None;
        std::future::poll_fn(|context| {
            if !self.waits.load(Ordering::Relaxed) {
                return Poll::Pending;
            }
            let piece = Some(self.pieces.load(Ordering::Relaxed));
            if timed != piece {
                timed = piece;
                timer.as_mut().reset(Instant::now() + patience);
            }
            timer.as_mut().poll(context)
        })
        .await;
    }
}

/// Runs the streams of HTTP/2 connections, each as a task that ends when its response is left unread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamExecutor {
    patience: Duration,
}

impl StreamExecutor {
    /// Gives up a response that nobody reads for `patience`.
    pub(crate) fn new(patience: Duration) -> Self {
        Self { patience }
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let patience = self.patience;
        tokio::spawn(async move {
            let delivery = Arc::new(Delivery::default());
            let stream = DELIVERY.scope(Arc::clone(&delivery), stream);
            tokio::select! {
                biased;
                () = stream => {}
                () = delivery.given_up(patience) => {
                    tracing::info!("reset a response whose client stopped reading");
                }
            }
        });
    }
}

/// A response's body that reports to the task of its stream what waits. Over HTTP/1 the body as it is.
#[derive(Debug)]
pub(crate) struct DeliveredBody {
    inner: Body,
    delivery: Option<Arc<Delivery>>,
    /// Of the inner body's frame under way.
    rest: Bytes,
    /// Resolves when the last piece has left.
    last: Option<oneshot::Receiver<()>>,
    /// The request is open until its response has left.
    _client: Arc<Client>,
}

impl DeliveredBody {
    /// Wraps `inner`; to be called by the task that will poll it.
    pub(crate) fn new(inner: Body, client: Arc<Client>) -> Self {
        Self {
            inner,
            delivery: DELIVERY.try_with(Arc::clone).ok(),
            rest: Bytes::new(),
            last: None,
            _client: client,
        }
    }
}

/// The last bytes of a body; dropping them drops the sender, which shows that they left.
struct LastPiece {
    bytes: Bytes,
    _left: oneshot::Sender<()>,
}

impl AsRef<[u8]> for LastPiece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl http_body::Body for DeliveredBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let body = &mut *self;
        let Some(delivery) = &body.delivery else {
            return Pin::new(&mut body.inner).poll_frame(context);
        };
        if let Some(last) = &mut body.last {
            let _ = ready!(Pin::new(last).poll(context));
            body.last = None;
            delivery.left();
            return Poll::Ready(None);
        }
        // A reader that asks for more has room for it: the piece before is gone, or as good as gone.
        delivery.left();
        if body.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut body.inner).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            body.rest = match frame.into_data() {
                Ok(data) => data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            };
        }
        let mut piece = body.rest.split_to(body.rest.len().min(PIECE_BYTES));
        if body.rest.is_empty() && body.inner.is_end_stream() {
            let (left, last) = oneshot::channel();
            body.last = Some(last);
            piece = Bytes::from_owner(LastPiece {
                bytes: piece,
                _left: left,
            });
        }
        delivery.handed();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.last.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // Asked before the first frame only, when nothing is under way.
        if self.rest.is_empty() {
            self.inner.size_hint()
        } else {
            SizeHint::default()
        }
    }
}
