//! The choice among servers by what is expected of them. Owns the comparison and its ties; what is expected is
//! [`Expectations`]' and what is cached is [`Index`](crate::index::Index)'.

use crate::expectation::{Expectations, Expected, Seconds, Work};
use crate::index::Held;

/// Costs that differ by less count as equal: no measurement is as exact.
pub(crate) const EQUAL: Seconds = 0.001;

/// A request to place.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Tokens of its prompt.
    pub tokens: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Whether servers take it before those that are not.
    pub is_urgent: bool,
    /// Whether what open requests wait for it counts: some servers compute prompts for others, and this one is chosen among
    /// the others.
    pub spares_streams: bool,
    /// Its cache comes from another server, and nothing of its prompt is computed: seconds a token of what the server that it
    /// goes to does not hold.
    pub transfer: Option<Seconds>,
}

/// A server that may take the request.
#[derive(Clone, Copy, Debug)]
pub struct Eligible {
    pub server: u32,
    /// What it does before it can begin, such as loading the request's adapter.
    pub delay: Seconds,
}

/// Where a request goes, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub server: u32,
    /// Tokens that its cache holds, as far as is reported.
    pub cached_tokens: u32,
    /// Tokens that come from another server.
    pub moved_tokens: u32,
    /// Seconds until the server is expected to begin.
    pub wait: Seconds,
    /// Seconds that it is expected to compute.
    pub compute: Seconds,
    /// What choices compare, in seconds.
    pub cost: Seconds,
    /// The share of the last time that the server computed.
    pub busy: f64,
    /// Requests that it has.
    pub open: u32,
    /// Requests whose caches come to it from another server.
    pub arriving: u32,
}

impl Request {
    /// Tokens that come from another server to one that holds so many leading blocks, and the seconds that they take.
    fn moved(&self, held: crate::index::Depth) -> (u32, Seconds) {
        let Some(token_s) = self.transfer else {
            return (0, 0.0);
        };
        let there = held.device.saturating_mul(self.block_tokens);
        let moved = self.tokens.saturating_sub(there);
        (moved, f64::from(moved) * token_s)
    }

    /// Tokens of so many leading blocks, or of all where nothing is computed.
    fn tokens_of(&self, blocks: u32) -> u32 {
        match self.transfer {
            Some(_) => self.tokens,
            None => blocks.saturating_mul(self.block_tokens).min(self.tokens),
        }
    }

    /// The request as work of a server that holds so many leading blocks. What is coming is there when its turn comes.
    pub fn work(&self, held: crate::index::Depth) -> Work {
        Work {
            tokens: self.tokens,
            on_device: self.tokens_of(held.coming),
            on_host: self.tokens_of(held.host.max(held.coming)),
            is_urgent: self.is_urgent,
            spares_streams: self.spares_streams,
            is_transferred: self.transfer.is_some(),
        }
    }
}

/// Chooses the server with the least expected cost; among equals, the one with the fewest open requests, and
/// then the one that was used the longest ago. `None`: none of them is known and not drained.
pub fn choose(
    request: &Request,
    eligible: impl IntoIterator<Item = Eligible>,
    held: &Held,
    expectations: &Expectations,
    now: Seconds,
) -> Option<Choice> {
    let prices = expectations.prices();
    let mut best: Option<((u64, u32, u64), Choice)> = None;
    for Eligible { server, delay } in eligible {
        let depth = held.of(server);
        let work = request.work(depth);
        let (moved_tokens, moving) = request.moved(depth);
        let Some(outlook) = expectations.outlook(server) else {
            continue;
        };
        let Some(expected) = prices.expected(outlook, &work, now) else {
            continue;
        };
        let Expected {
            wait,
            compute,
            cost,
            busy,
        } = expected;
        // A float that is negative or not a number becomes 0.
        let steps = ((cost + delay + moving + prices.guess(server, &work)) * (1.0 / EQUAL)) as u64;
        let rank = (steps, outlook.open, outlook.last_turn);
        if best.is_none_or(|(least, _)| rank < least) {
            let choice = Choice {
                server,
                cached_tokens: request.tokens_of(depth.host),
                moved_tokens,
                wait: wait + delay,
                compute,
                cost: cost + delay + moving,
                busy,
                open: outlook.open,
                arriving: outlook.arriving,
            };
            best = Some((rank, choice));
        }
    }
    best.map(|(_, choice)| choice)
}
