//! Bounds the memory of messages that have arrived in part.
//!
//! tonic collects a message until it is whole, so many messages that never end would take as much memory as
//! their senders like. Here a message that does not arrive at once takes its length out of a budget that all
//! connections share, before more of it is read; HTTP/2's flow control then holds its sender back. One that
//! is not whole in time ends its call. Knows gRPC's framing and nothing of what the messages say.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

/// The budget, in messages of the largest size: enough for several large prompts at once.
const LARGEST_MESSAGES: usize = 4;
/// A message must be whole within this time of its first part: 64 MiB at 2 MB/s.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(30);
/// The budget is counted in units of this many bytes.
const UNIT: usize = 1024;

/// What messages that have arrived in part may take together.
#[derive(Clone, Debug)]
pub(crate) struct ArrivalBudget {
    units: Arc<Semaphore>,
    max_message_bytes: usize,
}

impl ArrivalBudget {
    pub(crate) fn new(max_message_bytes: usize) -> Self {
        let units = units_of(max_message_bytes).saturating_mul(LARGEST_MESSAGES);
        Self {
            units: Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))),
            max_message_bytes,
        }
    }
}

fn units_of(bytes: usize) -> usize {
    bytes.div_ceil(UNIT)
}

/// A gRPC service whose incoming messages share a budget.
#[derive(Clone, Debug)]
pub(crate) struct Budgeted<S> {
    service: S,
    budget: ArrivalBudget,
}

impl<S> Budgeted<S> {
    pub(crate) fn new(service: S, budget: ArrivalBudget) -> Self {
        Self { service, budget }
    }
}

impl<S: NamedService> NamedService for Budgeted<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Service<http::Request<Body>>> Service<http::Request<Body>> for Budgeted<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> S::Future {
        let budget = self.budget.clone();
        self.service
            .call(request.map(|body| Body::new(ArrivingMessages::new(body, budget))))
    }
}

type Acquire = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// The body of a call: gRPC messages, cut anywhere.
struct ArrivingMessages {
    body: Body,
    budget: ArrivalBudget,
    framing: Framing,
    /// For the message that is arriving.
    held: Option<OwnedSemaphorePermit>,
    /// A part that waits for its message's share of the budget.
    waiting: Option<(Bytes, Acquire)>,
    /// Runs while a message is arriving.
    timer: Option<Pin<Box<Sleep>>>,
}

impl ArrivingMessages {
    fn new(body: Body, budget: ArrivalBudget) -> Self {
        Self {
            body,
            budget,
            framing: Framing::default(),
            held: None,
            waiting: None,
            timer: None,
        }
    }

    /// Notes a part and what it leaves unfinished; returns it, unless it has to wait.
    fn take(&mut self, part: Bytes) -> Option<Bytes> {
        let ended = self.framing.read(&part);
        if ended {
            self.held = None;
            self.timer = None;
        }
        let Some(length) = self.framing.arriving() else {
            return Some(part);
        };
        if self.timer.is_none() {
            self.timer = Some(Box::pin(sleep(ARRIVAL_TIMEOUT)));
        }
        // tonic refuses a message that is too large as soon as it sees its length.
        if self.held.is_some() || length > self.budget.max_message_bytes {
            return Some(part);
        }
        let units = u32::try_from(units_of(length)).unwrap_or(u32::MAX);
        let semaphore = Arc::clone(&self.budget.units);
        match Arc::clone(&semaphore).try_acquire_many_owned(units) {
            Ok(permit) => {
                self.held = Some(permit);
                Some(part)
            }
            Err(_) => {
                self.waiting = Some((part, Box::pin(semaphore.acquire_many_owned(units))));
                None
            }
        }
    }

    fn poll_timer(&mut self, context: &mut Context<'_>) -> Option<Status> {
        let timer = self.timer.as_mut()?;
        timer.as_mut().poll(context).is_ready().then(|| {
            self.timer = None;
            let seconds = ARRIVAL_TIMEOUT.as_secs();
            if self.waiting.is_some() {
                Status::resource_exhausted(
                    "the worker is receiving too many large messages; retry later",
                )
            } else {
                Status::deadline_exceeded(format!(
                    "a message did not arrive whole within `{seconds}` s"
                ))
            }
        })
    }
}

impl HttpBody for ArrivingMessages {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if let Some(status) = this.poll_timer(context) {
            return Poll::Ready(Some(Err(status)));
        }
        loop {
            if let Some((part, mut acquire)) = this.waiting.take() {
                match acquire.as_mut().poll(context) {
                    Poll::Pending => {
                        this.waiting = Some((part, acquire));
                        return Poll::Pending;
                    }
                    // It is never closed.
                    Poll::Ready(permit) => this.held = permit.ok(),
                }
                return Poll::Ready(Some(Ok(Frame::data(part))));
            }
            let frame = match Pin::new(&mut this.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => frame,
                other => return other,
            };
            match frame.into_data() {
                Ok(part) => {
                    if let Some(part) = this.take(part) {
                        return Poll::Ready(Some(Ok(Frame::data(part))));
                    }
                    // A waiting request must also be woken when its time is over.
                    if let Some(status) = this.poll_timer(context) {
                        return Poll::Ready(Some(Err(status)));
                    }
                }
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none() && self.body.is_end_stream()
    }
}

/// Where in the framing a call's bytes are: each message has a byte of flags, its length in four bytes
/// (big endian), and itself.
#[derive(Debug, Default)]
struct Framing {
    header: [u8; 5],
    header_bytes: usize,
    /// Of the message that is arriving, once its header is whole.
    length: usize,
    missing: usize,
}

impl Framing {
    /// Reads on; true if a message ended in these bytes.
    fn read(&mut self, mut bytes: &[u8]) -> bool {
        let mut ended = false;
        while let Some((first, rest)) = bytes.split_first() {
            if let Some(place) = self.header.get_mut(self.header_bytes) {
                *place = *first;
                self.header_bytes += 1;
                bytes = rest;
                if self.header_bytes < self.header.len() {
                    continue;
                }
                let [_, length @ ..] = self.header;
                self.length = u32::from_be_bytes(length) as usize;
                self.missing = self.length;
            } else {
                let taken = self.missing.min(bytes.len());
                self.missing -= taken;
                bytes = bytes.get(taken..).unwrap_or_default();
            }
            if self.missing == 0 {
                self.header_bytes = 0;
                ended = true;
            }
        }
        ended
    }

    /// The length of a message of which a part has arrived; `None` between messages and within a header.
    fn arriving(&self) -> Option<usize> {
        (self.header_bytes == self.header.len()).then_some(self.length)
    }
}

#[cfg(test)]
mod tests;
