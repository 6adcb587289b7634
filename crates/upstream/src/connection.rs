//! One model of one server, ready for requests. Owns what a request needs of it: handles, sending and
//! stopping; knows nothing of how servers are found and lost, or of clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use inflight_kserve::assets;
use inflight_models::adapter::task_of;
use inflight_models::capability::{Capability, has};
use inflight_models::served::{Protocol, ServedModel};
use tokio::time::Instant;
use tonic::Status;

use super::handles::Handle;
use super::inbox::{Inbox, Notice};
use super::placement::Seat;
use super::process::Life;
use super::prompt_request::PromptRequest;
use super::pulse::Pulse;
use super::registry::{Registry, Sequences};
use super::request_queue::NotSent;

/// How requests travel to a server; the output of each comes back through the [`Registry`].
pub trait Transport: std::fmt::Debug + Send + Sync {
    /// Sends the request of an open handle. `choice`: the first of the prompt's sequences that it is for.
    ///
    /// # Errors
    /// [`NotSent`]: nothing was sent.
    fn send(&self, handle: Handle, prompt: &PromptRequest<'_>, choice: u32) -> Result<(), NotSent>;

    /// Ends the work on a handle that nobody waits for any more.
    fn stop(&self, handle: Handle);

    /// Ends all work and sends nothing more.
    fn close(&self);
}

/// A ready connection.
#[derive(Debug)]
pub struct Connection {
    /// `host:port`, for logs and metrics.
    pub address: Arc<str>,
    pub served: Arc<ServedModel>,
    /// The LoRA adapters that the server announced last.
    adapters: ArcSwap<Vec<assets::Adapter>>,
    /// Whether the server still answers.
    pub pulse: Arc<Pulse>,
    leaving: AtomicBool,
    /// Whether the server is away, though what it was sent may still be answered.
    parted: AtomicBool,
    /// Its place among the workers of its model; `None`: there are too many.
    seat: Option<Arc<Seat>>,
    life: Life,
    transport: Box<dyn Transport>,
    registry: Arc<Registry>,
}

impl Connection {
    /// Requests travel over `transport`, whose output goes to `registry`.
    pub fn new(
        address: Arc<str>,
        served: Arc<ServedModel>,
        pulse: Arc<Pulse>,
        transport: Box<dyn Transport>,
        registry: Arc<Registry>,
    ) -> Self {
        Self {
            address,
            adapters: ArcSwap::from_pointee(served.description.adapters.clone()),
            served,
            pulse,
            leaving: AtomicBool::new(false),
            parted: AtomicBool::new(false),
            seat: None,
            life: Life::default(),
            transport,
            registry,
        }
    }

    /// With its place among the workers of its model.
    #[must_use]
    pub fn seated(self, seat: Option<Arc<Seat>>) -> Self {
        Self { seat, ..self }
    }

    /// Sets the process it is connected to.
    #[must_use]
    pub fn of(self, life: Life) -> Self {
        Self { life, ..self }
    }

    /// Whether the server is only watched: it does not take requests from here, and its answers are not seen.
    pub fn is_watched(&self) -> bool {
        self.served.protocol == Protocol::Watched
    }

    /// The process that it is to.
    pub fn life(&self) -> &Life {
        &self.life
    }

    /// Its place among the workers of its model.
    pub fn seat(&self) -> Option<&Arc<Seat>> {
        self.seat.as_ref()
    }

    /// The task of a LoRA adapter, where the server has it.
    pub fn task_of(&self, adapter: &str) -> Option<u64> {
        task_of(&self.served, &self.adapters.load(), adapter)
    }

    /// The LoRA adapters that the server has by name.
    pub fn adapters(&self) -> Arc<Vec<assets::Adapter>> {
        self.adapters.load_full()
    }

    pub(super) fn set_adapters(&self, adapters: Vec<assets::Adapter>) {
        self.adapters.store(Arc::new(adapters));
    }

    /// Opens a handle whose output goes to `inbox`; see [`Registry::open`].
    ///
    /// # Errors
    /// [`NotSent::Closed`] once the server is lost.
    pub fn open(&self, inbox: Arc<Inbox>, sequences: Sequences) -> Result<Handle, NotSent> {
        let opened = self.registry.open(inbox, sequences);
        opened.map_err(|_| NotSent::Closed)
    }

    /// Leaves a notice for every open request.
    pub fn notify(&self, notice: Notice) {
        self.registry.notify(notice);
    }

    /// The server is about to end or no longer configured: it gets no new requests, and those that can continue elsewhere do.
    pub(super) fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
        self.notify(Notice::Leaving);
    }

    /// The server is away. What it was sent may still be answered.
    pub(super) fn part(&self) {
        self.parted.store(true, Ordering::Relaxed);
    }

    /// Whether it was lost.
    fn is_lost(&self) -> bool {
        self.registry.handles.has_ended() || self.parted.load(Ordering::Relaxed)
    }

    /// Whether it was lost, as far as one knows whose request failed there. That a plain Triton ended is noticed later.
    pub fn may_be_lost(&self) -> bool {
        self.is_lost() || self.served.triton().is_some()
    }

    /// Whether the server is neither lost nor silent nor about to end.
    pub fn stays(&self) -> bool {
        !self.is_lost() && !self.is_leaving() && !self.pulse.is_silent()
    }

    /// Whether the server is about to end, or was taken out of the configured ones.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Whether requests may bring what was generated elsewhere.
    pub fn resumes(&self) -> bool {
        has(&self.served, Capability::Resume)
    }

    /// Sends the request of an open handle; see [`Transport::send`].
    ///
    /// # Errors
    /// [`NotSent`]: nothing was sent, and the handle is closed.
    pub fn send(
        &self,
        handle: Handle,
        prompt: &PromptRequest<'_>,
        choice: u32,
    ) -> Result<(), NotSent> {
        let sent = self.transport.send(handle, prompt, choice);
        if sent.is_err() {
            // Without a stop: the server has never heard of it.
            self.registry.handles.remove(handle);
        }
        sent
    }

    /// Ends a handle whose output nobody wants any more; frees its work at the server at once.
    pub fn cancel(&self, handle: Handle) {
        if self.registry.handles.remove(handle).is_some() {
            self.transport.stop(handle);
        }
    }

    /// Stops the server's work on a handle that has already failed here; its request has the error.
    pub fn stop(&self, handle: Handle) {
        self.transport.stop(handle);
    }

    /// Ends the handles whose client has read nothing for `patience`; looks at most once a second.
    pub fn sweep_stalled(&self, now: Instant, patience: Duration) {
        for (handle, _) in self.registry.handles.sweep_stalled(now, patience) {
            tracing::warn!(worker = %self.address, "stopped a request whose client stopped reading");
            self.transport.stop(handle);
        }
    }

    /// Handles that wait for output.
    pub fn active(&self) -> usize {
        self.registry.handles.active()
    }

    /// Ends every request of this connection with an error.
    pub fn fail_all(&self, text: &str) {
        let why = Status::unavailable(text);
        self.registry.handles.end(&why, Instant::now());
        self.transport.close();
    }
}
