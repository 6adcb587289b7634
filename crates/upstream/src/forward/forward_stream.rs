//! The answer to a stream's request, over one server or several. Owns that the client's id is put back into the
//! responses, and when it ends; how it continues at another server is [`Holding`]'s and [`StreamMover`]'s.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, Stream, StreamExt};
use inflight_kserve::streamed::{EncodedResponse, StreamedResponse};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::failures::{given_up, in_band, lost};
use super::responses::Responses;
use super::said::{Novelty, cut};
use super::stream_mover::{AtServer, StreamMover};
use crate::delivery::{CallContext, reason_of_code};
use crate::expiry::Expiry;
use crate::holding::Holding;
use crate::inbox::Notice;
use crate::metrics::RetryReason;
use crate::rpc;
use crate::survival::{Report, Step, Survival};

type Next = Poll<Option<Result<EncodedResponse, Status>>>;

/// See the module.
pub struct ForwardStream {
    first: Option<EncodedResponse>,
    holding: Holding<StreamMover>,
    /// The request's id as the client gave it.
    id: Arc<str>,
    /// Whether a response has come that is not a failure.
    has_started: bool,
    /// Whether the last response has come, and no failure that the request may survive.
    is_final: bool,
    /// The next notice of the server. Asked only once a response has come, and not with every one.
    notices: BoxFuture<'static, ()>,
    /// Holds the request's place.
    context: Arc<CallContext>,
}

impl ForwardStream {
    pub(super) fn new(
        id: &str,
        at: AtServer,
        mover: Option<(StreamMover, Survival<Status>)>,
        context: Arc<CallContext>,
    ) -> Self {
        Self {
            first: None,
            notices: next_notice(&at),
            holding: Holding::new(&context.request_id, at, mover),
            id: id.into(),
            has_started: false,
            is_final: false,
            context,
        }
    }

    /// Is given up at `expiry`, from here on.
    pub(super) fn expires(mut self, expiry: Expiry) -> Self {
        self.holding.expires(expiry);
        self
    }

    /// Notes that it was given up before its first response.
    pub(super) fn given_up(&mut self) {
        self.holding.given_up();
    }

    /// How the request continued at other servers; `None`: it did not.
    pub fn report(&self) -> Option<Report> {
        self.holding.survival()?.report()
    }

    /// Waits for the first response. May be dropped and called again.
    ///
    /// # Errors
    /// The server failed the request; where it [survives](Self::survives), none has it in time.
    pub(super) async fn begin(&mut self) -> Result<(), Status> {
        let first = poll_fn(|context| self.poll_next_unpin(context)).await;
        self.first = first.transpose()?;
        Ok(())
    }

    /// Whether the request moves by itself from here on. Until then, who sent it hears of its failures.
    pub(super) fn survives(&self) -> bool {
        let survival = self.holding.survival();
        self.has_started || survival.is_some_and(Survival::has_outlived)
    }

    /// Waits for a server after `sent` have failed the request, which has generated nothing.
    ///
    /// # Errors
    /// `status`: it may not continue.
    pub(super) fn outlive(&mut self, status: Status, sent: usize) -> Result<(), Status> {
        self.holding.work_mut().rest = None;
        self.holding.outlive(status, sent)
    }

    /// What of a response is for the client. Pending: none of it.
    fn receive(&mut self, message: EncodedResponse) -> Next {
        let looked = message.view().and_then(|response| {
            let failed = in_band(&response).err();
            let taken = match (&failed, self.holding.request_mut()) {
                (None, Some(mover)) => {
                    let stoppable = self.context.stoppable.as_ref();
                    let is_stopped = stoppable.is_some_and(|it| it.is_stopped());
                    mover.said.take(&response, is_stopped)?
                }
                _ => Novelty::New,
            };
            Ok((response.is_final(), failed, taken))
        });
        let (is_final, failed, taken) = match looked {
            Ok(looked) => looked,
            Err(damaged) => return self.end_with(damaged),
        };
        if let Some(failed) = failed {
            return self.receive_failure(message, failed);
        }
        self.is_final = is_final;
        let is_first = !std::mem::replace(&mut self.has_started, true);
        self.holding.work_mut().open.started();
        match taken {
            Novelty::Differs => self.holding.differs(),
            Novelty::Repeated => self.holding.heard(false, Instant::now()),
            Novelty::New | Novelty::Partly(_) => self.holding.heard(true, Instant::now()),
        }
        // A notice that came before had nothing to continue with.
        if is_first && self.holding.work().slot().is_leaving() {
            self.holding.notice(Notice::Leaving);
        }
        if let Some(mover) = self.holding.request() {
            self.context.generated(|| mover.said.tokens());
            if !mover.said.can_continue() {
                self.holding.settle();
            }
        }
        let id = Arc::clone(&self.id);
        match taken {
            Novelty::New => Poll::Ready(Some(Ok(message.with_id(id)))),
            Novelty::Partly(repeated) => match cut(message, repeated) {
                Ok(message) => Poll::Ready(Some(Ok(message.with_id(id)))),
                Err(damaged) => self.end_with(damaged),
            },
            Novelty::Repeated => Poll::Pending,
            Novelty::Differs => {
                self.end_with(Status::unavailable(
                    "the model's server was lost, and another one generated another answer, which cannot continue \
                     from there; retry the request",
                ))
            }
        }
    }

    /// A response that reports a failure is passed on as it came, unless the request may continue elsewhere.
    fn receive_failure(&mut self, message: EncodedResponse, failed: Status) -> Next {
        if !self.survives() {
            return Poll::Ready(Some(Err(lost(failed))));
        }
        match self.lose(failed) {
            Ok(()) => Poll::Pending,
            Err(status) => {
                self.context.trace.code(status.code());
                self.context.ended(status.code());
                // Marked so or not: nothing follows a failure.
                self.is_final = true;
                Poll::Ready(Some(Ok(message.with_id(Arc::clone(&self.id)))))
            }
        }
    }

    /// The server has failed the request, which continues there or elsewhere.
    ///
    /// # Errors
    /// It may not continue.
    fn lose(&mut self, status: Status) -> Result<(), Status> {
        if !self.survives() {
            return Err(status);
        }
        let reason = reason_of_code(status.code());
        match self.holding.fail(status, reason) {
            Step::Stays => {}
            Step::Waits => self.holding.work_mut().rest = None,
            Step::Moved((), reason) => self.moved(reason),
            Step::Failed(status) => return Err(status),
        }
        Ok(())
    }

    /// Pending: the request continues elsewhere.
    fn lose_or_end(&mut self, status: Status) -> Next {
        match self.lose(lost(status)) {
            Ok(()) => Poll::Pending,
            Err(status) => self.end_with(status),
        }
    }

    fn end_with(&mut self, status: Status) -> Next {
        self.holding.work_mut().rest = None;
        if !self.survives() {
            return Poll::Ready(Some(Err(status)));
        }
        self.holding.end();
        self.context.trace.code(status.code());
        self.context.ended(status.code());
        Poll::Ready(Some(Err(status)))
    }

    /// Notes which server has it now, and why the one that had it does not keep it.
    fn moved(&mut self, reason: Option<RetryReason>) {
        let address = &self.holding.work().slot().address;
        self.context.sent(address, reason);
        self.notices = next_notice(self.holding.work());
    }

    /// Looks for what is not a response. Pending: nothing ends it.
    fn poll_events(&mut self, context: &mut Context<'_>) -> Next {
        if let Poll::Ready(why) = self.holding.poll_expired(context) {
            return self.end_with(given_up(why));
        }
        while self.notices.poll_unpin(context).is_ready() {
            let at = self.holding.work();
            self.notices = next_notice(at);
            // One that cannot move waits for its connection's word: several workers may be behind one address.
            let may_move = !self.has_started || self.holding.request().is_some();
            let gone = at.open.gone(true);
            if let Some(why) = gone.filter(|_| may_move && at.rest.is_some()) {
                context.waker().wake_by_ref();
                return self.lose_or_end(Status::unavailable(why));
            }
            let notice = at.notice().filter(|_| self.survives());
            if let Some(notice) = notice {
                self.holding.notice(notice);
                context.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }
}

/// The next notice of the server.
fn next_notice(at: &AtServer) -> BoxFuture<'static, ()> {
    let mut notices = at.slot().notices();
    // The sender lives as long as the slot.
    async move { drop(notices.changed().await) }.boxed()
}

impl Stream for ForwardStream {
    type Item = Result<EncodedResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        if self.is_final {
            // The client has all of it. What its server still sends is read when this is dropped.
            self.context.ended(Code::Ok);
            return Poll::Ready(None);
        }
        loop {
            match self.holding.poll(context) {
                Step::Stays => {}
                Step::Waits => return self.poll_events(context),
                Step::Moved((), reason) => self.moved(reason),
                Step::Failed(status) => return self.end_with(status),
            }
            let Some(rest) = &mut self.holding.work_mut().rest else {
                self.context.ended(Code::Ok);
                return Poll::Ready(None);
            };
            let taken = match rest.poll_next_unpin(context) {
                Poll::Ready(Some(Ok(message))) => self.receive(message),
                Poll::Ready(Some(Err(status))) => self.lose_or_end(status),
                Poll::Ready(None) => match self.holding.request() {
                    Some(mover) if mover.expects_final && !self.is_final => {
                        let text = "the stream ended before its last response";
                        self.lose_or_end(Status::unavailable(text))
                    }
                    _ => {
                        self.holding.work_mut().rest = None;
                        self.context.ended(Code::Ok);
                        return Poll::Ready(None);
                    }
                },
                Poll::Pending => return self.poll_events(context),
            };
            if taken.is_ready() {
                return taken;
            }
        }
    }
}

impl Drop for ForwardStream {
    /// Reads a separate stream to its end; see [`rpc::read_to_end`].
    fn drop(&mut self) {
        if self.is_final {
            self.context.ended(Code::Ok);
        }
        let rest = self.holding.work_mut().rest.take();
        let Some(Responses::Alone(mut rest)) = rest.filter(|_| self.is_final) else {
            return;
        };
        if let Some(None | Some(Err(_))) = rest.next().now_or_never() {
            return;
        }
        tokio::spawn(rpc::read_to_end(*rest));
    }
}
