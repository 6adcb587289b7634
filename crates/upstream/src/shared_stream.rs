//! One stream to a worker that many small requests share: what the worker has ready for them is written and read
//! together. Owns which response is whose, and how much may wait for clients that read slowly; its caller decides
//! which requests may share.
//!
//! The stream is always read, so that a client that does not read never holds up the others. What is ready is read
//! first and handed out then, so that each waiting client is woken once.

mod mailbox;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::stop::stop_by_id;
use inflight_kserve::streamed::{EncodedResponse, StreamClient, StreamedResponse};
use tokio::time::Instant;
use tonic::{Status, Streaming};

use self::mailbox::Mailbox;
use super::handles::{Handle, Handles, Waiting};
use super::pulse::Pulse;
use super::request_queue::{NotSent, RequestQueue};

/// Responses that are read before any is handed out.
const READ_AT_ONCE: usize = 256;
/// Between a client's id and the number that makes it the request's own.
const ID_SEPARATOR: char = '.';

/// What a shared stream may hold.
#[derive(Clone, Copy, Debug)]
pub struct SharingLimits {
    /// Requests that wait to be written.
    pub send_queue: usize,
    /// How long a client may leave responses unread before its request is stopped.
    pub slow_client: Duration,
}

/// See the module.
#[derive(Debug)]
pub struct SharedStream {
    queue: Arc<RequestQueue<ModelInferRequest>>,
    /// Makes its requests' ids differ from those of other streams: a server may find a request by its id alone.
    salt: u32,
    requests: Handles<Entry>,
    /// Bytes of responses that wait for clients that are behind.
    backlog: Arc<AtomicUsize>,
}

/// A request whose last response has not come.
#[derive(Debug)]
struct Entry {
    mailbox: Arc<Mailbox>,
    model: String,
    id: String,
}

impl Waiting for Entry {
    fn unread_since(&self) -> Option<Instant> {
        self.mailbox.unread_since()
    }

    fn fail(&self, why: &Status, _: Instant) -> Option<Waker> {
        self.mailbox.fail(why.clone())
    }
}

impl SharedStream {
    /// Opens a stream on the client's connection. What arrives is a sign of life, however late a client reads it. Needs
    /// a tokio runtime.
    pub fn open(client: StreamClient, limits: SharingLimits, pulse: Arc<Pulse>) -> Arc<Self> {
        let stream = Arc::new(Self::unopened(limits));
        tokio::spawn(Arc::clone(&stream).run(client, limits.slow_client, pulse));
        stream
    }

    fn unopened(limits: SharingLimits) -> Self {
        Self {
            queue: Arc::new(RequestQueue::new(limits.send_queue)),
            salt: rand::random(),
            requests: Handles::default(),
            backlog: Arc::default(),
        }
    }

    /// Whether it has stopped taking requests.
    pub fn has_ended(&self) -> bool {
        self.requests.has_ended()
    }

    /// Requests whose last response has not come.
    pub fn open_requests(&self) -> usize {
        self.requests.active()
    }

    /// Bytes of responses that wait for clients that are behind.
    pub fn unread_bytes(&self) -> usize {
        self.backlog.load(Ordering::Relaxed)
    }

    /// Sends a request under an id that no other request of the server has, which begins with its own.
    ///
    /// # Errors
    /// UNAVAILABLE: the stream is over. RESOURCE_EXHAUSTED: too many requests wait to be sent.
    pub fn send(
        self: &Arc<Self>,
        mut message: ModelInferRequest,
    ) -> Result<SharedResponses, Status> {
        let mailbox = Arc::new(Mailbox::new(Arc::clone(&self.backlog)));
        let (model, own) = (message.model_name.clone(), std::mem::take(&mut message.id));
        let handle = self.requests.open(|handle| {
            message.id = format!(
                "{own}{ID_SEPARATOR}{:x}{ID_SEPARATOR}{:x}",
                self.salt,
                handle.number()
            );
            Entry {
                mailbox: Arc::clone(&mailbox),
                model,
                id: message.id.clone(),
            }
        })?;
        let id = message.id.clone();
        if let Err(not_sent) = self.queue.send(handle, message) {
            // Without a stop: the worker has never heard of it.
            self.requests.remove(handle);
            return Err(match not_sent {
                NotSent::Full => Status::resource_exhausted(not_sent.to_string()),
                NotSent::Closed => Status::unavailable(not_sent.to_string()),
            });
        }
        Ok(SharedResponses {
            stream: Arc::clone(self),
            handle,
            id,
            mailbox,
            taken: mailbox::Batch::default(),
        })
    }

    /// Stops taking requests; open ones continue.
    pub fn close(&self) {
        self.queue.close();
    }

    async fn run(
        self: Arc<Self>,
        mut client: StreamClient,
        slow_client: Duration,
        pulse: Arc<Pulse>,
    ) {
        let why = match client.model_stream_infer(self.queue.stream()).await {
            Ok(answer) => self.read(answer.into_inner(), slow_client, &pulse).await,
            Err(status) => status,
        };
        self.end(&why);
    }

    /// Reads until the stream ends; returns why it did.
    async fn read(
        &self,
        mut stream: Streaming<EncodedResponse>,
        slow_client: Duration,
        pulse: &Pulse,
    ) -> Status {
        let mut ready = Vec::new();
        loop {
            let end = std::future::poll_fn(|context| poll_ready(&mut stream, &mut ready, context));
            let end = end.await;
            if !ready.is_empty() {
                pulse.hear();
            }
            let now = Instant::now();
            if let Err(damaged) = self.hand_out(&mut ready, now) {
                return damaged;
            }
            self.sweep(now, slow_client);
            if let Some(status) = end {
                return status;
            }
        }
    }

    /// Gives each response to its request, and wakes those who wait.
    ///
    /// # Errors
    /// One is damaged, so that nobody knows whose it is. Those before it are handed out.
    fn hand_out(&self, ready: &mut Vec<EncodedResponse>, now: Instant) -> Result<(), Status> {
        let mut requests = self.requests.lock();
        for message in ready.drain(..) {
            let (handle, is_final) = {
                let view = message.view()?;
                (handle_of(view.id), view.is_final())
            };
            // What comes late for a request that was stopped finds nobody.
            let found = handle.and_then(|handle| Some((handle, requests.get(handle)?)));
            let Some((handle, entry)) = found else {
                continue;
            };
            let waker = match entry.mailbox.put(message, is_final, now) {
                Ok(waker) => waker,
                Err(full) => {
                    self.stop(handle, entry);
                    requests
                        .remove(handle)
                        .and_then(|entry| entry.fail(&full.into(), now))
                }
            };
            requests.wake(waker);
            if is_final {
                requests.remove(handle);
            }
        }
        Ok(())
    }

    /// Ends the requests whose client has read nothing for `patience`.
    fn sweep(&self, now: Instant, patience: Duration) {
        for (handle, entry) in self.requests.sweep_stalled(now, patience) {
            self.stop(handle, &entry);
        }
    }

    /// Ends every request with `why` and stops taking requests.
    fn end(&self, why: &Status) {
        self.queue.close();
        self.requests.end(why, Instant::now());
    }

    /// Forgets a request, and stops it if more could have come.
    fn leave(&self, handle: Handle) {
        if let Some(entry) = self.requests.remove(handle) {
            self.stop(handle, &entry);
        }
    }

    fn stop(&self, handle: Handle, entry: &Entry) {
        self.queue
            .stop(handle, || stop_by_id(&entry.model, &entry.id));
    }
}

/// Reads what is ready. Ready when nothing more is, or enough; with why, once the stream has ended.
fn poll_ready(
    stream: &mut Streaming<EncodedResponse>,
    ready: &mut Vec<EncodedResponse>,
    context: &mut Context<'_>,
) -> Poll<Option<Status>> {
    while ready.len() < READ_AT_ONCE {
        match stream.poll_next_unpin(context) {
            Poll::Ready(Some(Ok(message))) => ready.push(message),
            Poll::Ready(Some(Err(status))) => return Poll::Ready(Some(status)),
            Poll::Ready(None) => {
                let text = "the worker ended the stream";
                return Poll::Ready(Some(Status::unavailable(text)));
            }
            Poll::Pending if ready.is_empty() => return Poll::Pending,
            Poll::Pending => break,
        }
    }
    Poll::Ready(None)
}

/// Whose response it is, by the number at the end of its id.
fn handle_of(id: &str) -> Option<Handle> {
    let (_, number) = id.rsplit_once(ID_SEPARATOR)?;
    u64::from_str_radix(number, 16).ok().map(Handle::new)
}

/// The responses to one request, up to its last. Dropping them before that stops the request.
#[derive(Debug)]
pub struct SharedResponses {
    stream: Arc<SharedStream>,
    handle: Handle,
    id: String,
    mailbox: Arc<Mailbox>,
    taken: mailbox::Batch,
}

impl SharedResponses {
    /// The request's id at the worker.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl Stream for SharedResponses {
    type Item = Result<EncodedResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { mailbox, taken, .. } = &mut *self;
        if let Some(message) = taken.next() {
            return Poll::Ready(Some(Ok(message)));
        }
        match mailbox.poll_take(context, taken) {
            Poll::Ready(Ok(())) => Poll::Ready(taken.next().map(Ok)),
            Poll::Ready(Err(status)) => Poll::Ready(Some(Err(status))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for SharedResponses {
    fn drop(&mut self) {
        self.stream.leave(self.handle);
        self.mailbox.discard();
    }
}

#[cfg(test)]
mod tests;
