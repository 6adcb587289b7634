//! What one gRPC stream still has to be sent, and what lives on it.
//!
//! The engine's await thread puts rows in, once per iteration; the stream takes everything that is
//! there whenever the wire has room. A client that is behind thus gets the rows of several iterations
//! in one message instead of a queue of messages: what can wait is bounded by the live requests'
//! max_tokens. Knows no sockets and no executor.

use std::collections::{HashMap, HashSet, VecDeque};
use std::task::Waker;
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use inflight_kserve::inference::ModelStreamInferResponse;
use inflight_kserve::step::{Handle, Row, StepBatch};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tonic::{Code, Status};

use crate::batch;
use crate::executor::{ClientId, NamedTensor, ResponseBatch};
use crate::respond::Responder;

/// Refusals that may wait for a client which sends bad requests and reads no answers; then its
/// requests are no longer read.
const MAX_WAITING_REFUSALS: usize = 1024;

/// See the module.
#[derive(Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    waker: AtomicWaker,
    /// The refusals were taken: the reader may go on.
    room: Notify,
    /// Plain requests' answers by client id. Apart from `state`, so that building responses does not
    /// hold up the await thread.
    responders: Mutex<HashMap<ClientId, Responder>>,
}

#[derive(Default)]
struct State {
    replies: VecDeque<ModelStreamInferResponse>,
    step: StepBatch,
    step_waited: Waited,
    plain: ResponseBatch,
    plain_waited: Waited,
    /// Live step requests.
    handles: HashMap<Handle, ClientId>,
    /// Handles whose final row is in `step`.
    ending: HashSet<Handle>,
    /// Executor requests whose final row has not come.
    live: usize,
    /// Error rows of refused requests in `step`; the other refusals are `replies`.
    refused_rows: usize,
    /// No more requests will come; the stream ends once everything was sent.
    finishing: bool,
    /// Nobody will take anything any more.
    closed: bool,
    failure: Option<Status>,
    waiting_since: Option<Instant>,
}

/// Which iterations' rows wait: several must be merged before they are sent.
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

/// When rows came, by the clock and by the count of awaits.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) now: Instant,
    pub(crate) iteration: u64,
}

/// What a stream knows of a handle that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Never used, or its final row is on the wire: whether the client has read it nobody can tell here.
    No,
    /// By this client id.
    Live(ClientId),
    /// Its final row waits to be sent.
    Ending,
}

/// What [`Outbox::take`] found.
pub(crate) enum Taken {
    Reply(Box<ModelStreamInferResponse>),
    /// Rows under the client's handles.
    Step(StepBatch),
    /// Rows under client ids, for [`Outbox::respond`].
    Plain(ResponseBatch),
    Failed(Status),
    End,
    Nothing,
}

impl State {
    fn refusals(&self) -> usize {
        self.replies.len() + self.refused_rows
    }

    /// The final row of a live step request is in `step`.
    fn end_handle(&mut self, handle: Handle) {
        self.handles.remove(&handle);
        self.ending.insert(handle);
        self.live = self.live.saturating_sub(1);
    }

    fn note_waiting(&mut self, now: Instant) {
        self.waiting_since.get_or_insert(now);
    }
}

impl Outbox {
    /// Registers live requests before any row of theirs can come. The handle is the step request's.
    /// False: the stream has ended, and nobody waits for them.
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

    /// Forgets a handle whose request was silenced; false: its final row came before that.
    pub(crate) fn forget_handle(&self, handle: Handle) -> bool {
        let mut state = self.state.lock();
        let live = state.handles.remove(&handle).is_some();
        if live {
            state.live = state.live.saturating_sub(1);
        }
        live
    }

    /// One iteration's rows, all of this stream and all step requests', under their handles.
    /// `ended`: the handles whose final row is among them.
    pub(crate) fn put_step(&self, rows: StepBatch, ended: &[Handle], moment: Moment) -> Delivery {
        let mut state = self.state.lock();
        if state.closed {
            return Delivery::default();
        }
        let wake = state.step.ids.is_empty();
        state.step.append(rows);
        state.step_waited.add(moment.iteration, wake);
        for handle in ended {
            state.end_handle(*handle);
        }
        delivered(&mut state, wake, moment.now)
    }

    /// One row of the step request with this handle. A final row counts once: it is dropped where the
    /// handle was forgotten.
    pub(crate) fn put_step_row(
        &self,
        row: &Row<'_, ClientId>,
        handle: Handle,
        moment: Moment,
    ) -> Delivery {
        let mut state = self.state.lock();
        let forgotten = row.is_final && state.handles.get(&handle) != Some(&row.id);
        if state.closed || forgotten {
            return Delivery::default();
        }
        let wake = state.step.ids.is_empty();
        state.step.push(&row.with_id(handle));
        state.step_waited.add(moment.iteration, wake);
        if row.is_final {
            state.end_handle(handle);
        }
        delivered(&mut state, wake, moment.now)
    }

    /// One row of a plain request, with its large outputs.
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

    /// An answer that no row of the executor makes: a refusal, or the reply to `stop`.
    pub(crate) fn reply(&self, reply: ModelStreamInferResponse) {
        let mut state = self.state.lock();
        if !state.closed {
            state.replies.push_back(reply);
            state.note_waiting(Instant::now());
        }
        drop(state);
        self.wake();
    }

    /// A refused step request's one row.
    pub(crate) fn refuse_handle(&self, handle: Handle, code: Code, text: String) {
        let mut state = self.state.lock();
        if !state.closed {
            state.step.append(batch::error_row(handle, code, text));
            state.ending.insert(handle);
            state.refused_rows += 1;
            state.note_waiting(Instant::now());
        }
        drop(state);
        self.wake();
    }

    /// Waits until few enough refusals wait.
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

    /// No request will follow: the stream ends when the live ones have.
    pub(crate) fn finish(&self) {
        self.state.lock().finishing = true;
        self.wake();
    }

    /// Ends the stream with a status instead of what waits; returns what lived on it.
    pub(crate) fn fail(&self, status: Status) -> Vec<ClientId> {
        let mut state = self.state.lock();
        state.failure.get_or_insert(status);
        let live = self.close_locked(&mut state);
        drop(state);
        self.wake();
        live
    }

    /// The stream is gone; returns the client ids of what lived on it.
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

    /// Takes everything of one kind.
    pub(crate) fn take(&self) -> Taken {
        let mut state = self.state.lock();
        if let Some(status) = state.failure.take() {
            return Taken::Failed(status);
        }
        if let Some(reply) = state.replies.pop_front() {
            self.taken(&mut state);
            return Taken::Reply(Box::new(reply));
        }
        if !state.step.ids.is_empty() {
            let rows = std::mem::take(&mut state.step);
            let several = std::mem::take(&mut state.step_waited.several);
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
        let waits = !state.replies.is_empty()
            || !state.step.ids.is_empty()
            || !state.plain.rows.ids.is_empty();
        // The client has read: what still waits began to wait now.
        state.waiting_since = waits.then(Instant::now);
        if state.refusals() < MAX_WAITING_REFUSALS {
            self.room.notify_waiters();
        }
    }

    /// Calls `respond` with the responder of a row's request; drops the responder after the final row.
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
    state.note_waiting(now);
    Delivery { wake, waited }
}

/// What became of a delivery.
#[derive(Clone, Copy, Default)]
pub(crate) struct Delivery {
    /// The stream had nothing before: wake it once the iteration is through.
    pub(crate) wake: bool,
    /// How long the client has read nothing although something waits.
    pub(crate) waited: Duration,
}

#[cfg(test)]
mod tests;
