//! The answer to a stream's request, over one server or several. Owns that the client's id is put back into the
//! responses, and when it ends; how it continues at another server is [`Holding`]'s and [`Begun`]'s.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, Stream, StreamExt};
use inflight_kserve::streamed::{EncodedResponse, StreamedResponse};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::begun::{AtServer, Begun};
use super::said::{Taken, cut};
use super::streams::Responses;
use super::{in_band, lost};
use crate::delivery::{CallContext, retry_reason};
use crate::holding::{Holding, Kept, Turn};
use crate::metrics::RetryReason;
use crate::rpc;
use crate::survival::{Report, Survival, Way};

/// What a stream listens for besides responses.
enum Event {
    /// It is to end, and why.
    Ended(Status),
    /// Its server gives notice of something.
    Notice,
}

type Next = Poll<Option<Result<EncodedResponse, Status>>>;

/// See the module.
pub struct ForwardStream {
    first: Option<EncodedResponse>,
    holding: Holding<Begun>,
    /// The request's id as the client gave it.
    id: Arc<str>,
    /// Whether the last response has come.
    is_final: bool,
    /// Asked only once one has come, and not with every response.
    events: FuturesUnordered<BoxFuture<'static, Event>>,
    /// Holds the request's place.
    context: Arc<CallContext>,
}

impl ForwardStream {
    pub(super) fn new(
        id: &str,
        at: AtServer,
        begun: Option<(Begun, Survival<Status>)>,
        ended: impl Future<Output = Status> + Send + 'static,
        context: Arc<CallContext>,
    ) -> Self {
        let stream = Self {
            first: None,
            holding: Holding::new(&context.request_id, at, begun),
            id: id.into(),
            is_final: false,
            events: std::iter::once(ended.map(Event::Ended).boxed()).collect(),
            context,
        };
        stream.listen();
        stream
    }

    /// How the request continued at other servers; `None`: it did not.
    pub fn report(&self) -> Option<Report> {
        self.holding.survival()?.report()
    }

    /// Waits for the first response of the server that has the request.
    ///
    /// # Errors
    /// It failed the request.
    pub(super) async fn begin(&mut self) -> Result<(), Status> {
        let Some(rest) = &mut self.holding.work_mut().rest else {
            return Ok(());
        };
        let Some(first) = rest.next().await.transpose().map_err(lost)? else {
            return Ok(());
        };
        in_band(&first.view()?).map_err(lost)?;
        if let Poll::Ready(Some(Ok(first))) = self.receive(first) {
            self.first = Some(first);
        }
        Ok(())
    }

    /// Waits for the first response of whichever server will have the request.
    ///
    /// # Errors
    /// None has it in time, or it failed there.
    pub(super) async fn begin_elsewhere(&mut self) -> Result<(), Status> {
        let first = poll_fn(|context| self.poll_next_unpin(context)).await;
        self.first = first.transpose()?;
        Ok(())
    }

    /// Waits for a server after `sent` have failed the request, which has generated nothing.
    ///
    /// # Errors
    /// `status`: it may not continue.
    pub(super) fn outlive(&mut self, status: Status, sent: usize) -> Result<(), Status> {
        self.holding.work_mut().rest = None;
        self.holding.outlive(status, sent)
    }

    /// Listens for the next notice of the server, where that matters.
    fn listen(&self) {
        let way = self.holding.survival().map(Survival::way);
        if way == Some(Way::Resume) {
            let mut notices = self.holding.work().open.slot.notices();
            let noticed = async move {
                // The sender lives as long as the slot.
                let _ = notices.changed().await;
                Event::Notice
            };
            self.events.push(noticed.boxed());
        }
    }

    /// What of a response is for the client. Pending: none of it.
    fn receive(&mut self, message: EncodedResponse) -> Next {
        let at = self.holding.work_mut();
        at.open.slot.pulse.hear();
        at.open.started();
        let id = Arc::clone(&self.id);
        let is_alone = matches!(at.rest, Some(Responses::Alone(_)));
        let Some(begun) = self.holding.request_mut() else {
            if is_alone {
                self.is_final = message.view().is_ok_and(|response| response.is_final());
            }
            return Poll::Ready(Some(Ok(message.with_id(id))));
        };
        let taken = message.view().and_then(|response| {
            self.is_final = response.is_final();
            match in_band(&response) {
                Ok(()) => Ok(Ok(begun.said.take(&response)?)),
                Err(failed) => Ok(Err(failed)),
            }
        });
        let can_continue = begun.said.can_continue();
        self.context.generated(|| begun.said.tokens());
        let taken = match taken {
            Err(damaged) => return self.end_with(damaged),
            // Passed on as it came, unless it may continue elsewhere.
            Ok(Err(failed)) => {
                return match self.lose(failed) {
                    Ok(()) => Poll::Pending,
                    Err(status) => {
                        self.context.ended(status.code());
                        Poll::Ready(Some(Ok(message.with_id(id))))
                    }
                };
            }
            Ok(Ok(taken)) => taken,
        };
        match taken {
            Taken::Differs => self.holding.differs(),
            Taken::Repeated => self.holding.heard(false, Instant::now()),
            Taken::New | Taken::Partly(_) => self.holding.heard(true, Instant::now()),
        }
        if !can_continue {
            self.holding.settle();
        }
        match taken {
            Taken::New => Poll::Ready(Some(Ok(message.with_id(id)))),
            Taken::Partly(repeated) => match cut(message, repeated) {
                Ok(message) => Poll::Ready(Some(Ok(message.with_id(id)))),
                Err(damaged) => self.end_with(damaged),
            },
            Taken::Repeated => Poll::Pending,
            Taken::Differs => {
                self.end_with(Status::unavailable(
                    "the model's server was lost, and another one generated another answer, which cannot continue \
                     from there; retry the request",
                ))
            }
        }
    }

    /// The server has failed the request, which continues there or elsewhere.
    ///
    /// # Errors
    /// It may not continue.
    fn lose(&mut self, status: Status) -> Result<(), Status> {
        let reason = retry_reason(status.code());
        match self.holding.fail(status, reason)? {
            Kept::Back(reason) => {
                self.note_move(reason);
                self.listen();
            }
            Kept::Waits => self.holding.work_mut().rest = None,
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
        self.holding.end();
        self.context.trace.code(status.code());
        self.context.ended(status.code());
        Poll::Ready(Some(Err(status)))
    }

    /// Notes which server has it now, and why the one that had it does not keep it.
    fn note_move(&self, reason: RetryReason) {
        let address = &self.holding.work().open.slot.address;
        self.context.sent(address, Some(reason));
    }

    /// Looks for events. Pending: none ends it.
    fn poll_events(&mut self, context: &mut Context<'_>) -> Next {
        while let Poll::Ready(Some(event)) = self.events.poll_next_unpin(context) {
            match event {
                Event::Ended(status) => return self.end_with(status),
                Event::Notice => {
                    self.listen();
                    if let Some(notice) = self.holding.work().notice() {
                        self.holding.notice(notice);
                        context.waker().wake_by_ref();
                    }
                }
            }
        }
        Poll::Pending
    }
}

impl Stream for ForwardStream {
    type Item = Result<EncodedResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        loop {
            match self.holding.poll(context) {
                // A call of KServe's goes whole.
                Turn::Stays | Turn::HandedOver => {}
                Turn::Waits => return self.poll_events(context),
                Turn::Moved(reason) => {
                    self.note_move(reason);
                    self.listen();
                }
                Turn::Failed(status) => return self.end_with(status),
            }
            let Some(rest) = &mut self.holding.work_mut().rest else {
                self.context.ended(Code::Ok);
                return Poll::Ready(None);
            };
            let taken = match rest.poll_next_unpin(context) {
                Poll::Ready(Some(Ok(message))) => self.receive(message),
                Poll::Ready(Some(Err(status))) => self.lose_or_end(status),
                Poll::Ready(None) => match self.holding.request() {
                    Some(begun) if begun.expects_final && !self.is_final => {
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
