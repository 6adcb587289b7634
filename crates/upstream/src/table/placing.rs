//! Which of several workers gets a prompt, by what they report of their caches and their load. Owns when that is known
//! well enough; how it is weighed is [`Placement`](crate::placement::Placement)'s.

use std::sync::Arc;

use crate::connection::Connection;
use crate::placement::{Ask, Placed};

/// Whether a request should be computed by one of `contexts` and continued by one of `others`, rather than be
/// computed by one of those alone. Also where that is not known: these workers are there for it.
pub(super) fn splits(
    contexts: &[Arc<Connection>],
    others: &[Arc<Connection>],
    ask: impl FnOnce(u32) -> Ask,
) -> bool {
    let known = || {
        let placement = contexts.first()?.seat()?.placement();
        let ask = ask(placement.block_tokens()?);
        placement.splits(
            &ask,
            contexts.iter().filter_map(|worker| worker.seat()),
            others.iter().filter_map(|worker| worker.seat()),
        )
    };
    known().unwrap_or(true)
}

/// The place among `workers`, which all fit, of the one with the lowest expected cost. `ask`: what is asked of their
/// caches, for blocks of so many tokens; 0: blocks are not known. `is_named`: blocks have names even where there is no
/// choice. `None`: not all of them report, or of different models.
pub(super) fn place(
    workers: &[Arc<Connection>],
    is_named: bool,
    ask: impl FnOnce(u32) -> Ask,
) -> Option<(usize, Placed)> {
    let placement = workers.first()?.seat()?.placement();
    let is_of_it = |worker: &Arc<Connection>| {
        let seat = worker.seat();
        seat.is_some_and(|seat| std::ptr::eq(seat.placement(), placement))
    };
    if !workers.iter().all(is_of_it) {
        return None;
    }
    let block_tokens = placement.block_tokens()?;
    let is_named = is_named || workers.len() > 1;
    let ask = ask(if is_named { block_tokens } else { 0 });
    placement.place(&ask, workers.iter().filter_map(|worker| worker.seat()))
}
