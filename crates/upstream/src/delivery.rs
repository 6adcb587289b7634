//! The life of one request over several tries. Owns when a request goes to another server and how many it may reach, and
//! how long its first output may take. Knows codes, clocks and servers; what a request says
//! and how its answer is read is its [`Deliverable`]'s.
//!
//! Here a request moves only while its client has seen nothing of an answer: no byte of a status or a body. It is sent
//! again whole, with the same seeds, so that the answer is the one that the first server would have given. An answer in
//! one piece can begin anew until it is complete. A stream leaves this module with its first output, and from then on it is
//! moved by `Holding`, which asks `Survival` when, and one of two `Mover`s what is sent: `PromptsMover` (the gateway's
//! APIs) and `StreamMover` (KServe's streams).
//!
//! Three kinds of requests are delivered: `Sending` (the gateway's APIs), and of KServe's `StreamStart` (a stream) and
//! `UnaryCall` (an answer in one piece).

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::time::Instant;
use tonic::Code;

use super::expiry::{Expiry, GivenUp};
use super::pulse::Pulse;
use super::stops::{Caller, Stoppable};
use crate::metrics::{RetryLabels, RetryReason};
use crate::trace::Trace;

/// How many servers a request may reach. Two more than one: a rolling restart may end a second server
/// under a request that it has already moved. No more, because a request that itself ends servers must not
/// reach all of them.
const MOST_SERVERS: usize = 3;

/// How far an answer that has begun may continue at other servers.
#[derive(Clone, Copy, Debug)]
pub struct ResumeLimits {
    /// How often after a loss.
    pub most: u32,
    /// How long it waits for a server.
    pub wait: Duration,
    /// Tokens that may be computed again each time.
    pub tokens: usize,
}

/// Held as long as a request is open. Opaque here: its type belongs to the caller.
pub type Permit = Arc<dyn Any + Send + Sync>;

/// Hears how a request goes, for people who look at it.
pub trait Witness: std::fmt::Debug + Send + Sync {
    /// A server has it now, `because` of what was wrong with the one before.
    fn sent(&self, server: &Arc<str>, because: Option<&'static str>);

    /// The first output came.
    fn first_output(&self);

    /// It has generated so many tokens by now. Called with each response: it may do no more than keep the number.
    fn generated(&self, tokens: usize);

    /// It has ended: well, or with an error of this code. Only what is said first counts.
    fn ended(&self, code: Code);
}

/// What is known of a request whatever it says, and how long it may take.
#[derive(Clone, Debug, Default)]
pub struct CallContext {
    pub request_id: Arc<str>,
    pub trace: Trace,
    /// When it came; `None`: when it is delivered.
    pub since: Option<Instant>,
    /// When it must have been answered.
    pub deadline: Option<Instant>,
    /// When the first output must have come, and how long that is from the request's arrival. Only where output comes in
    /// parts.
    pub first_output: Option<(Instant, Duration)>,
    /// Its place among the admitted ones, held until the last of it is gone.
    pub place: Option<Permit>,
    /// Who may stop it by its id, and whose requests it may stop. `None`: nobody.
    pub caller: Option<Caller>,
    /// What it is stopped by, held until the last of it is gone.
    pub stoppable: Option<Arc<Stoppable>>,
    /// Who looks at it, held until the last of it is gone.
    pub witness: Option<Arc<dyn Witness>>,
}

impl CallContext {
    /// Notes that a server has the request now.
    pub(crate) fn sent(&self, server: &Arc<str>, because: Option<RetryReason>) {
        if let Some(witness) = &self.witness {
            witness.sent(server, because.map(|reason| reason.label()));
        }
    }

    /// Notes that the first output came.
    pub(crate) fn first_output_came(&self) {
        if let Some(witness) = &self.witness {
            witness.first_output();
        }
    }

    /// Notes how many tokens there are by now; 0: not known.
    pub(crate) fn generated(&self, tokens: impl FnOnce() -> usize) {
        if let Some(witness) = &self.witness {
            match tokens() {
                0 => {}
                known => witness.generated(known),
            }
        }
    }

    /// Notes that the request has ended.
    pub(crate) fn ended(&self, code: Code) {
        if let Some(witness) = &self.witness {
            witness.ended(code);
        }
    }
}

/// A request in the words of its API.
pub trait Deliverable {
    /// What a client reads of a failure.
    type Error: Send;

    /// Sends the request to a server that has not been [`Tried`], `because` of what was wrong with the one before. If one
    /// takes it, what an earlier one answered is forgotten, and its work is stopped.
    ///
    /// # Errors
    /// None takes it; then nothing has changed.
    fn send(
        &mut self,
        tried: &mut Tried,
        because: Option<RetryReason>,
    ) -> Result<Sent, Self::Error>;

    /// Waits for the first output; ready if it has come. May be dropped and called again.
    ///
    /// # Errors
    /// The request failed.
    fn begin(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Waits for the rest of an answer that goes out in one piece. May be dropped and called again.
    ///
    /// # Errors
    /// The request failed.
    fn complete(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        std::future::ready(Ok(()))
    }

    /// Whether from now on its own `Survival` moves the request, which has begun, and not [`deliver`].
    fn survives(&self) -> bool {
        false
    }

    /// Waits for a server after all `sent` ones were lost, and no other has it: what follows is waited for as before.
    /// Only a request that then survives by itself can.
    ///
    /// # Errors
    /// `error`, which the last one failed it with: it does not wait.
    fn outlive(&mut self, error: Self::Error, sent: usize) -> Result<(), Self::Error> {
        let _ = sent;
        Err(error)
    }

    /// Why another server may do what this one did not; `None`: it may not, or the request moves by itself.
    fn retry_reason(&self, error: &Self::Error) -> Option<RetryReason>;

    /// Ends the request.
    fn give_up(&mut self, why: GivenUp) -> Self::Error;
}

/// The server that has a request.
#[derive(Debug)]
pub struct Sent {
    /// `host:port`.
    pub address: Arc<str>,
    pub pulse: Arc<Pulse>,
}

/// The servers that a request has been sent to. None gets it twice.
#[derive(Clone, Debug, Default)]
pub struct Tried(Vec<Arc<str>>);

impl Tried {
    /// Whether the request may reach another server.
    pub fn has_room(&self) -> bool {
        self.0.len() < MOST_SERVERS
    }

    /// Whether no server has had it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Their addresses.
    pub fn addresses(&self) -> &[Arc<str>] {
        &self.0
    }

    /// Adds a server.
    pub fn add(&mut self, address: &Arc<str>) {
        self.0.push(Arc::clone(address));
    }
}

/// What a wait for output ended with.
enum Waited<E> {
    Answered(Result<(), E>),
    Silence,
    GivenUp(GivenUp),
}

/// Sends a request, and to another server as long as one fails it. Returns once the client can be answered: at the
/// first output of a stream, or with all of an answer in one piece.
///
/// # Errors
/// The request failed, or was given up, and no other server can take it.
pub async fn deliver<R: Deliverable>(
    request: &mut R,
    context: &CallContext,
    expiry: &mut Expiry,
    retries: &Family<RetryLabels, Counter>,
) -> Result<(), R::Error> {
    let mut tried = Tried::default();
    let mut sent = request.send(&mut tried, None)?;
    context.sent(&sent.address, None);
    let mut heeds_silence = true;
    // Until output has come: an answer in one piece may begin anew long after that.
    let mut first_output = context.first_output;
    loop {
        let silence = async {
            match heeds_silence {
                true => sent.pulse.silence().await,
                false => std::future::pending().await,
            }
        };
        let waited = wait(request, &mut first_output, silence, expiry);
        let (reason, error) = match waited.await {
            Waited::Answered(Ok(())) => return Ok(()),
            Waited::Answered(Err(error)) => match request.retry_reason(&error) {
                Some(reason) => (reason, Some(error)),
                None => return Err(error),
            },
            Waited::Silence => (RetryReason::Silent, None),
            Waited::GivenUp(why) => return Err(request.give_up(why)),
        };
        let next = match tried.has_room() {
            true => request.send(&mut tried, Some(reason)).ok(),
            false => None,
        };
        match (next, error) {
            (Some(next), _) => {
                tracing::info!(
                    request_id = %context.request_id,
                    from = %sent.address,
                    to = %next.address,
                    reason = reason.label(),
                    "request sent to another worker"
                );
                context.sent(&next.address, Some(reason));
                let labels = RetryLabels::from(reason);
                retries.get_or_create(&labels).inc();
                sent = next;
                heeds_silence = true;
            }
            (None, Some(error)) if reason == RetryReason::Unavailable => {
                request.outlive(error, tried.addresses().len())?;
                heeds_silence = false;
            }
            (None, Some(error)) => return Err(error),
            // There is no other server, so wait for this one: it may resume.
            (None, None) => heeds_silence = false,
        }
    }
}

async fn wait<R: Deliverable>(
    request: &mut R,
    first_output: &mut Option<(Instant, Duration)>,
    silence: impl Future<Output = ()>,
    expiry: &mut Expiry,
) -> Waited<R::Error> {
    tokio::pin!(silence);
    tokio::select! {
        biased;
        begun = request.begin() => if begun.is_err() {
            return Waited::Answered(begun);
        },
        () = &mut silence => return Waited::Silence,
        why = &mut *expiry => return Waited::GivenUp(why),
        limit = reached(*first_output) => return Waited::GivenUp(GivenUp::NoOutput(limit)),
    }
    *first_output = None;
    let survives = request.survives();
    tokio::select! {
        biased;
        completed = request.complete() => Waited::Answered(completed),
        () = silence, if !survives => Waited::Silence,
        why = expiry => Waited::GivenUp(why),
    }
}

/// Resolves to the limit when its time has come; never without one.
async fn reached(limit: Option<(Instant, Duration)>) -> Duration {
    match limit {
        Some((until, limit)) => {
            tokio::time::sleep_until(until).await;
            limit
        }
        None => std::future::pending().await,
    }
}

/// Why another server may do what one refused with this code.
pub fn reason_of_code(code: Code) -> Option<RetryReason> {
    match code {
        Code::Unavailable | Code::Cancelled | Code::Aborted => Some(RetryReason::Unavailable),
        Code::ResourceExhausted => Some(RetryReason::Full),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
