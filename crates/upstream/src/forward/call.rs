//! A call as `delivery` sees it: which server it is sent to, and what its answer is. What the call asks is its caller's.

use std::pin::Pin;
use std::sync::Arc;

use inflight_kserve::inference::ModelInferRequest;
use tonic::Status;

use super::failures::{given_up, lost};
use super::prompt::Prompt;
use super::{Forward, Target};
use crate::connection::Connection;
use crate::delivery::{CallContext, Deliverable, Sent, Tried, deliver, reason_of_code};
use crate::expiry::{Expiry, GivenUp};
use crate::metrics::RetryReason;
use crate::placement::Placed;
use crate::pool::{Link, Pool};
use crate::process::Life;
use crate::slot::WorkerSlot;
use crate::stops::Source;
use crate::table::Picked;
use crate::visit::Visit;

/// An open call at a server.
#[derive(Debug)]
pub struct OpenCall {
    pub(super) picked: Picked,
    pub(super) link: Arc<Link>,
    pub(super) generator: Generator,
    pub(super) life: Life,
    /// That it counts there.
    visit: Visit,
}

/// What generates the answers of a model, as far as they may continue elsewhere: its connection as it was then.
#[derive(Debug)]
pub(super) struct Generator {
    one: Option<Arc<Connection>>,
    /// Whether it is the model itself, and no model before it.
    is_core: bool,
}

impl Generator {
    pub(super) fn of(picked: &Picked) -> Self {
        let one = picked.generates();
        let is_core = one
            .as_ref()
            .is_some_and(|one| one.served.description.core_model_name == picked.model);
        Self { one, is_core }
    }

    fn core(&self) -> Option<&Connection> {
        self.one.as_deref().filter(|_| self.is_core)
    }

    /// Whether the model takes what was generated elsewhere.
    pub(super) fn resumes(&self) -> bool {
        self.core().is_some_and(Connection::resumes)
    }

    /// Whether each response has the text so far.
    pub(super) fn accumulates(&self) -> bool {
        let model = self.core().and_then(|core| core.served.triton());
        model.is_some_and(|model| model.accumulates)
    }

    /// A hash of its weights; empty: unknown.
    pub(super) fn weights(&self) -> &str {
        let one = self.one.as_ref();
        one.map_or("", |one| &one.served.description.weights)
    }
}

impl OpenCall {
    pub(super) fn new(picked: Picked, placed: Option<Placed>, link: Arc<Link>) -> Self {
        let slot = &picked.slot;
        Self {
            generator: Generator::of(&picked),
            life: slot.life(),
            visit: Visit::at(Arc::clone(slot), placed),
            picked,
            link,
        }
    }

    /// The server, for who waits for its answer.
    pub(super) fn sent(&self) -> Sent {
        let slot = &self.picked.slot;
        Sent {
            address: Arc::clone(&slot.address),
            pulse: Arc::clone(&slot.pulse),
        }
    }

    /// Why its server no longer has it, where its connection may not show that: a connection to a machine that vanished says
    /// nothing for 20 s. Either the server was given up for its silence, perhaps by another connection, or another
    /// process has been met at its address. The latter counts where there `is_one` at an address, and not several.
    pub(super) fn gone(&self, is_one: bool) -> Option<&'static str> {
        let slot = &self.picked.slot;
        if is_one && self.life.is_over(&slot.life()) {
            return Some("the server has ended");
        }
        let is_given_up = slot.pulse.is_silent() && !slot.peer.is_up();
        is_given_up.then_some("the server has not answered for too long")
    }

    /// Resolves once it is [`gone`](Self::gone).
    async fn until_gone(&self, is_one: bool) -> &'static str {
        let mut notices = self.picked.slot.notices();
        loop {
            if let Some(why) = self.gone(is_one) {
                return why;
            }
            // The sender lives as long as the slot.
            let _ = notices.changed().await;
        }
    }

    /// The first output came.
    pub(super) fn started(&mut self) {
        self.visit.started();
    }

    /// Where to send a stop for this id.
    pub(super) fn source(&self, id: &str) -> Source {
        Source {
            picked: self.picked.clone(),
            link: Arc::clone(&self.link),
            id: id.to_owned(),
        }
    }
}

/// What is asked, whatever the call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallSpec<'a> {
    pub model: &'a str,
    pub version: &'a str,
    pub context: &'a CallContext,
    pub is_stream: bool,
    /// Whether a model works on it, so that it is a part of its request's trace.
    pub works: bool,
    /// Whether it may share a stream with others.
    pub shares: bool,
    /// What it asks of a worker's cache.
    pub prompt: Option<&'a Prompt>,
}

impl<'a> CallSpec<'a> {
    /// A question about a model, which no model works on.
    pub(super) fn question((model, version): (&'a str, &'a str), context: &'a CallContext) -> Self {
        Self {
            model,
            version,
            context,
            is_stream: false,
            works: false,
            shares: false,
            prompt: None,
        }
    }

    /// A request whose answer is a stream.
    pub(super) fn stream(
        message: &'a ModelInferRequest,
        context: &'a CallContext,
        prompt: Option<&'a Prompt>,
    ) -> Self {
        Self {
            is_stream: true,
            works: true,
            prompt,
            ..Self::question((&message.model_name, &message.model_version), context)
        }
    }

    /// Notes in the request's trace that it was sent.
    pub(super) fn trace_sent(self, slot: &WorkerSlot, because: Option<RetryReason>) {
        if self.works {
            let trace = &self.context.trace;
            let method = match self.is_stream {
                true => "ModelStreamInfer",
                false => "ModelInfer",
            };
            trace.sent(trace.sending(), method, &slot.address, because);
        }
    }

    pub(super) fn link(self, pool: &Pool) -> Arc<Link> {
        match self.shares {
            true => pool.sharing_link(),
            false => pool.link(),
        }
    }
}

impl Forward {
    /// Opens the call at the server that it is for, or at one that has not been tried.
    ///
    /// # Errors
    /// No other can answer.
    pub(super) fn open(
        &self,
        asked: CallSpec<'_>,
        target: &Target,
        tried: &mut Tried,
        because: Option<RetryReason>,
    ) -> Result<OpenCall, Status> {
        let (picked, placed, link) = match target {
            Target::Same(source) if tried.is_empty() => {
                (source.picked.clone(), None, Arc::clone(&source.link))
            }
            Target::Same(_) => return Err(Status::unavailable("only one server has the request")),
            Target::Any => {
                let (picked, placed) = self.pick(asked, tried.addresses())?;
                let link = asked.link(&picked.pool);
                (picked, placed, link)
            }
        };
        tried.add(&picked.slot.address);
        asked.trace_sent(&picked.slot, because);
        Ok(OpenCall::new(picked, placed, link))
    }

    /// Makes a call at the server that it is for, or at another one if that cannot answer.
    pub(super) async fn call<T, F>(
        &self,
        asked: CallSpec<'_>,
        target: Target,
        ask: impl Fn(&OpenCall) -> F + Send,
    ) -> Result<T, Status>
    where
        T: Send,
        F: Future<Output = Result<T, Status>> + Send,
    {
        let context = asked.context;
        let mut call = UnaryCall {
            forward: self,
            asked,
            target,
            ask,
            current: None,
            answer: None,
        };
        let mut expiry = Expiry::new(&self.ending, context.deadline);
        deliver(&mut call, context, &mut expiry, &self.metrics.retries).await?;
        let answer = call.answer;
        answer.ok_or_else(|| Status::internal("no answer came"))
    }
}

/// A call on its way.
struct UnaryCall<'a, T, A, F> {
    forward: &'a Forward,
    asked: CallSpec<'a>,
    target: Target,
    /// Asks a server.
    ask: A,
    current: Option<(OpenCall, Pin<Box<F>>)>,
    answer: Option<T>,
}

impl<T, A, F> Deliverable for UnaryCall<'_, T, A, F>
where
    T: Send,
    A: Fn(&OpenCall) -> F + Send,
    F: Future<Output = Result<T, Status>> + Send,
{
    type Error = Status;

    fn send(&mut self, tried: &mut Tried, because: Option<RetryReason>) -> Result<Sent, Status> {
        let open = (self.forward).open(self.asked, &self.target, tried, because)?;
        let sent = open.sent();
        let answer = Box::pin((self.ask)(&open));
        self.current = Some((open, answer));
        Ok(sent)
    }

    async fn begin(&mut self) -> Result<(), Status> {
        let Some((open, answer)) = &mut self.current else {
            return Err(Status::internal("the call was not sent"));
        };
        // Work that cannot move waits for its connection's word: several workers may be behind one address.
        let is_question = !self.asked.works;
        self.answer = tokio::select! {
            biased;
            answer = answer.as_mut() => Some(answer.map_err(lost)?),
            why = open.until_gone(is_question) => return Err(Status::unavailable(why)),
        };
        open.picked.slot.pulse.hear();
        Ok(())
    }

    fn retry_reason(&self, status: &Status) -> Option<RetryReason> {
        reason_of_code(status.code())
    }

    fn give_up(&mut self, why: GivenUp) -> Status {
        given_up(why)
    }
}
