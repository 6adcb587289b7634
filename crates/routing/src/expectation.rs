//! The expected work of each server, in seconds.
//!
//! Owns what is known of servers apart from their caches: what they report ([`Expectations::reported`]), what was sent
//! to them since ([`Expectations::sent`]), and how quick they are, which is learned. Knows nothing of blocks, and has
//! no clock: times are [`Seconds`] since any moment of the caller's choice.
//!
//! ## What is expected
//!
//! ```text
//! wait    = pace × slow × tokens in front of the request that are not computed yet
//! compute = pace × slow × tokens of the request that are not cached
//! cost    = wait + price × compute + compute × (wait + compute / 2) / second + 3 s × recent + 5 ms × open
//!           + compute × open, where some servers compute prompts for others
//! ```
//!
//! `pace` is the server's learned seconds a prompt token. `slow` is 1 + running / 256: requests that generate share
//! each iteration with prompts, and around 256 of them a GPU is as busy with them as with prompts.
//!
//! ## Why the cost is more than the time to the first token
//!
//! `wait + compute` is when the first token may come, and the best for this request alone. But what a server computes
//! also costs others, in four ways. Each is in seconds of their waiting.
//!
//! - **Later requests wait for it.** `price` is what a second of computing costs all together. A fleet that is busy for
//!   a share ρ of the time passes it on to about 1 / (1 − ρ) seconds in all: 5 at ρ = 0.8, where queues matter. Where
//!   caches are full, a second copy of a prompt also pushes out blocks that somebody comes back to, and makes its own
//!   conversation forget where it was: there it is 10. In between it follows the share of full caches.
//! - **A long prompt is worse than many short ones.** About one request a second comes to a busy server. Those that come
//!   while it computes wait for half of it on average, and for all that is in front of it: hence the square.
//! - **Who generates shares each iteration** (`open`). One more sequence of an 8B model makes an iteration some 0.03 ms
//!   longer on an H200; over the 200 tokens of an answer, and for both, that is 5 ms or more.
//! - **Conversations come back.** A server that computed much lately holds what will be asked for next. What has no
//!   cache anywhere goes where less was computed in the last minute (`recent`, a share of the time).
//!
//! Where some servers compute prompts for others ([`split`](crate::split)), those others are there for answers without
//! pauses: each open request waits while a prompt is computed next to it, and each such wait counts. A request whose cache
//! comes from another server computes nothing, and what its server computed lately does not count.
//!
//! The constants are not options. They were chosen once, over all cells of the table in `docs/ROUTING.md`: a lower price
//! shortens the mean a little where caches have room and loses hits, a higher one the other way round.
//!
//! ## Short prompts that pass long ones
//!
//! Where a server's short prompts pass long ones ([`Report::short_first`]), a request does not wait for those that are more
//! than twice as long, as far as this gateway has sent them. How long those of others are is not reported, and all of them
//! count. What a long prompt waits longer because it is passed does not count either: it is at most as much again as it
//! computes itself.
//!
//! ## What was sent counts at once
//!
//! A request is queued at its server from [`Expectations::sent`] on, until a report may include it. So a burst is spread
//! although nobody has reported yet, and a prompt that everybody sends is computed by a second server as soon as
//! waiting for the first one costs more than that.
//!
//! ## What other gateways sent counts by a guess
//!
//! A report is some milliseconds old, and gateways that know the same would all choose the same idle server until the
//! next one. So each adds to a server's cost what others may have sent there unseen: a random share of two and a half
//! requests of usual size, by the part of all open requests that is not its own. It counts by the share of the prompt that
//! the server would compute: what others have in hand goes where *their* prompts are cached, and a conversation should not
//! leave its server for a guess. Alone, a gateway guesses nothing.
//!
//! ## Servers that report nothing
//!
//! Their queue is what was sent and has not started. [`Expectations::started`] and [`Expectations::ended`] suffice.
//!
//! ## Servers that hang
//!
//! A request that has not started long after it was expected to makes its server as expensive as it is late.

mod pace;
mod server;

use pace::{ASSUMED, Pace};
pub(crate) use server::Outlook;
use server::Server;

/// Seconds since any moment, the same for all calls.
pub type Seconds = f64;

/// What a second of computing costs all requests together, in seconds of waiting, where caches have room; see the
/// module.
const PRICE: f64 = 5.0;
/// The same where they are full.
const PRICE_FULL: f64 = 10.0;
/// Requests a second that come to a busy server.
const ARRIVALS: f64 = 1.0;
/// Requests of usual size that other gateways, if they send all there are, may have sent to a server unseen.
const UNSEEN: f64 = 2.5;
/// What the newest request counts for in the average.
const NEWEST: f64 = 0.02;
/// What an open request costs a new one.
const OPEN: Seconds = 0.005;
/// What a server that computed all the last minute costs more than one that did not.
const RECENT: Seconds = 3.0;
/// What a block in the host's memory costs, as a share of computing it: reading back 512 tokens of an 8B model takes
/// 3 ms over PCIe, and computing them some 40 ms.
const HOST_SHARE: f64 = 0.1;

/// What a server reports about itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// When it was made.
    pub at: Seconds,
    /// Prompt tokens that it has to compute, of requests of all gateways. What it will find in its cache does not count.
    pub queued_tokens: u64,
    /// Those of urgent requests among them.
    pub urgent_tokens: u64,
    /// Seconds that the server has worked on what is still among them.
    pub working_seconds: Seconds,
    /// Requests that it has, of all gateways, whether or not they have begun.
    pub requests: u32,
    /// Whether its cache has no free block: new blocks push others out.
    pub is_full: bool,
    /// Whether short prompts pass long ones.
    pub short_first: bool,
    /// Prompt tokens computed since its last report.
    pub computed_tokens: u64,
    /// Seconds that it worked on them.
    pub computed_seconds: Seconds,
}

/// The part of a request that matters here.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Tokens of the prompt.
    pub tokens: u32,
    /// Those of the leading blocks on the device.
    pub on_device: u32,
    /// Those of the leading blocks on the device or in the host's memory.
    pub on_host: u32,
    /// Whether its server will take it before those that are not.
    pub is_urgent: bool,
    /// Whether what open requests wait for it counts.
    pub spares_streams: bool,
    /// Whether its cache comes from another server.
    pub is_transferred: bool,
}

/// What is expected of a server for one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Until the server begins with the prompt.
    pub wait: Seconds,
    /// For what is not cached.
    pub compute: Seconds,
    /// What choices compare.
    pub cost: Seconds,
    /// The share of the last time that the server computed.
    pub busy: f64,
}

/// Names a request that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub server: u32,
    /// Rises with each request that was sent to any server.
    pub number: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Expectations {
    seed: u64,
    servers: Vec<Option<Server>>,
    /// What choices read of each server, close together: a choice among a thousand reads all of it.
    outlooks: Vec<Outlook>,
    /// Of all servers together: what those of which little is known are assumed to need.
    fleet: Pace,
    fleet_seconds: f64,
    /// Servers that reported, and those whose caches are full.
    reporting: u32,
    full: u32,
    /// Open requests at all servers, of this gateway and of others.
    own: u64,
    others: u64,
    /// Seconds that a request computes, on average.
    compute: Seconds,
    next_number: u64,
}

/// The number of the first ticket: what comes before are the turns of servers that were never used.
const FIRST_NUMBER: u64 = 1 << 32;

impl Expectations {
    /// Nothing is known yet. Servers that were never used take their turns in an order that depends on `seed`: give each
    /// gateway another one, or all of them send their first requests to the same server.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            servers: Vec::new(),
            outlooks: Vec::new(),
            fleet: Pace::default(),
            fleet_seconds: ASSUMED,
            reporting: 0,
            full: 0,
            own: 0,
            others: 0,
            compute: 0.0,
            next_number: FIRST_NUMBER,
        }
    }

    /// Adds a server, or replaces the one that had this number.
    pub fn add(&mut self, server: u32) {
        let place = server as usize;
        if place >= self.servers.len() {
            self.servers.resize_with(place + 1, || None);
            self.outlooks.resize(place + 1, Outlook::default());
        }
        self.remove(server);
        let turn = mixed(self.seed ^ u64::from(server)) % FIRST_NUMBER;
        let added = Server::new(self.next_number, turn);
        let outlook = added.outlook();
        self.servers[place] = Some(added);
        self.set_outlook(server, outlook);
    }

    pub fn remove(&mut self, server: u32) {
        let Some(gone) = self.servers.get_mut(server as usize).and_then(Option::take) else {
            return;
        };
        self.set_outlook(server, Outlook::default());
        self.reporting -= u32::from(gone.has_reported());
        self.full -= u32::from(gone.is_full());
    }

    /// A drained server is not chosen; what it works on still counts.
    pub fn set_drained(&mut self, server: u32, is_drained: bool) {
        self.change(server, |one| one.is_drained = is_drained);
    }

    /// Takes a server's report. One that is older than the last is ignored.
    pub fn reported(&mut self, server: u32, report: &Report) {
        let change = self.change(server, |one| {
            let before = (one.has_reported(), one.is_full());
            let learned = one.take_report(report);
            (before, (one.has_reported(), one.is_full()), learned)
        });
        let Some((before, after, learned)) = change else {
            return;
        };
        self.reporting += u32::from(after.0) - u32::from(before.0);
        self.full = self.full + u32::from(after.1) - u32::from(before.1);
        if let Some((tokens, seconds)) = learned {
            self.fleet.learn(tokens, seconds);
            self.fleet_seconds = self.fleet.seconds().unwrap_or(ASSUMED);
        }
    }

    /// What a server reported no longer counts: it is silent, or not trusted.
    pub fn unreported(&mut self, server: u32) {
        let before = self.change(server, |one| {
            let before = (one.has_reported(), one.is_full());
            one.forget_report();
            before
        });
        if let Some((reported, full)) = before {
            self.reporting -= u32::from(reported);
            self.full -= u32::from(full);
        }
    }

    /// Counts a request that is sent to a server now.
    pub fn sent(&mut self, server: u32, work: &Work, now: Seconds) -> Ticket {
        let number = self.next_number;
        self.next_number += 1;
        let expected = self.expected(server, work, now);
        let patience = expected.map_or(0.0, |one| one.wait + one.compute);
        let compute = expected.map_or(self.compute, |one| one.compute);
        self.compute += (compute - self.compute) * NEWEST;
        self.change(server, |one| one.take_sent(number, work, now, patience));
        Ticket { server, number }
    }

    /// The first token of a request came.
    pub fn started(&mut self, ticket: Ticket, now: Seconds) {
        self.change(ticket.server, |one| one.started(ticket.number, now));
    }

    /// A request ended, in whichever way, or will be sent elsewhere.
    pub fn ended(&mut self, ticket: Ticket) {
        self.change(ticket.server, |one| one.ended(ticket.number));
    }

    /// What is expected of a server; `None` for an unknown or drained one.
    pub fn expected(&self, server: u32, work: &Work, now: Seconds) -> Option<Expected> {
        self.prices().expected(self.outlook(server)?, work, now)
    }

    pub(crate) fn outlook(&self, server: u32) -> Option<&Outlook> {
        self.outlooks.get(server as usize)
    }

    /// What holds for all servers at one moment.
    pub(crate) fn prices(&self) -> Prices {
        let share = f64::from(self.full) / f64::from(self.reporting.max(1));
        Prices {
            compute: PRICE + (PRICE_FULL - PRICE) * share,
            fleet_seconds: self.fleet_seconds,
            unseen: self.unseen(),
            draw: mixed(self.seed ^ self.next_number),
        }
    }

    /// Changes a server, and then what choices read of it.
    fn change<T>(&mut self, server: u32, change: impl FnOnce(&mut Server) -> T) -> Option<T> {
        let one = self.servers.get_mut(server as usize)?.as_mut()?;
        let result = change(one);
        let outlook = one.outlook();
        self.set_outlook(server, outlook);
        Some(result)
    }

    fn set_outlook(&mut self, server: u32, outlook: Outlook) {
        let before = std::mem::replace(&mut self.outlooks[server as usize], outlook);
        self.own = self.own + u64::from(outlook.own) - u64::from(before.own);
        self.others = self.others + u64::from(outlook.others) - u64::from(before.others);
    }

    /// Seconds of work that other gateways may have sent to a server a moment ago.
    fn unseen(&self) -> Seconds {
        let all = (self.own + self.others).max(1);
        UNSEEN * self.compute * self.others as f64 / all as f64
    }
}

/// What holds for all servers at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prices {
    /// Of a second of computing: between the two constants by the share of full caches.
    compute: f64,
    /// A token's, where little was learned.
    fleet_seconds: f64,
    /// What other gateways may have sent, and the draw that says where.
    unseen: Seconds,
    draw: u64,
}

impl Prices {
    /// A share of what other gateways may have sent, which differs by server, by request and by gateway.
    pub(crate) fn guess(&self, server: u32, work: &Work) -> Seconds {
        if self.unseen == 0.0 {
            return 0.0;
        }
        let draw = mixed(self.draw ^ u64::from(server)) >> 11;
        let share = uncached(work) / f64::from(work.tokens.max(1));
        self.unseen * share * draw as f64 / (1u64 << 53) as f64
    }

    #[inline]
    pub(crate) fn expected(
        &self,
        outlook: &Outlook,
        work: &Work,
        now: Seconds,
    ) -> Option<Expected> {
        if !outlook.is_open {
            return None;
        }
        // Which of the urgent ones are long is not known.
        if outlook.has_long && !work.is_urgent {
            return Some(self.expected_passing(outlook, work, now));
        }
        Some(self.expected_after(outlook, work, None, now))
    }

    /// Of a server with long prompts, which are few: apart, so that a choice among a thousand others stays quick.
    #[cold]
    fn expected_passing(&self, outlook: &Outlook, work: &Work, now: Seconds) -> Expected {
        let passed = outlook.passed_by(uncached(work));
        self.expected_after(outlook, work, Some(passed), now)
    }

    /// `passed`: tokens of the queue that the request does not wait for.
    #[inline(always)]
    fn expected_after(
        &self,
        outlook: &Outlook,
        work: &Work,
        passed: Option<f64>,
        now: Seconds,
    ) -> Expected {
        let seconds = outlook.pace.unwrap_or(self.fleet_seconds) * outlook.slow;
        let passed = passed.map(|tokens| tokens * seconds);
        let wait = outlook.wait(work.is_urgent, passed, seconds, now);
        let compute = uncached(work) * seconds;
        let open = f64::from(outlook.open);
        let waiting = if work.spares_streams { open } else { 0.0 };
        let busy = outlook.recent(now);
        let recent = if work.is_transferred { 0.0 } else { busy };
        Expected {
            wait,
            compute,
            cost: wait
                + self.compute * compute
                + ARRIVALS * compute * (wait + compute / 2.0)
                + compute * waiting
                + RECENT * recent
                + OPEN * open,
            busy,
        }
    }
}

/// Spreads numbers: the last steps of MurmurHash3.
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ (mixed >> 33)
}

/// Tokens to compute; a server computes at least the last one.
fn uncached(work: &Work) -> f64 {
    let host = work.on_host.max(work.on_device);
    let computed = work.tokens.saturating_sub(host).max(1);
    f64::from(computed) + HOST_SHARE * f64::from(host - work.on_device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_as_murmur_does() {
        for (number, expected) in [
            (0, 0x9ca066f1a4ab2eea),
            (1, 0xe5fdc025e13eeed5),
            (0x100000000, 0x3d98ccf19fc91c07),
            (0xffffffffffffffff, 0x25b775faeca8f520),
        ] {
            assert_eq!(mixed(number), expected, "{number}");
        }
    }

    fn work(on_device: u32, tokens: u32) -> Work {
        Work {
            tokens,
            on_device,
            on_host: on_device,
            is_urgent: false,
            spares_streams: false,
            is_transferred: false,
        }
    }

    /// Two servers with so many requests of this gateway and of others, which compute a second each.
    fn shared(own: u32, others: u32) -> Expectations {
        let mut expectations = Expectations::new(7);
        for server in 0..2 {
            expectations.add(server);
            let mut outlook = expectations.outlooks[server as usize];
            (outlook.own, outlook.others) = (own, others);
            expectations.set_outlook(server, outlook);
        }
        expectations.compute = 1.0;
        expectations.next_number += 5;
        expectations
    }

    #[test]
    fn servers_that_were_never_used_take_turns_by_the_seed() {
        let expectations = shared(0, 0);
        for server in 0..2u32 {
            let turn = expectations.outlook(server).unwrap().last_turn;
            assert_eq!(turn, mixed(7 ^ u64::from(server)) % FIRST_NUMBER);
        }
    }

    #[test]
    fn what_others_may_have_sent_is_their_share_of_what_is_open() {
        for (own, others, share) in [(0, 0, 0.0), (0, 4, 1.0), (1, 3, 0.75), (4, 0, 0.0)] {
            let mut expectations = shared(own, others);
            let unseen = expectations.unseen();
            assert!(
                (unseen - UNSEEN * share).abs() < 1e-9,
                "{own} and {others}: {unseen}"
            );
            // What a server had before does not count any more.
            for server in 0..2 {
                let outlook = expectations.outlooks[server as usize];
                expectations.set_outlook(server, outlook);
            }
            assert_eq!(
                (expectations.own, expectations.others),
                (2 * u64::from(own), 2 * u64::from(others))
            );
        }
    }

    #[test]
    fn a_guess_is_a_share_of_it_by_server_and_request() {
        let expectations = shared(0, 4);
        let prices = expectations.prices();
        assert_eq!(prices.draw, mixed(7 ^ expectations.next_number));
        for server in 0..64 {
            let bits = mixed(prices.draw ^ server) >> 11;
            let expected = prices.unseen * (bits as f64 * 0.5f64.powi(53));
            let server = u32::try_from(server).unwrap();
            let guess = |on_device, tokens| prices.guess(server, &work(on_device, tokens));
            assert!((guess(0, 1000) - expected).abs() < 1e-12);
            assert!((0.0..prices.unseen).contains(&guess(0, 1000)));
            // Three quarters are cached there.
            assert!((guess(750, 1000) - expected / 4.0).abs() < 1e-12);
            assert!(guess(0, 0).is_finite());
        }
    }

    #[test]
    fn the_server_where_less_is_guessed_is_chosen() {
        let request = crate::Request {
            tokens: 512,
            block_tokens: 512,
            is_urgent: false,
            spares_streams: false,
            transfer: None,
        };
        let mut expectations = shared(0, 4);
        for _ in 0..32 {
            let prices = expectations.prices();
            let guesses = [0, 1].map(|server| prices.guess(server, &work(0, 512)));
            let eligible = [0, 1].map(|server| crate::Eligible { server, delay: 0.0 });
            let held = crate::index::Held::default();
            let choice = crate::choose(&request, eligible, &held, &expectations, 0.0).unwrap();
            let expected = u32::from(guesses[1] < guesses[0]);
            assert_eq!(choice.server, expected, "{guesses:?}");
            expectations.next_number += 1;
        }
    }

    #[test]
    fn what_requests_compute_is_learned() {
        let mut expectations = shared(0, 0);
        expectations.compute = 0.0;
        let work = work(0, 1000);
        let mut learned = 0.0;
        for _ in 0..3 {
            let compute = expectations.expected(0, &work, 0.0).unwrap().compute;
            assert!(compute > 0.0);
            learned += (compute - learned) * NEWEST;
            expectations.sent(0, &work, 0.0);
            assert!((expectations.compute - learned).abs() < 1e-12);
        }
    }
}
