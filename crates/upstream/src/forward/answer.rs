//! The answer to a stream's request, over one server or several. Owns that the client's id is put back into the
//! responses, when it ends, and that the work at the server is stopped when it is dropped; how it continues at another
//! server is [`Begun`]'s.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, Stream, StreamExt};
use inflight_kserve::streamed::{EncodedResponse, StreamedResponse};
use tokio::time::Instant;
use tonic::Status;

use super::begun::Begun;
use super::said::{Taken, cut};
use super::streams::Responses;
use super::{Open, given_up, in_band, lost};
use crate::delivery::{CallContext, GivenUp, retry_reason};
use crate::metrics::RetryReason;
use crate::stops::Source;
use crate::survival::{Report, Step, Way};

/// How long a server may take to close a stream after its last response.
const END_TIMEOUT: Duration = Duration::from_secs(10);

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
    /// `None`: it has ended, or no server has it.
    rest: Option<Responses>,
    /// The request's id as the client gave it.
    id: Arc<str>,
    /// Whether the last response has come.
    is_final: bool,
    open: Open,
    /// `None`: it ends with its server.
    begun: Option<Box<Begun>>,
    /// The server that keeps the request while another one has it on trial.
    former: Option<Box<Former>>,
    /// Asked only once one has come, and not with every response.
    events: FuturesUnordered<BoxFuture<'static, Event>>,
    /// Holds the request's place.
    context: CallContext,
}

/// What a server still does for a request that another one has on trial.
struct Former {
    rest: Option<Responses>,
    open: Open,
    /// Where a stop goes.
    source: Option<Source>,
}

impl ForwardStream {
    pub(super) fn new(
        id: &str,
        rest: Option<Responses>,
        open: Open,
        begun: Option<Begun>,
        ended: impl Future<Output = Status> + Send + 'static,
        context: CallContext,
    ) -> Self {
        let stream = Self {
            first: None,
            rest,
            id: id.into(),
            is_final: false,
            open,
            begun: begun.map(Box::new),
            former: None,
            events: std::iter::once(ended.map(Event::Ended).boxed()).collect(),
            context,
        };
        stream.listen();
        stream
    }

    /// How the request continued at other servers; `None`: it did not.
    pub fn report(&self) -> Option<Report> {
        self.begun.as_ref()?.survival.report()
    }

    /// The first response has come.
    pub(super) fn begin_with(&mut self, first: EncodedResponse) {
        match self.receive(first) {
            Poll::Ready(Some(Ok(first))) => self.first = Some(first),
            // What nobody can read is passed on by the next server, or by none.
            Poll::Ready(_) | Poll::Pending => {}
        }
    }

    /// Waits for a server after `sent` have failed the request, and for its first response.
    ///
    /// # Errors
    /// `status`: it may not continue. Nothing came within the time for a first output.
    pub(super) async fn outlive(
        mut self,
        status: Status,
        sent: u32,
        first: Option<(Instant, Duration)>,
    ) -> Result<Self, Status> {
        let Some(begun) = &mut self.begun else {
            return Err(status);
        };
        let is_over = begun.is_over();
        begun
            .survival
            .outlive(status, sent, &self.open.life, is_over)?;
        let response = poll_fn(|context| self.poll_next_unpin(context));
        let response = match first {
            None => response.await,
            Some((until, limit)) => {
                let response = tokio::time::timeout_at(until, response).await;
                response.map_err(|_| given_up(GivenUp::NoOutput(limit)))?
            }
        };
        self.first = response.transpose()?;
        self.context.trace.output(Instant::now());
        Ok(self)
    }

    /// Listens for the next notice of the server, where that matters.
    fn listen(&self) {
        let resumes = |begun: &Begun| begun.survival.way() == Way::Resume;
        if self.begun.as_deref().is_some_and(resumes) {
            let mut notices = self.open.slot.notices();
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
        self.open.slot.pulse.hear();
        self.open.started();
        let id = Arc::clone(&self.id);
        let Some(begun) = &mut self.begun else {
            if let Some(Responses::Alone(_)) = self.rest {
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
        let taken = match taken {
            Err(damaged) => return self.fail(damaged),
            Ok(Err(failed)) => {
                let reason = retry_reason(failed.code());
                if self.take_back(reason) {
                    return Poll::Pending;
                }
                let Some(begun) = &mut self.begun else {
                    return self.fail(failed);
                };
                // Passed on as it came, unless it may continue elsewhere.
                let is_over = begun.is_over();
                let life = &self.open.life;
                let lose = |reason| begun.survival.lose(failed, reason, life, is_over).is_ok();
                return match reason.is_some_and(lose) {
                    true => {
                        self.rest = None;
                        Poll::Pending
                    }
                    false => Poll::Ready(Some(Ok(message.with_id(id)))),
                };
            }
            Ok(Ok(taken)) => taken,
        };
        match taken {
            Taken::Differs => begun.survival.differs(),
            Taken::Repeated => begun.survival.heard(false, Instant::now()),
            Taken::New | Taken::Partly(_) => {
                begun.survival.heard(true, Instant::now());
                self.former = None;
            }
        }
        if !begun.said.can_continue() {
            self.begun = None;
        }
        match taken {
            Taken::New => Poll::Ready(Some(Ok(message.with_id(id)))),
            Taken::Partly(repeated) => match cut(message, repeated) {
                Ok(message) => Poll::Ready(Some(Ok(message.with_id(id)))),
                Err(damaged) => self.fail(damaged),
            },
            Taken::Repeated => Poll::Pending,
            Taken::Differs => {
                self.fail(Status::unavailable(
                    "the model's server was lost, and another one generated another answer, which cannot continue \
                     from there; retry the request",
                ))
            }
        }
    }

    /// The server has failed the request. Pending: it may continue elsewhere.
    fn lose(&mut self, status: Status) -> Next {
        self.rest = None;
        let status = lost(status);
        let reason = retry_reason(status.code());
        if self.take_back(reason) {
            return Poll::Pending;
        }
        let Some((begun, reason)) = self.begun.as_mut().zip(reason) else {
            return self.fail(status);
        };
        let is_over = begun.is_over();
        match begun
            .survival
            .lose(status, reason, &self.open.life, is_over)
        {
            Ok(()) => Poll::Pending,
            Err(status) => self.fail(status),
        }
    }

    /// Goes back to the server that kept the request, if the one that failed it had it on trial.
    fn take_back(&mut self, reason: Option<RetryReason>) -> bool {
        let Some((begun, former)) = self.begun.as_mut().zip(self.former.take()) else {
            return false;
        };
        let Former { rest, open, source } = *former;
        begun.take_back(&open, reason, &self.open);
        if let Some(named) = &self.context.named {
            named.is_at(source);
        }
        tracing::info!(
            request_id = %self.context.request_id,
            from = %self.open.slot.address,
            to = %open.slot.address,
            "request kept on its worker: the new one failed it"
        );
        self.rest = rest;
        self.open = open;
        self.listen();
        true
    }

    fn fail(&mut self, status: Status) -> Next {
        self.rest = None;
        self.begun = None;
        self.former = None;
        self.context.trace.code(status.code());
        Poll::Ready(Some(Err(status)))
    }

    /// Continues at another server where that is due. Ready: nothing can be read now.
    fn poll_survival(&mut self, context: &mut Context<'_>) -> Option<Next> {
        let begun = self
            .begun
            .as_mut()
            .filter(|begun| begun.survival.is_due())?;
        let named = self.context.named.as_ref();
        let source = named.and_then(|named| named.source());
        match begun.poll(context, &self.open, &self.context) {
            Step::Stays => None,
            Step::Waits => Some(Poll::Pending),
            Step::Moved((rest, open)) => {
                // Dropping the first stops what its server may still be doing.
                self.rest = Some(rest);
                self.open = open;
                self.listen();
                None
            }
            Step::Tried((rest, open)) => {
                let former = Former {
                    rest: self.rest.replace(rest),
                    open: std::mem::replace(&mut self.open, open),
                    source,
                };
                self.former.get_or_insert_with(|| Box::new(former));
                self.listen();
                None
            }
            Step::Failed(status) => Some(self.fail(status)),
        }
    }

    /// Looks for events. Pending: none ends it.
    fn poll_events(&mut self, context: &mut Context<'_>) -> Next {
        while let Poll::Ready(Some(event)) = self.events.poll_next_unpin(context) {
            match event {
                Event::Ended(status) => return self.fail(status),
                Event::Notice => {
                    self.listen();
                    let notice = Begun::notice(&self.open.slot);
                    if let Some((begun, notice)) = self.begun.as_mut().zip(notice) {
                        begun.survival.notice(notice);
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
            match self.poll_survival(context) {
                Some(Poll::Pending) => return self.poll_events(context),
                Some(ready) => return ready,
                None => {}
            }
            if self.former.is_some()
                && let Some(begun) = &mut self.begun
                && begun.survival.poll_trial(context)
            {
                self.former = None;
            }
            let Some(rest) = &mut self.rest else {
                return Poll::Ready(None);
            };
            let taken = match rest.poll_next_unpin(context) {
                Poll::Ready(Some(Ok(message))) => self.receive(message),
                Poll::Ready(Some(Err(status))) => self.lose(status),
                Poll::Ready(None) => match &self.begun {
                    Some(begun) if begun.expects_final && !self.is_final => {
                        let text = "the stream ended before its last response";
                        self.lose(Status::unavailable(text))
                    }
                    _ => {
                        self.rest = None;
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
    /// Reads a separate stream to its end, so that both sides close it. A reset would cost both sides work and count
    /// as a cancellation.
    fn drop(&mut self) {
        let Some(Responses::Alone(mut rest)) = self.rest.take().filter(|_| self.is_final) else {
            return;
        };
        if let Some(None | Some(Err(_))) = rest.next().now_or_never() {
            return;
        }
        let drain = async move { while let Some(Ok(_)) = rest.next().await {} };
        tokio::spawn(tokio::time::timeout(END_TIMEOUT, drain));
    }
}
