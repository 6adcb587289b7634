//! What still has to be sent on one gRPC stream, and which requests are live on it.
//!
//! The engine's await thread puts rows in, once per iteration. The stream takes everything that is there
//! whenever the connection has room, so a client that is behind gets the rows of several iterations in one
//! message instead of a queue of messages. What can wait is thus bounded by `max_tokens` of the live
//! requests. Knows nothing of sockets and executors.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::OnceLock;
use std::task::Waker;
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use inflight_kserve::step::{Handle, Row, StepBatch};
use inflight_kserve::streamed::SentResponse;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tonic::{Code, Status};

use crate::batch;
use crate::executor::{ClientId, NamedTensor, ResponseBatch};
use crate::respond::Responder;

/// Iterations whose rows wait for more where nobody reads them before the last. What waits is lost with a worker, and
/// generated again.
const HELD_ITERATIONS: u64 = 16;
/// Refusals that may wait for a client that sends bad requests and does not read the answers. At this
/// limit its requests are no longer read.
const MAX_WAITING_REFUSALS: usize = 1024;

/// The rows and replies that wait for one stream.
#[derive(Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    waker: AtomicWaker,
    /// Notified when refusals were taken and requests may be read again.
    room: Notify,
    /// Build the responses of plain requests. Not in `state`, so that building them does not block the
    /// await thread.
    responders: Mutex<HashMap<ClientId, Responder>>,
    /// The place of the model that handles on this stream are of.
    steps_of: OnceLock<u8>,
}

#[derive(Default)]
struct State {
    replies: VecDeque<SentResponse>,
    step: StepBatch,
    step_waited: Waited,
    /// Whether the stream was to be woken for what is in `step`.
    step_is_due: bool,
    /// The iteration since which rows in `step` wait for more.
    held_since: u64,
    plain: ResponseBatch,
    plain_waited: Waited,
    /// Live step requests.
    handles: HashMap<Handle, ClientId>,
    /// Handles whose final row is in `step`.
    ending: HashSet<Handle>,
    /// Executor requests whose final row has not arrived.
    live: usize,
    /// Error rows of refused requests in `step`; the other refusals are `replies`.
    refused_rows: usize,
    /// No more requests will arrive; the stream ends once everything is sent.
    finishing: bool,
    /// The stream is gone.
    closed: bool,
    failure: Option<Status>,
    waiting_since: Option<Instant>,
}

/// Whether the rows that wait are of several iterations and must be merged before they are sent.
#[derive(Clone, Copy, Default)]
struct Waited {
    last: u64,
    several: bool,
}

impl Waited {
    fn add(&mut self, iteration: u64, first: bool) {
        self.several = !first && (self.several || self.last != iteration);
        self.last = iteration;
    }
}

/// When rows arrived, by the clock and by number of iteration.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) now: Instant,
    pub(crate) iteration: u64,
}

/// What a stream knows about a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Never used, or its final row has been sent; whether the client has read it cannot be known here.
    No,
    /// Its request is live.
    Live(ClientId),
    /// Its final row is waiting to be sent.
    Ending,
}

/// What [`Outbox::take`] found.
pub(crate) enum Taken {
    Reply(SentResponse),
    /// Rows under the client's handles.
    Step(StepBatch),
    /// Rows under client ids, for [`Outbox::respond`].
    Plain(ResponseBatch),
    Failed(Status),
    End,
    Nothing,
}

impl State {
    /// Whether anything is there that the client is to read now; what may wait is not.
    fn waits(&self) -> bool {
        !self.replies.is_empty() || self.step_is_due || !self.plain.rows.ids.is_empty()
    }

    fn refusals(&self) -> usize {
        self.replies.len() + self.refused_rows
    }

    /// The final row of a live step request is in `step`.
    fn end_handle(&mut self, handle: Handle) {
        self.handles.remove(&handle);
        self.ending.insert(handle);
        self.live = self.live.saturating_sub(1);
    }

    /// Notes that step rows are put in. Returns whether the stream is to be woken for them.
    fn put(&mut self, may_wait: bool, moment: Moment) -> bool {
        let is_first = self.step.ids.is_empty();
        if is_first {
            self.held_since = moment.iteration;
        }
        self.step_waited.add(moment.iteration, is_first);
        let held = moment.iteration.saturating_sub(self.held_since);
        let wake = !self.step_is_due && (!may_wait || held + 1 >= HELD_ITERATIONS);
        self.step_is_due |= wake;
        wake
    }

    fn note_waiting(&mut self, now: Instant) {
        self.waiting_since.get_or_insert(now);
    }
}

impl Outbox {
    /// Makes handles on this stream those of a model, unless they are another's already. Returns whose they are.
    pub(crate) fn bind_steps(&self, place: u8) -> u8 {
        *self.steps_of.get_or_init(|| place)
    }

    /// The place of the model that handles on this stream are of, once there was one.
    pub(crate) fn steps_of(&self) -> Option<u8> {
        self.steps_of.get().copied()
    }

    /// Registers live requests before any of their rows can arrive; a step request has a handle. Returns
    /// false if the stream has ended and they should be cancelled.
    pub(crate) fn admit(&self, client_ids: &[ClientId], handle: Option<Handle>) -> bool {
        let mut state = self.state.lock();
        if state.closed {
            return false;
        }
        state.live += client_ids.len();
        if let (Some(handle), Some(client_id)) = (handle, client_ids.first()) {
            state.handles.insert(handle, *client_id);
        }
        true
    }

    pub(crate) fn add_responder(&self, client_id: ClientId, responder: Responder) {
        self.responders.lock().insert(client_id, responder);
    }

    pub(crate) fn find(&self, handle: Handle) -> Known {
        let state = self.state.lock();
        match state.handles.get(&handle) {
            Some(client_id) => Known::Live(*client_id),
            None if state.ending.contains(&handle) => Known::Ending,
            None => Known::No,
        }
    }

    /// Forgets a handle whose rows are dropped from now on. Returns false if its final row came first.
    pub(crate) fn forget_handle(&self, handle: Handle) -> bool {
        let mut state = self.state.lock();
        let live = state.handles.remove(&handle).is_some();
        if live {
            state.live = state.live.saturating_sub(1);
        }
        live
    }

    /// Puts in the rows of one iteration, all of step requests on this stream. `ended` are the handles
    /// whose final row is among them. If they `may_wait`, nobody reads them now.
    pub(crate) fn put_step(
        &self,
        rows: StepBatch,
        ended: &[Handle],
        may_wait: bool,
        moment: Moment,
    ) -> Delivery {
        let mut state = self.state.lock();
        if state.closed {
            return Delivery::default();
        }
        let wake = state.put(may_wait, moment);
        state.step.append(rows);
        for handle in ended {
            state.end_handle(*handle);
        }
        delivered(&mut state, wake, moment.now)
    }

    /// Puts in one row of the step request with this handle. A final row is dropped if the handle was
    /// forgotten, because the handle has had its final row then.
    pub(crate) fn put_step_row(
        &self,
        row: &Row<'_, ClientId>,
        handle: Handle,
        may_wait: bool,
        moment: Moment,
    ) -> Delivery {
        let mut state = self.state.lock();
        let forgotten = row.is_final && state.handles.get(&handle) != Some(&row.id);
        if state.closed || forgotten {
            return Delivery::default();
        }
        let wake = state.put(may_wait, moment);
        state.step.push(&row.with_id(handle));
        if row.is_final {
            state.end_handle(handle);
        }
        delivered(&mut state, wake, moment.now)
    }

    /// Puts in one row of a plain request, with its large outputs.
    pub(crate) fn put_plain_row(
        &self,
        row: &Row<'_, ClientId>,
        tensors: impl Iterator<Item = NamedTensor>,
        moment: Moment,
    ) -> Delivery {
        let mut state = self.state.lock();
        if state.closed {
            return Delivery::default();
        }
        let wake = state.plain.rows.ids.is_empty();
        let place = state.plain.rows.ids.len() as u32;
        state.plain.rows.push(row);
        state
            .plain
            .tensors
            .extend(tensors.map(|tensor| (place, tensor)));
        state.plain_waited.add(moment.iteration, wake);
        if row.is_final {
            state.live = state.live.saturating_sub(1);
        }
        delivered(&mut state, wake, moment.now)
    }

    /// Puts in an answer that does not come from the executor: a refusal, or the reply to `stop`.
    pub(crate) fn reply(&self, reply: impl Into<SentResponse>) {
        let reply = reply.into();
        let mut state = self.state.lock();
        if !state.closed {
            state.replies.push_back(reply);
            state.note_waiting(Instant::now());
        }
        drop(state);
        self.wake();
    }

    /// Puts in the only row of a refused step request.
    pub(crate) fn refuse_handle(
        &self,
        handle: Handle,
        code: Code,
        text: String,
        retry_after_ms: u32,
    ) {
        let mut state = self.state.lock();
        if !state.closed {
            state
                .step
                .append(batch::error_row(handle, code, text, retry_after_ms));
            state.ending.insert(handle);
            state.refused_rows += 1;
            state.step_is_due = true;
            state.note_waiting(Instant::now());
        }
        drop(state);
        self.wake();
    }

    /// Resolves when fewer refusals than the limit wait.
    pub(crate) async fn has_room(&self) {
        loop {
            let room = self.room.notified();
            {
                let state = self.state.lock();
                if state.refusals() < MAX_WAITING_REFUSALS || state.closed {
                    return;
                }
            }
            room.await;
        }
    }

    /// Keeps the stream open for an answer that does not come through the executor, until [`release`](Self::release).
    pub(crate) fn hold(&self) {
        self.state.lock().live += 1;
    }

    /// Ends a [`hold`](Self::hold).
    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        state.live = state.live.saturating_sub(1);
        drop(state);
        self.wake();
    }

    /// Resolves when the stream is gone.
    pub(crate) async fn closed(&self) {
        loop {
            let room = self.room.notified();
            if self.state.lock().closed {
                return;
            }
            room.await;
        }
    }

    /// Ends the stream once its live requests have ended; no more requests will arrive.
    pub(crate) fn finish(&self) {
        self.state.lock().finishing = true;
        self.wake();
    }

    /// Drops what waits and ends the stream with a status. Returns the requests that were live.
    pub(crate) fn fail(&self, status: Status) -> Vec<ClientId> {
        let mut state = self.state.lock();
        state.failure.get_or_insert(status);
        let live = self.close_locked(&mut state);
        drop(state);
        self.wake();
        live
    }

    /// Drops what waits because the stream is gone. Returns the requests that were live.
    pub(crate) fn close(&self) -> Vec<ClientId> {
        let mut state = self.state.lock();
        self.close_locked(&mut state)
    }

    fn close_locked(&self, state: &mut State) -> Vec<ClientId> {
        state.closed = true;
        state.live = 0;
        state.step = StepBatch::default();
        state.ending.clear();
        state.refused_rows = 0;
        state.plain = ResponseBatch::default();
        state.replies.clear();
        let mut live: Vec<ClientId> = state
            .handles
            .drain()
            .map(|(_, client_id)| client_id)
            .collect();
        live.extend(
            self.responders
                .lock()
                .drain()
                .map(|(client_id, _)| client_id),
        );
        self.room.notify_waiters();
        live
    }

    pub(crate) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Takes everything that waits of one kind.
    pub(crate) fn take(&self) -> Taken {
        let mut state = self.state.lock();
        if let Some(status) = state.failure.take() {
            return Taken::Failed(status);
        }
        if let Some(reply) = state.replies.pop_front() {
            self.taken(&mut state);
            return Taken::Reply(reply);
        }
        if !state.step.ids.is_empty() {
            let rows = std::mem::take(&mut state.step);
            let several = std::mem::take(&mut state.step_waited.several);
            state.step_is_due = false;
            state.ending.clear();
            state.refused_rows = 0;
            self.taken(&mut state);
            drop(state);
            return Taken::Step(if several { batch::merge(&rows) } else { rows });
        }
        if !state.plain.rows.ids.is_empty() {
            let plain = std::mem::take(&mut state.plain);
            let several = std::mem::take(&mut state.plain_waited.several);
            self.taken(&mut state);
            drop(state);
            return Taken::Plain(if several {
                batch::merge_responses(&plain)
            } else {
                plain
            });
        }
        if state.closed || state.finishing && state.live == 0 {
            return Taken::End;
        }
        Taken::Nothing
    }

    fn taken(&self, state: &mut State) {
        // The client has read, so what still waits has waited since now.
        state.waiting_since = state.waits().then(Instant::now);
        if state.refusals() < MAX_WAITING_REFUSALS {
            self.room.notify_waiters();
        }
    }

    /// Calls `respond` with the responder of the row's request; drops the responder after the final row.
    pub(crate) fn respond<T>(
        &self,
        row: &Row<'_, ClientId>,
        respond: impl FnOnce(&mut Responder) -> T,
    ) -> Option<T> {
        let mut responders = self.responders.lock();
        let answer = respond(responders.get_mut(&row.id)?);
        if row.is_final {
            responders.remove(&row.id);
        }
        Some(answer)
    }
}

fn delivered(state: &mut State, wake: bool, now: Instant) -> Delivery {
    let waited = state
        .waiting_since
        .map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
    if state.waits() {
        state.note_waiting(now);
    }
    Delivery { wake, waited }
}

/// What the await thread must know after putting rows in.
#[derive(Clone, Copy, Default)]
pub(crate) struct Delivery {
    /// The stream was empty before and must be woken at the end of the iteration.
    pub(crate) wake: bool,
    /// How long the client has read nothing while something waited.
    pub(crate) waited: Duration,
}

#[cfg(test)]
mod tests;
