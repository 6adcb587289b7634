//! Which of several servers gets a request, whatever API it came by: by what they report of their caches and their load,
//! or by their load alone. Owns when enough is known for the first; how that is weighed is
//! [`Placement`](crate::placement::Placement)'s, and which servers can take a request their callers'.

use std::sync::Arc;

use inflight_routing::{Candidate, Turns, least_loaded};
use smallvec::SmallVec;

use crate::connection::Connection;
use crate::phases::is_for_contexts;
use crate::placement::{CacheQuery, Placed};
use crate::slot::WorkerSlot;

/// What a request asks of a worker's cache, for blocks of so many tokens; 0: blocks are not known.
pub type MakeQuery<'a> = &'a dyn Fn(u32) -> CacheQuery;

/// A server that can take a request.
pub(super) trait Server {
    fn slot(&self) -> &WorkerSlot;

    /// What generates the answers there, where that is known.
    fn worker(&self) -> Option<Arc<Connection>>;
}

/// Whatever it serves.
impl Server for Arc<WorkerSlot> {
    fn slot(&self) -> &WorkerSlot {
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

impl Criteria<'_> {
    /// As soon as one worker's reports are heard, the server with the lowest expected cost. Until then, the one with the
    /// fewest requests, of whatever model and API, and among equals the one whose last turn is longest ago.
    pub(super) fn pick<S: Server>(
        self,
        servers: impl IntoIterator<Item = S>,
    ) -> Option<(S, Option<Placed>)> {
        let mut servers: Servers<S> = servers.into_iter().collect();
        let spares_streams = self.spares_contexts && leave_contexts(&mut servers);
        let placed = self.asks.and_then(|asks| {
            let ask = |size| asks(size).sparing(spares_streams);
            cheapest(&servers, self.hashes_always, ask)
        });
        if let Some((place, placed)) = placed {
            return Some((servers.swap_remove(place), Some(placed)));
        }
        let slots = || servers.iter().map(Server::slot).enumerate();
        let choose = || least_loaded(slots().map(|(place, slot)| candidate(slot, (place, slot))));
        let picked = self.turns.pick(choose, |(_, slot)| &slot.last_turn);
        let (place, _) = picked?;
        Some((servers.swap_remove(place), None))
    }
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
) -> Option<(usize, Placed)> {
    let first = servers.first()?.worker()?;
    let placement = first.seat()?.placement();
    let block_tokens = placement.block_tokens()?;
    let seat = |server: &S| {
        let seat = Arc::clone(server.worker()?.seat()?);
        std::ptr::eq(seat.placement(), placement).then_some(seat)
    };
    let seats: Servers<_> = servers.iter().map(seat).collect::<Option<_>>()?;
    let hashes = hashes_always || servers.len() > 1;
    let ask = ask(if hashes { block_tokens } else { 0 });
    placement.assign(&ask, seats.iter())
}
