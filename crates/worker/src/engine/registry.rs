//! The live requests, by client id. A row finds its request by one indexed load, and a late row of a
//! finished request finds nothing: an id is a slot map's key, which is never used again.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inflight_kserve::step::Handle;
use slotmap::{Key as _, KeyData, SlotMap, new_key_type};
use tokio::sync::oneshot;
use tonic::Code;

use super::Destination;
use super::line::{Line, StartOrder, Ticket, TooLong};
use super::names::{Named, Names, RequestName};
use crate::cache::NamedAsWaiting;
use crate::executor::ClientId;
use crate::outbox::Outbox;
use crate::trace::RequestTrace;

/// One executor request, from its submission to its final row.
pub(super) struct LiveRequest {
    /// Where rows go; `None` once the client has left.
    pub(super) outbox: Option<Arc<Outbox>>,
    /// Rows travel in step messages under this handle; plain rows keep their client id.
    pub(super) handle: Option<Handle>,
    pub(super) wants_cached_tokens: bool,
    /// Whether its last row must have what its context phase leaves.
    pub(super) context_only: bool,
    /// Whether nobody reads its rows before the last.
    pub(super) may_wait: bool,
    /// The final row has come; the request goes at the end of the iteration.
    pub(super) ended: bool,
    pub(super) name: Option<RequestName>,
    /// Its client asked to stop it.
    pub(super) stopped: bool,
    /// Sequences that it runs.
    pub(super) sequences: u32,
    /// Its position in the line; the canary has none.
    pub(super) ticket: Option<Ticket>,
    /// When it is ended if it still waits in the line.
    pub(super) queue_until: Option<Instant>,
    /// When it is ended in any case.
    pub(super) deadline: Option<Instant>,
    /// The other rows of its batch, which wait as long as it does. Only the first row has them.
    pub(super) rest_of_batch: Vec<ClientId>,
    pub(super) canary: Option<oneshot::Sender<Result<(), String>>>,
    pub(super) prompt_tokens: u32,
    /// Those that the cache is not known to hold.
    pub(super) uncached_tokens: u32,
    /// Until its first row, watchers of the cache know it as one that waits.
    pub(super) waiting: Option<NamedAsWaiting>,
    pub(super) output_tokens: u32,
    pub(super) received: Instant,
    pub(super) handed_over: Option<Instant>,
    pub(super) first_row: Option<Instant>,
    /// The client left before the end.
    pub(super) abandoned: bool,
    /// Of the final row, a [`FinishReason`](inflight_kserve::step::FinishReason) number.
    pub(super) finish_reason: u8,
    pub(super) error: Option<(Code, Box<str>)>,
    /// The trace that it is a part of.
    pub(super) trace: Option<Arc<RequestTrace>>,
    /// The final row was passed on; later ones, which a broken executor might send, are dropped.
    pub(super) sent_final: bool,
}

impl LiveRequest {
    pub(super) fn new(
        outbox: &Arc<Outbox>,
        destination: &Destination,
        prompt_tokens: usize,
        now: Instant,
    ) -> Self {
        let (handle, wants_cached_tokens, context_only, may_wait, name) = match destination {
            Destination::Step {
                handle,
                wants_cached_tokens,
                may_wait,
                context_only,
            } => (
                Some(*handle),
                *wants_cached_tokens,
                *context_only,
                *may_wait,
                None,
            ),
            Destination::Plain { id, connection } => {
                let name = id.as_deref().map(|id| RequestName {
                    id: id.into(),
                    connection: *connection,
                });
                (None, true, false, false, name)
            }
        };
        let prompt_tokens = u32::try_from(prompt_tokens).unwrap_or(u32::MAX);
        Self {
            outbox: Some(Arc::clone(outbox)),
            handle,
            wants_cached_tokens,
            context_only,
            may_wait,
            name,
            ..Self::without_client(prompt_tokens, now)
        }
    }

    pub(super) fn canary(sender: oneshot::Sender<Result<(), String>>, now: Instant) -> Self {
        Self {
            canary: Some(sender),
            ..Self::without_client(1, now)
        }
    }

    fn without_client(prompt_tokens: u32, now: Instant) -> Self {
        Self {
            outbox: None,
            handle: None,
            wants_cached_tokens: false,
            context_only: false,
            may_wait: false,
            ended: false,
            name: None,
            stopped: false,
            sequences: 1,
            ticket: None,
            queue_until: None,
            deadline: None,
            rest_of_batch: Vec::new(),
            canary: None,
            prompt_tokens,
            uncached_tokens: prompt_tokens,
            waiting: None,
            output_tokens: 0,
            received: now,
            handed_over: None,
            first_row: None,
            abandoned: false,
            finish_reason: 0,
            error: None,
            trace: None,
            sent_final: false,
        }
    }

    /// Drops the rows to come, because the client has left.
    pub(super) fn silence(&mut self) {
        self.outbox = None;
        self.abandoned = true;
    }
}

new_key_type! {
    struct Key;
}

/// Where in a client id the place of its model is: above the index of a slot map's key, below its version.
const PLACE_SHIFT: u32 = 24;
/// Requests that are live at once, where the index leaves room for the place.
pub(crate) const MOST_LIVE: usize = 1 << PLACE_SHIFT;

/// Which of the process's models a request is of, by its id. A stream may have requests of several.
pub(crate) fn place_of(client_id: ClientId) -> u8 {
    (client_id.0 >> PLACE_SHIFT) as u8
}

pub(super) struct Registry {
    requests: SlotMap<Key, LiveRequest>,
    /// The model's place, where client ids have it.
    place: u64,
    names: Names,
    line: Line,
    /// Of all requests that have no row yet.
    queued_prompt_tokens: u64,
    /// How many these are, and since when the executor computes what it has not finished of their prompts.
    without_row: usize,
    computing_since: Option<Instant>,
    /// Of all requests so far.
    prompt_tokens_total: u64,
    progress: Option<Progress>,
    /// When requests that wait or have a deadline are to be ended.
    due: BTreeSet<(Instant, ClientId)>,
}

/// What was left to compute of prompts at a moment.
struct Progress {
    at: Instant,
    left: u64,
    /// Tokens of all requests until then.
    total: u64,
}

/// How long an executor's own figure counts: it is asked four times a second as long as somebody watches.
const PROGRESS_FOR: Duration = Duration::from_secs(1);

impl Registry {
    /// `places`: sequences that run at once. `max_queue_wait`: how long a request may wait for one. `place`: the
    /// model's among those of the process; at most [`MOST_LIVE`] requests may be live then.
    pub(super) fn new(places: u32, max_queue_wait: Duration, order: StartOrder, place: u8) -> Self {
        Self {
            place: u64::from(place) << PLACE_SHIFT,
            requests: SlotMap::default(),
            names: Names::default(),
            line: Line::new(places, max_queue_wait, order),
            queued_prompt_tokens: 0,
            without_row: 0,
            computing_since: None,
            prompt_tokens_total: 0,
            progress: None,
            due: BTreeSet::new(),
        }
    }

    #[inline]
    fn key(&self, client_id: ClientId) -> Key {
        // Another model's id becomes an index that no slot has.
        KeyData::from_ffi(client_id.0 ^ self.place).into()
    }

    #[inline]
    fn id(&self, key: Key) -> ClientId {
        ClientId(key.data().as_ffi() ^ self.place)
    }

    pub(super) fn live(&self) -> usize {
        self.requests.len()
    }

    /// What is here, for those who watch the load.
    pub(super) fn waits(&self, now: Instant) -> Waits {
        let queued = self.line.waiting();
        let count = |requests| u32::try_from(requests).unwrap_or(u32::MAX);
        let since = |then| now.saturating_duration_since(then);
        let progress = self.progress.as_ref();
        let (prompt_tokens, computing) = match progress.filter(|one| since(one.at) < PROGRESS_FOR) {
            Some(one) => {
                let came = self.prompt_tokens_total - one.total;
                (one.left + came, Some(one.at))
            }
            None => (self.queued_prompt_tokens, self.computing_since),
        };
        Waits {
            queued: count(queued),
            running: count(self.live().saturating_sub(queued)),
            prompt_tokens,
            computing: computing.map_or(Duration::ZERO, since),
        }
    }

    /// The executor says how many tokens it has computed of prompts that are not complete.
    pub(super) fn note_partial_prompts(&mut self, partial_tokens: u64, now: Instant) {
        // Without one, nothing is left, and a prompt's time begins when it comes.
        self.progress = (self.without_row > 0).then(|| Progress {
            at: now,
            left: self.queued_prompt_tokens.saturating_sub(partial_tokens),
            total: self.prompt_tokens_total,
        });
    }

    /// Whether a request of `sequences` would get a place in time, with so many `tokens` of its prompt to compute.
    ///
    /// # Errors
    /// Its expected wait is longer than the limit or than `patience`.
    pub(super) fn check_wait(
        &mut self,
        now: Instant,
        sequences: u32,
        tokens: u32,
        patience: Option<Duration>,
    ) -> Result<(), TooLong> {
        self.line.check(now, sequences, tokens, patience)
    }

    /// Puts the executor requests of one client request into the line, the first of which may wait until
    /// `queue_until` and all of which must end by `deadline`. Returns true if the earliest time in
    /// [`next_due`](Self::next_due) has changed.
    pub(super) fn join_line(
        &mut self,
        client_ids: &[ClientId],
        now: Instant,
        queue_until: Instant,
        deadline: Option<Instant>,
    ) -> bool {
        let before = self.next_due();
        for (row, client_id) in client_ids.iter().enumerate() {
            let key = self.key(*client_id);
            let Some(request) = self.requests.get_mut(key) else {
                continue;
            };
            let tokens = request.uncached_tokens;
            let ticket = self.line.join(now, request.sequences, tokens);
            request.ticket = Some(ticket);
            if row == 0 && self.line.is_waiting(ticket) {
                request.queue_until = Some(queue_until);
                request.rest_of_batch = client_ids.get(1..).unwrap_or_default().to_vec();
                self.due.insert((queue_until, *client_id));
            }
            if let Some(deadline) = deadline {
                request.deadline = Some(deadline);
                self.due.insert((deadline, *client_id));
            }
        }
        self.next_due() != before
    }

    /// Its first row came.
    pub(super) fn start(&mut self, client_id: ClientId, now: Instant) {
        let Some(request) = self.get_mut(client_id) else {
            return;
        };
        request.waiting = None;
        let (tokens, ticket) = (request.uncached_tokens, request.ticket);
        self.dequeue(tokens);
        self.computing_since = (self.without_row > 0).then_some(now);
        if let Some(ticket) = ticket {
            self.line.start(ticket);
        }
    }

    /// A request has its first row, or ends without one.
    fn dequeue(&mut self, tokens: u32) {
        self.queued_prompt_tokens = self.queued_prompt_tokens.saturating_sub(tokens.into());
        self.without_row = self.without_row.saturating_sub(1);
        if self.without_row == 0 {
            (self.computing_since, self.progress) = (None, None);
        }
    }

    pub(super) fn is_waiting(&self, client_id: ClientId) -> bool {
        let request = self.requests.get(self.key(client_id));
        let ticket = request.and_then(|request| request.ticket);
        ticket.is_some_and(|ticket| self.line.is_waiting(ticket))
    }

    /// The earliest time at which a request is to be ended.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(time, _)| *time)
    }

    /// Takes the requests whose time has come; of those past their limit in the line, only the ones that
    /// still wait.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<(ClientId, Due)> {
        let mut due = Vec::new();
        while let Some(&(time, client_id)) = self.due.first().filter(|(time, _)| *time <= now) {
            self.due.pop_first();
            let Some(request) = self.requests.get(self.key(client_id)) else {
                continue;
            };
            if request.deadline == Some(time) {
                due.push((client_id, Due::Deadline));
                continue;
            }
            let batch = std::iter::once(client_id).chain(request.rest_of_batch.iter().copied());
            if self.is_waiting(client_id) {
                due.extend(
                    batch
                        .filter(|client_id| self.is_waiting(*client_id))
                        .map(|client_id| (client_id, Due::QueueLimit)),
                );
            }
        }
        due
    }

    pub(super) fn insert(&mut self, request: LiveRequest) -> ClientId {
        self.queued_prompt_tokens += u64::from(request.uncached_tokens);
        self.prompt_tokens_total += u64::from(request.uncached_tokens);
        self.without_row += 1;
        self.computing_since.get_or_insert(request.received);
        let key = self.requests.insert(request);
        self.id(key)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, client_id: ClientId) -> Option<&mut LiveRequest> {
        let key = self.key(client_id);
        self.requests.get_mut(key)
    }

    /// Removes a request that the executor is through with.
    pub(super) fn remove(&mut self, client_id: ClientId, now: Instant) -> Option<LiveRequest> {
        let key = self.key(client_id);
        let request = self.requests.remove(key)?;
        if request.first_row.is_none() {
            self.dequeue(request.uncached_tokens);
        }
        if let Some(ticket) = request.ticket {
            self.line.leave(now, ticket, request.sequences);
        }
        for time in [request.queue_until, request.deadline]
            .into_iter()
            .flatten()
        {
            self.due.remove(&(time, client_id));
        }
        if let Some(name) = &request.name {
            self.names.remove(name, client_id);
        }
        Some(request)
    }

    /// Gives live requests a name to be stopped by.
    pub(super) fn name(&mut self, name: RequestName, client_ids: &[ClientId]) {
        self.names.insert(name, client_ids);
    }

    /// The requests of this id that a client on `connection` may stop.
    pub(super) fn named(&self, id: &str, connection: Option<SocketAddr>) -> Named {
        self.names.find(id, connection)
    }

    pub(super) fn ids(&self) -> Vec<ClientId> {
        self.requests.keys().map(|key| self.id(key)).collect()
    }

    /// Removes everything.
    pub(super) fn drain(&mut self) -> Vec<(ClientId, LiveRequest)> {
        self.names.clear();
        self.line.clear();
        self.due.clear();
        self.queued_prompt_tokens = 0;
        self.without_row = 0;
        (self.computing_since, self.progress) = (None, None);
        let place = self.place;
        self.requests
            .drain()
            .map(|(key, request)| (ClientId(key.data().as_ffi() ^ place), request))
            .collect()
    }
}

/// Requests and their prompts, by whether they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waits {
    /// Requests without a place in the batch, and those with one.
    pub(crate) queued: u32,
    pub(crate) running: u32,
    /// Of requests without a row, whether they have a place or not: what the cache was not known to hold, and was not
    /// computed so long ago.
    pub(crate) prompt_tokens: u64,
    /// Since the executor said what it had computed; where it does not, since the last first row, or since the first of
    /// them came to where none was.
    pub(crate) computing: Duration,
}

/// Why a request's time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// It has waited in the line as long as any may.
    QueueLimit,
    /// Its client's deadline has passed.
    Deadline,
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    fn request() -> LiveRequest {
        LiveRequest::canary(oneshot::channel().0, Instant::now())
    }

    #[test]
    fn the_id_of_a_finished_request_is_not_used_again() {
        let mut registry = Registry::new(4, LIMIT, StartOrder::Arrival, 0);
        let first = registry.insert(request());
        assert!(registry.remove(first, Instant::now()).is_some());
        let second = registry.insert(request());
        assert!(registry.get_mut(first).is_none());
        assert!(registry.remove(first, Instant::now()).is_none());
        assert!(registry.get_mut(second).is_some());
        assert_eq!(registry.live(), 1);
        assert!(registry.get_mut(ClientId(u64::MAX)).is_none());
        assert!(registry.get_mut(ClientId::default()).is_none());
        assert_eq!(registry.drain().len(), 1);
        assert_eq!(registry.live(), 0);
        assert!(registry.get_mut(second).is_none());
    }

    #[test]
    fn an_id_finds_nothing_among_the_requests_of_another_model() {
        let mut registries: Vec<Registry> = [0, 1, u8::MAX]
            .map(|place| Registry::new(4, LIMIT, StartOrder::Arrival, place))
            .into();
        let ids: Vec<Vec<ClientId>> = registries
            .iter_mut()
            .map(|registry| (0..3).map(|_| registry.insert(request())).collect())
            .collect();
        for (own, (registry, place)) in registries.iter_mut().zip([0, 1, u8::MAX]).enumerate() {
            for (of, ids) in ids.iter().enumerate() {
                for id in ids {
                    assert_eq!(registry.get_mut(*id).is_some(), of == own);
                }
            }
            assert!(ids[own].iter().all(|id| place_of(*id) == place));
            assert_eq!(registry.ids(), ids[own]);
            let drained = registry.drain().into_iter().map(|(id, _)| id);
            assert_eq!(drained.collect::<Vec<_>>(), ids[own]);
        }
    }

    #[test]
    fn a_finished_request_has_no_name() {
        let mut registry = Registry::new(4, LIMIT, StartOrder::Arrival, 0);
        let name = RequestName {
            id: "a".into(),
            connection: None,
        };
        let named = LiveRequest {
            name: Some(name.clone()),
            ..request()
        };
        let id = registry.insert(named);
        registry.name(name, &[id]);
        assert_eq!(registry.named("a", None), Named::Found(vec![id]));
        registry.remove(id, Instant::now());
        assert_eq!(registry.named("a", None), Named::Unknown);
    }

    #[test]
    fn requests_are_due_while_they_wait_and_at_their_deadline() {
        let mut registry = Registry::new(1, LIMIT, StartOrder::Arrival, 0);
        let now = Instant::now();
        let until = now + LIMIT;
        let deadline = until + LIMIT;
        let ids: Vec<ClientId> = (0..5).map(|_| registry.insert(request())).collect();
        assert!(!registry.join_line(&ids[..1], now, until, None));
        assert!(registry.join_line(&ids[1..2], now, until, Some(deadline)));
        // A batch of two rows waits as one.
        assert!(!registry.join_line(&ids[2..4], now, until, None));
        assert!(!registry.join_line(&ids[4..], now, until, None));
        assert_eq!(registry.next_due(), Some(until));
        assert!(registry.take_due(now).is_empty());
        // The second gets the first one's place; the last one leaves.
        registry.remove(ids[0], now);
        registry.remove(ids[4], now);
        assert_eq!(
            registry.take_due(until),
            [(ids[2], Due::QueueLimit), (ids[3], Due::QueueLimit)]
        );
        assert_eq!(registry.next_due(), Some(deadline));
        assert_eq!(registry.take_due(deadline), [(ids[1], Due::Deadline)]);
        assert_eq!(registry.next_due(), None);
    }

    #[test]
    fn what_is_left_of_prompts_is_what_the_executor_says() {
        let mut registry = Registry::new(4, LIMIT, StartOrder::Arrival, 0);
        let came = Instant::now();
        let at = |millis| came + Duration::from_millis(millis);
        let insert = |registry: &mut Registry, tokens| {
            let mut request = LiveRequest::canary(oneshot::channel().0, came);
            request.uncached_tokens = tokens;
            registry.insert(request)
        };
        let waits = |registry: &Registry, millis| {
            let waits = registry.waits(at(millis));
            (waits.prompt_tokens, waits.computing.as_millis())
        };
        // Nothing waits, so a prompt's time begins when it comes.
        registry.note_partial_prompts(7, at(0));
        let ids = [1000, 500].map(|tokens| insert(&mut registry, tokens));
        assert_eq!(waits(&registry, 100), (1500, 100));
        registry.note_partial_prompts(900, at(200));
        insert(&mut registry, 50);
        assert_eq!(waits(&registry, 300), (650, 100));
        // What was computed since is not taken off twice.
        registry.get_mut(ids[0]).unwrap().first_row = Some(at(310));
        registry.start(ids[0], at(310));
        assert_eq!(waits(&registry, 400), (650, 200));
        registry.note_partial_prompts(100, at(450));
        assert_eq!(waits(&registry, 450), (450, 0));
        // An executor that says nothing any more.
        assert_eq!(waits(&registry, 1450), (550, 1140));
    }

    #[test]
    fn prompts_are_computed_since_the_last_first_row() {
        let mut registry = Registry::new(4, LIMIT, StartOrder::Arrival, 0);
        let came = Instant::now();
        let at = |seconds| came + Duration::from_secs(seconds);
        let computing = |registry: &Registry, seconds| registry.waits(at(seconds)).computing;
        assert_eq!(computing(&registry, 9), Duration::ZERO);
        let insert = |registry: &mut Registry| {
            registry.insert(LiveRequest::canary(oneshot::channel().0, came))
        };
        let ids: Vec<ClientId> = (0..3).map(|_| insert(&mut registry)).collect();
        assert_eq!(computing(&registry, 5), Duration::from_secs(5));
        registry.get_mut(ids[0]).unwrap().first_row = Some(at(5));
        registry.start(ids[0], at(5));
        assert_eq!(computing(&registry, 7), Duration::from_secs(2));
        // One that leaves without a row changes nothing, and neither does the end of one that began.
        registry.remove(ids[1], at(8));
        registry.remove(ids[0], at(8));
        assert_eq!(computing(&registry, 9), Duration::from_secs(4));
        registry.start(ids[2], at(9));
        assert_eq!(computing(&registry, 11), Duration::ZERO);
        assert_eq!(registry.waits(at(11)).prompt_tokens, 0);
    }
}
