//! Which addresses count, by what the sources say. Pure: times and what answers are the caller's.
//!
//! A source can be wrong: a DNS server that has lost its zone, a control plane that comes back empty, a registry whose
//! leases ran out with its network. Workers that still answer are better evidence than a list, so:
//!
//! - What a source adds counts at once. A wrong address costs attempts to connect, and no request.
//! - What it no longer lists stays while it answers, for at most the grace. Once it has not answered for [`QUIET`], it is
//!   taken out.
//! - What the source says is leaving is taken out at once, as long as another worker of the source answers: the last ones
//!   end by themselves.
//! - A file is somebody's own word ([`Missing::TakenOut`]): what is missing there is taken out at once.
//!
//! An address stays as long as any source has it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::listing::{Listing, Missing};

/// How long an address that is no longer listed may be silent: a worker that loses its connection for a moment while its
/// source is wrong is not taken out for it.
pub const QUIET: Duration = Duration::from_secs(10);
/// More addresses of one source are a mistake.
pub const MAX_ADDRESSES: usize = 10_000;

/// What all sources said last.
#[derive(Debug)]
pub struct Roster {
    sources: Vec<Known>,
    grace: Duration,
}

/// What is known by one source.
#[derive(Debug, Default)]
struct Known {
    listed: Vec<String>,
    /// Still counted.
    unlisted: BTreeMap<String, Unlisted>,
}

#[derive(Clone, Copy, Debug)]
struct Unlisted {
    since: Instant,
    answered: Instant,
    /// The source says so.
    is_leaving: bool,
}

/// What follows from a listing.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Addresses that were listed until now, and stay for the time being.
    pub doubted: Vec<String>,
}

/// The source lists more addresses than [`MAX_ADDRESSES`].
#[derive(Debug, PartialEq, Eq)]
pub struct TooMany(pub usize);

impl Roster {
    /// For as many sources, none heard yet.
    pub fn new(sources: usize, grace: Duration) -> Self {
        Self {
            sources: std::iter::repeat_with(Known::default)
                .take(sources)
                .collect(),
            grace,
        }
    }

    /// A source says this. `answers`: whether the worker at an address can be used.
    ///
    /// # Errors
    /// It says too much; nothing changes.
    pub fn hear(
        &mut self,
        source: usize,
        listing: Listing,
        now: Instant,
        answers: impl Fn(&str) -> bool,
    ) -> Result<Heard, TooMany> {
        let count = listing.listed.len() + listing.leaving.len();
        if count > MAX_ADDRESSES {
            return Err(TooMany(count));
        }
        let Some(known) = self.sources.get_mut(source) else {
            return Ok(Heard::default());
        };
        let Listing {
            listed,
            leaving,
            missing,
        } = listing;
        let before = std::mem::replace(&mut known.listed, listed);
        let listed: BTreeSet<&str> = known.listed.iter().map(String::as_str).collect();
        let leaving: BTreeSet<&str> = leaving.iter().map(String::as_str).collect();
        let mut heard = Heard::default();
        for address in before {
            let is_leaving = leaving.contains(address.as_str());
            if listed.contains(address.as_str()) || known.unlisted.contains_key(&address) {
                continue;
            }
            // What does not answer now serves nobody.
            if answers(&address) && (is_leaving || missing == Missing::Doubtful) {
                let unlisted = Unlisted {
                    since: now,
                    answered: now,
                    is_leaving,
                };
                if !is_leaving {
                    heard.doubted.push(address.clone());
                }
                known.unlisted.insert(address, unlisted);
            }
        }
        known.unlisted.retain(|address, unlisted| {
            // Said once, it holds until it is listed again.
            unlisted.is_leaving |= leaving.contains(address.as_str());
            let is_taken_out = missing == Missing::TakenOut && !unlisted.is_leaving;
            !listed.contains(address.as_str()) && !is_taken_out
        });
        Ok(heard)
    }

    /// The addresses that count now, in the order of the sources, each once.
    pub fn settle(&mut self, now: Instant, answers: impl Fn(&str) -> bool) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let mut all = Vec::new();
        for known in &mut self.sources {
            known.settle(now, self.grace, &answers);
            for address in known.listed.iter().chain(known.unlisted.keys()) {
                if seen.insert(address.clone()) {
                    all.push(address.clone());
                }
            }
        }
        all
    }

    /// Addresses that stay though their source no longer lists them; of several sources, each time.
    pub fn unlisted(&self) -> usize {
        let of_each = self.sources.iter().map(|known| known.unlisted.len());
        of_each.sum()
    }

    /// Whether time alone can change what [`Roster::settle`] says.
    pub fn is_waiting(&self) -> bool {
        self.sources.iter().any(|known| !known.unlisted.is_empty())
    }
}

impl Known {
    fn settle(&mut self, now: Instant, grace: Duration, answers: &impl Fn(&str) -> bool) {
        let has_others = !self.unlisted.is_empty() && self.listed.iter().any(|one| answers(one));
        self.unlisted.retain(|address, unlisted| {
            if answers(address) {
                unlisted.answered = now;
            }
            let is_quiet = now.duration_since(unlisted.answered) >= QUIET;
            let is_over = now.duration_since(unlisted.since) >= grace;
            let is_replaced = unlisted.is_leaving && has_others;
            !(is_quiet || is_over || is_replaced)
        });
    }
}

#[cfg(test)]
mod tests;
