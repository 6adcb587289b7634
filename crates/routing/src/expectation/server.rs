//! One server: what it reported, what was sent to it since, and what choices read of both. Owns the queue; the price of
//! work is [`Expectations`](super::Expectations)'.

use std::collections::VecDeque;

use super::pace::Pace;
use super::{Report, Seconds, Work, uncached};

/// Requests generating at which prompts take twice their time; see [`super`].
const FULL_BATCH: f64 = 256.0;
/// How long what was computed counts as recent.
const RECENT_FOR: Seconds = 60.0;
/// How long a report may be on its way: it includes what was sent before that.
const ON_THE_WAY: Seconds = 0.02;
/// A start is late after twice what was expected and this.
const PATIENCE: Seconds = 1.0;

/// Prompts are long from this on, and those of the next class from twice as many tokens.
const LONG: u32 = 256;
/// Classes of long prompts.
const LENGTHS: usize = 8;

/// What choices read of a server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outlook {
    pub(super) is_open: bool,
    /// Whether any of `long` is above 0: a choice reads this of a thousand servers, and seldom the rest.
    pub(super) has_long: bool,
    /// Requests that generate, and those of this gateway that will.
    pub(crate) open: u32,
    /// Those of this gateway, and at least so many of others: what a report has beyond them, whether it includes the last
    /// ones or not.
    pub(super) own: u32,
    pub(super) others: u32,
    /// Those of this gateway whose caches come from another server.
    pub(crate) arriving: u32,
    pub(crate) last_turn: u64,
    /// Seconds a token, if enough was learned, and by how much what generates slows it.
    pub(super) pace: Option<f64>,
    pub(super) slow: f64,
    /// Tokens that the server computes since a moment, in all and of urgent requests.
    working: [f64; 2],
    since: Seconds,
    /// Tokens that come after those.
    behind: [f64; 2],
    /// Tokens of prompts of this gateway among them that a shorter one may pass, of each class and those above.
    long: [u32; LENGTHS],
    /// When the request that waits the longest is late.
    late: Seconds,
    recent: f64,
    recent_at: Seconds,
}

impl Outlook {
    /// Seconds until a request that comes now is begun with, less what of the queue it passes.
    #[inline]
    pub(super) fn wait(
        &self,
        is_urgent: bool,
        passed: Option<Seconds>,
        seconds: f64,
        now: Seconds,
    ) -> Seconds {
        let kind = usize::from(is_urgent);
        let working = self.working[kind] * seconds - (now - self.since).max(0.0);
        let mut queue = self.behind[kind] * seconds + working.max(0.0);
        if let Some(passed) = passed {
            queue = (queue - passed).max(0.0);
        }
        queue + (now - self.late).max(0.0)
    }

    /// Tokens of the prompts that one of so many tokens passes: those more than twice as long, which are due later even
    /// if nothing has come since.
    pub(super) fn passed_by(&self, tokens: f64) -> f64 {
        let halves = tokens as u32 / (LONG / 2);
        let class = (u32::BITS - halves.leading_zeros()) as usize;
        self.long.get(class).copied().map_or(0.0, f64::from)
    }

    /// The share of the last time that it computed: what it was, less with time. The square is near the exponential and
    /// a tenth of its cost.
    pub(super) fn recent(&self, now: Seconds) -> f64 {
        let ago = (now - self.recent_at).max(0.0) * (1.0 / RECENT_FOR);
        let left = (1.0 - ago / 2.0).max(0.0);
        self.recent * left * left
    }
}

#[derive(Debug)]
struct Sent {
    number: u64,
    tokens: f64,
    is_urgent: bool,
    is_transferred: bool,
    at: Seconds,
    late: Seconds,
}

impl Sent {
    /// The sums of the classes that it is in.
    fn classes<'a>(&self, long: &'a mut [u32; LENGTHS]) -> impl Iterator<Item = &'a mut u32> {
        let tokens = if self.is_urgent { 0.0 } else { self.tokens };
        let of = move |(class, _): &(usize, _)| f64::from(LONG << class) <= tokens;
        long.iter_mut()
            .enumerate()
            .take_while(of)
            .map(|(_, sum)| sum)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Server {
    pace: Pace,
    report: Option<Report>,
    /// What was sent and has not started, by number.
    waiting: VecDeque<Sent>,
    /// Those of them whose caches come from another server.
    arriving: u32,
    /// Tokens of those that are not urgent, of each class of long prompts and those above.
    long: [u32; LENGTHS],
    /// The last ticket that a report included.
    included: u64,
    /// Requests of this gateway that started, and when the last of them did.
    started: u32,
    last_start: Seconds,
    recent: f64,
    last_turn: u64,
    /// Tickets before this one are of another server, which had its number.
    first_number: u64,
    pub(super) is_drained: bool,
}

impl Server {
    /// A server whose first ticket will have at least this number, and which has its first turn as if its last was `turn`.
    pub(super) fn new(first_number: u64, turn: u64) -> Self {
        Self {
            pace: Pace::default(),
            report: None,
            waiting: VecDeque::new(),
            arriving: 0,
            long: [0; LENGTHS],
            included: 0,
            started: 0,
            last_start: 0.0,
            recent: 0.0,
            last_turn: turn,
            first_number,
            is_drained: false,
        }
    }

    pub(super) fn has_reported(&self) -> bool {
        self.report.is_some()
    }

    pub(super) fn is_full(&self) -> bool {
        self.report.is_some_and(|report| report.is_full)
    }

    /// Takes a report. Returns the tokens and seconds that were learned from.
    pub(super) fn take_report(&mut self, report: &Report) -> Option<(u64, Seconds)> {
        if self.report.is_some_and(|last| last.at > report.at) {
            return None;
        }
        self.recent = self.outlook().recent(report.at) + report.computed_seconds / RECENT_FOR;
        let before = |sent: &&Sent| sent.at < report.at - ON_THE_WAY;
        let last = self.waiting.iter().take_while(before).last();
        self.included = self.included.max(last.map_or(0, |sent| sent.number));
        self.report = Some(*report);
        let streams = self.streams();
        if report.computed_tokens == 0 {
            return None;
        }
        // Without the share of those that generated, which is added for those that do when something is expected.
        let learned = (
            report.computed_tokens,
            report.computed_seconds / slow(streams),
        );
        self.pace.learn(learned.0, learned.1);
        Some(learned)
    }

    pub(super) fn forget_report(&mut self) {
        self.report = None;
        self.included = 0;
    }

    /// Takes a request that is expected to start after `patience`.
    pub(super) fn take_sent(&mut self, number: u64, work: &Work, at: Seconds, patience: Seconds) {
        self.last_turn = number;
        self.arriving += u32::from(work.is_transferred);
        let sent = Sent {
            number,
            tokens: uncached(work),
            is_urgent: work.is_urgent,
            is_transferred: work.is_transferred,
            at,
            late: at + 2.0 * patience + PATIENCE,
        };
        for sum in sent.classes(&mut self.long) {
            *sum = sum.saturating_add(sent.tokens as u32);
        }
        self.waiting.push_back(sent);
    }

    pub(super) fn started(&mut self, number: u64, now: Seconds) {
        if self.forget(number) {
            self.started += 1;
            self.last_start = now;
            // Until the next report counts it.
            if number > self.included
                && let Some(report) = &mut self.report
            {
                report.requests += 1;
            }
        }
    }

    pub(super) fn ended(&mut self, number: u64) {
        if number < self.first_number {
            return;
        }
        let has_started = !self.forget(number);
        self.started -= u32::from(has_started && self.started > 0);
        if (has_started || number <= self.included)
            && let Some(report) = &mut self.report
        {
            report.requests = report.requests.saturating_sub(1);
        }
    }

    /// Whether this request was waiting.
    fn forget(&mut self, number: u64) -> bool {
        let place = self
            .waiting
            .binary_search_by_key(&number, |sent| sent.number);
        let sent = place.ok().and_then(|place| self.waiting.remove(place));
        let Some(sent) = sent else {
            return false;
        };
        self.arriving -= u32::from(sent.is_transferred);
        for sum in sent.classes(&mut self.long) {
            *sum = sum.saturating_sub(sent.tokens as u32);
        }
        true
    }

    /// Requests that generate: those that it reported, without those of this gateway that have not started. Those of other
    /// gateways count whether or not they have.
    fn streams(&self) -> u32 {
        self.report.map_or(self.started, |report| {
            let waiting = self.waiting_up_to(self.included);
            report.requests.saturating_sub(waiting as u32)
        })
    }

    /// How many of those that wait have at most this number. Called several times a choice, so it does not walk the queue.
    fn waiting_up_to(&self, number: u64) -> usize {
        self.waiting.partition_point(|sent| sent.number <= number)
    }

    pub(super) fn outlook(&self) -> Outlook {
        let streams = self.streams();
        let waiting = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        let (working, since, included) = match &self.report {
            Some(report) => {
                let working = [report.queued_tokens as f64, report.urgent_tokens as f64];
                (working, report.at - report.working_seconds, self.included)
            }
            // It computes the first one, since that was sent or the one before it started.
            None => self.waiting.front().map_or(([0.0; 2], 0.0, 0), |first| {
                let working = [
                    first.tokens,
                    if first.is_urgent { first.tokens } else { 0.0 },
                ];
                (working, first.at.max(self.last_start), first.number)
            }),
        };
        let own = self.started.saturating_add(waiting);
        let others = |report: Report| report.requests.saturating_sub(own);
        let mut behind = [0.0; 2];
        for sent in self.waiting.range(self.waiting_up_to(included)..) {
            behind[0] += sent.tokens;
            behind[1] += if sent.is_urgent { sent.tokens } else { 0.0 };
        }
        let long = match self.report {
            Some(report) if report.short_first => self.long,
            _ => [0; LENGTHS],
        };
        Outlook {
            is_open: !self.is_drained,
            has_long: long[0] > 0,
            open: streams.saturating_add(waiting),
            own,
            others: self.report.map_or(0, others),
            arriving: self.arriving,
            last_turn: self.last_turn,
            pace: self.pace.seconds(),
            slow: slow(streams),
            working,
            since,
            behind,
            long,
            late: self
                .waiting
                .front()
                .map_or(f64::INFINITY, |first| first.late),
            recent: self.recent,
            recent_at: self.report.map_or(0.0, |report| report.at),
        }
    }
}

fn slow(running: u32) -> f64 {
    1.0 + f64::from(running) / FULL_BATCH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_counted_until_it_starts_or_ends() {
        let mut server = Server::new(1, 0);
        for (number, is_transferred, at) in [
            (1, true, 0.0),
            (2, false, 0.0),
            (4, true, 1.0),
            (7, true, 1.0),
        ] {
            let work = Work {
                tokens: 100,
                on_device: 0,
                on_host: 0,
                is_urgent: false,
                spares_streams: false,
                is_transferred,
            };
            server.take_sent(number, &work, at, 0.0);
        }
        server.take_report(&Report {
            at: 0.5,
            requests: 5,
            ..Report::default()
        });
        // Of the five that it reported, two wait.
        let counted = |server: &Server| {
            let outlook = server.outlook();
            (
                outlook.open,
                outlook.own,
                outlook.others,
                outlook.arriving,
                outlook.behind[0],
            )
        };
        assert_eq!(counted(&server), (7, 4, 1, 3, 200.0));
        server.started(4, 1.0);
        assert_eq!(counted(&server), (7, 4, 2, 2, 100.0));
        // It started before.
        server.ended(4);
        assert_eq!(counted(&server), (6, 3, 2, 2, 100.0));
        server.ended(1);
        assert_eq!(counted(&server), (5, 2, 2, 1, 100.0));
        // Nobody knows it.
        server.ended(5);
        assert_eq!(counted(&server).3, 1);
        server.ended(7);
        assert_eq!(counted(&server).3, 0);
    }
}
