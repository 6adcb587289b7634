//! Which of several servers gets a request, whatever API it came by: by what they report of their caches and their load,
//! or by their load alone. Owns when enough is known for the first; how that is weighed is
//! [`Placement`](crate::placement::Placement)'s, and which servers can take a request their callers'.

use std::sync::Arc;

use inflight_routing::{Candidate, Choice, Turns, least_loaded};
use smallvec::SmallVec;

use crate::connection::Connection;
use crate::phases::is_for_contexts;
use crate::placement::{CacheQuery, Placed, Seat};
use crate::slot::WorkerSlot;
use crate::visit::{Next, Visit};

/// What a request asks of a worker's cache, for blocks of so many tokens; 0: blocks are not known.
pub type MakeQuery<'a> = &'a dyn Fn(u32) -> CacheQuery;

/// A server that can take a request.
pub(super) trait Server {
    fn slot(&self) -> &Arc<WorkerSlot>;

    /// What generates the answers there, where that is known.
    fn worker(&self) -> Option<Arc<Connection>>;
}

/// Whatever it serves.
impl Server for Arc<WorkerSlot> {
    fn slot(&self) -> &Arc<WorkerSlot> {
        self
    }

    fn worker(&self) -> Option<Arc<Connection>> {
        self.connections().first().cloned()
    }
}

/// Most models have no more servers than are kept here without an allocation.
pub(super) type Servers<S> = SmallVec<[S; 8]>;

/// What matters for the choice.
#[derive(Clone, Copy)]
pub(super) struct Criteria<'a> {
    /// `None`: caches do not matter.
    pub asks: Option<MakeQuery<'a>>,
    /// Whether to hash the prompt even for a single server: the estimate of transfers needs it.
    pub hashes_always: bool,
    /// Whether workers for contexts get the request only where no other can.
    pub spares_contexts: bool,
    pub turns: &'a Turns,
}

/// The server of a request, and those that would be next.
pub(super) struct Ranked<S> {
    first: S,
    placed: Option<Placed>,
    /// In their order, with what is expected of them where that is known.
    others: Vec<(S, Option<Choice>)>,
    /// What the request asks of caches, where they matter.
    asked: Option<CacheQuery>,
}

impl<S: Server> Ranked<S> {
    /// As a request that another program sends.
    pub(super) fn visited(self) -> Visit {
        let others = self.others.iter().map(|(server, expected)| Next {
            slot: Arc::clone(server.slot()),
            expected: *expected,
        });
        let slot = Arc::clone(self.first.slot());
        Visit::new(slot, self.placed, others.collect(), self.asked)
    }
}

impl Criteria<'_> {
    /// As soon as one worker's reports are heard, the server with the lowest expected cost. Until then, the one with the
    /// fewest requests, of whatever model and API, and among equals the one whose last turn is longest ago.
    pub(super) fn pick<S: Server>(
        self,
        servers: impl IntoIterator<Item = S>,
    ) -> Option<(S, Option<Placed>)> {
        let Ranked { first, placed, .. } = self.rank(servers, 0)?;
        Some((first, placed))
    }

    /// As [`Criteria::pick`], with at most so many others that would be next. Nothing counts at those.
    pub(super) fn rank<S: Server>(
        self,
        servers: impl IntoIterator<Item = S>,
        others: usize,
    ) -> Option<Ranked<S>> {
        let mut servers: Servers<S> = servers.into_iter().collect();
        let spares_streams = self.spares_contexts && leave_contexts(&mut servers);
        let placed = self.asks.and_then(|asks| {
            let ask = |size| asks(size).sparing(spares_streams);
            cheapest(&servers, self.hashes_always, ask)
        });
        if let Some((place, placed, asked)) = placed {
            let first = servers.swap_remove(place);
            return Some(Ranked {
                first,
                others: next_cheapest(servers, &placed, &asked, others),
                placed: Some(placed),
                asked: Some(asked),
            });
        }
        let slots = || servers.iter().map(Server::slot).enumerate();
        let choose = || least_loaded(slots().map(|(place, slot)| candidate(slot, (place, slot))));
        let picked = self.turns.pick(choose, |(_, slot)| &slot.last_turn);
        let (place, _) = picked?;
        let first = servers.swap_remove(place);
        Some(Ranked {
            first,
            placed: None,
            others: next_by_load(servers, others),
            asked: None,
        })
    }
}

/// The servers that [`cheapest`] would choose next.
fn next_cheapest<S: Server>(
    servers: Servers<S>,
    placed: &Placed,
    asked: &CacheQuery,
    most: usize,
) -> Vec<(S, Option<Choice>)> {
    if most == 0 {
        return Vec::new();
    }
    let seats: Servers<_> = servers.iter().map(seat_of).collect();
    let choices = placed.placement().rank(asked, &seats, most);
    let mut servers: Vec<_> = servers.into_iter().map(Some).collect();
    let mut next = |(place, choice): (usize, Choice)| Some((servers[place].take()?, Some(choice)));
    choices.into_iter().filter_map(&mut next).collect()
}

/// The servers with the fewest requests, the least loaded first. Turns do not change by it.
fn next_by_load<S: Server>(servers: Servers<S>, most: usize) -> Vec<(S, Option<Choice>)> {
    if most == 0 {
        return Vec::new();
    }
    let mut servers: Vec<_> = servers.into_iter().collect();
    servers.sort_by_cached_key(|server| {
        let candidate = candidate(server.slot(), ());
        (candidate.load, candidate.last_turn)
    });
    servers.truncate(most);
    servers.into_iter().map(|server| (server, None)).collect()
}

fn seat_of<S: Server>(server: &S) -> Option<Arc<Seat>> {
    Some(Arc::clone(server.worker()?.seat()?))
}

/// The server with the fewest requests. Turns do not change by it.
pub(super) fn least_busy<S: Server>(servers: impl Iterator<Item = S>) -> Option<S> {
    let load = |server: S| {
        let Candidate {
            load, last_turn, ..
        } = candidate(server.slot(), ());
        Candidate {
            server,
            load,
            last_turn,
        }
    };
    Some(least_loaded(servers.map(load))?.0)
}

fn candidate<T>(slot: &WorkerSlot, server: T) -> Candidate<T> {
    Candidate {
        server,
        load: slot.active(),
        last_turn: slot.last_turn.number(),
    }
}

/// Leaves out workers for contexts where others are left. Returns whether there was one.
pub(super) fn leave_contexts<S: Server>(servers: &mut Servers<S>) -> bool {
    let is_other = |server: &mut S| {
        let worker = server.worker();
        !worker.is_some_and(|worker| is_for_contexts(&worker.served))
    };
    let all = servers.len();
    if servers.iter_mut().any(is_other) {
        servers.retain(is_other);
    }
    servers.len() < all
}

/// The place among `servers` of the one with the lowest expected cost. `None`: no reports are heard, or these are servers of
/// several models, or such as never report.
fn cheapest<S: Server>(
    servers: &[S],
    hashes_always: bool,
    ask: impl FnOnce(u32) -> CacheQuery,
) -> Option<(usize, Placed, CacheQuery)> {
    let first = servers.first()?.worker()?;
    let placement = first.seat()?.placement();
    let block_tokens = placement.block_tokens()?;
    let seat = |server: &S| {
        let seat = seat_of(server)?;
        std::ptr::eq(seat.placement(), placement).then_some(seat)
    };
    let seats: Servers<_> = servers.iter().map(seat).collect::<Option<_>>()?;
    let hashes = hashes_always || servers.len() > 1;
    let ask = ask(if hashes { block_tokens } else { 0 });
    let (place, placed) = placement.assign(&ask, seats.iter())?;
    Some((place, placed, ask))
}
