//! What happened, as one number: a hash over all events of a run, with their virtual times, in their order. Two runs
//! of one seed with different numbers are two histories.

use std::cell::RefCell;

use xxhash_rust::xxh3::Xxh3;

use crate::determinism::elapsed;

thread_local! {
    static HISTORY: RefCell<Option<History>> = const { RefCell::new(None) };
}

struct History {
    hash: Xxh3,
    events: u64,
    /// Whether events are printed, for comparing two runs.
    prints: bool,
}

/// Begins a history on this thread.
pub(crate) fn begin(prints: bool) {
    HISTORY.set(Some(History {
        hash: Xxh3::new(),
        events: 0,
        prints,
    }));
}

/// Ends it; returns its hash and the number of its events.
pub(crate) fn end() -> (u64, u64) {
    let history = HISTORY.take();
    history.map_or((0, 0), |history| (history.hash.digest(), history.events))
}

/// Adds an event of a host.
pub(crate) fn note(host: &str, what: &str, data: &[u8]) {
    let now = elapsed();
    HISTORY.with_borrow_mut(|history| {
        let Some(history) = history else {
            return;
        };
        history.events += 1;
        history.hash.update(&now.as_nanos().to_le_bytes());
        for part in [host.as_bytes(), what.as_bytes(), data] {
            history.hash.update(&(part.len() as u64).to_le_bytes());
            history.hash.update(part);
        }
        if history.prints {
            let data = String::from_utf8_lossy(data);
            eprintln!("{:>10.3} {host} {what} {data:?}", now.as_secs_f64());
        }
    });
}
