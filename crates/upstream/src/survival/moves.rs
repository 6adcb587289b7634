//! What is reported of a request's moves, to its client and in metrics. Owns that a move counts once it has brought
//! something new: a server that is full, or ends as well, has not continued the request.

use std::time::Duration;

use tokio::time::Instant;

use crate::metrics::{Resumes, RetryLabels, RetryReason};

/// What the client may learn in the end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// How often it continued at another server.
    pub times: u32,
    /// How often of these that generated all of it again.
    pub replayed: u32,
    /// Tokens that were computed again.
    pub tokens: usize,
    /// How long nothing came because of it.
    pub pause: Duration,
}

/// As a header, a trailer or a parameter has it.
impl std::fmt::Display for Report {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "times={}, replayed={}, tokens={}, pause-ms={}",
            self.times,
            self.replayed,
            self.tokens,
            self.pause.as_millis()
        )
    }
}

/// A move to a server that has brought nothing new yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    pub(super) reason: RetryReason,
    /// Tokens that the server computes again.
    pub(super) tokens: usize,
    /// When no server had the request.
    pub(super) since: Instant,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Moves {
    metrics: Resumes,
    /// Whether a server generates all of it again.
    replays: bool,
    latest: Option<Move>,
    /// When its context was computed, until the first output after it.
    handed_over: Option<Instant>,
    /// When the last new output came.
    last_new: Option<Instant>,
    report: Report,
}

impl Moves {
    pub(super) fn new(replays: bool, metrics: Resumes) -> Self {
        Self {
            metrics,
            replays,
            latest: None,
            handed_over: None,
            last_new: None,
            report: Report::default(),
        }
    }

    /// Resets, as if nothing had been generated. What was reported stays.
    pub(super) fn restart(&mut self) {
        self.latest = None;
        self.handed_over = None;
        self.last_new = None;
    }

    /// Another server has the request. The pause goes back to the first one that was lost.
    pub(super) fn add(&mut self, made: Move) {
        let since = self.latest.map_or(made.since, |earlier| earlier.since);
        self.latest = Some(Move { since, ..made });
    }

    /// Another server continues what a context left `since` then.
    pub(super) fn hand_over(&mut self, since: Option<Instant>) {
        self.handed_over = since;
    }

    /// Whether the server that continues after its context has brought nothing yet.
    pub(super) fn is_handed_over(&self) -> bool {
        self.handed_over.is_some()
    }

    /// The server that was to continue after its context has failed it: from here on it is a request that was lost.
    pub(super) fn lose(&mut self) {
        self.handed_over = None;
    }

    /// New output came: the latest move counts. Its pause begins with the output before: a silent server had said nothing
    /// for a while before it was noticed.
    pub(super) fn bear_fruit(&mut self, at: Instant) {
        if let Some(since) = self.handed_over.take() {
            let took = at.saturating_duration_since(since);
            self.metrics.hand_over.observe(took.as_secs_f64());
        }
        let before = self.last_new.replace(at);
        let Some(Move {
            reason,
            tokens,
            since,
        }) = self.latest.take()
        else {
            return;
        };
        let pause = at.saturating_duration_since(before.unwrap_or(since));
        let labels = RetryLabels::from(reason);
        self.metrics.resumed.get_or_create(&labels).inc();
        self.metrics.tokens.inc_by(tokens as u64);
        self.metrics.pause.observe(pause.as_secs_f64());
        self.report.times += 1;
        self.report.replayed += u32::from(self.replays);
        self.report.tokens += tokens;
        self.report.pause += pause;
    }

    /// The request ends because no server continues it.
    pub(super) fn fail(&self) {
        self.metrics.failed.inc();
    }

    /// How the request continued at other servers; `None`: it did not.
    pub(super) fn report(&self) -> Option<Report> {
        Some(self.report).filter(|report| report.times > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_is_reported_adds_up() {
        let start = Instant::now();
        let at = |seconds: u32| start + seconds * SECOND;
        let made = |tokens, since| Move {
            reason: RetryReason::Unavailable,
            tokens,
            since: at(since),
        };
        let mut moves = Moves::new(true, Resumes::default());
        moves.bear_fruit(at(1));
        assert!(moves.report().is_none());
        moves.add(made(10, 2));
        moves.bear_fruit(at(4));
        // One that failed before it brought anything: the pause is all of it.
        moves.add(made(20, 5));
        moves.add(made(21, 6));
        moves.bear_fruit(at(8));
        let report = moves.report().unwrap();
        assert_eq!(
            report.to_string(),
            "times=2, replayed=2, tokens=31, pause-ms=7000"
        );
        // What began anew is reported as before, and nothing that led to it counts.
        moves.add(made(99, 9));
        moves.restart();
        moves.bear_fruit(at(20));
        assert_eq!(moves.report().unwrap().to_string(), report.to_string());
    }

    #[test]
    fn a_pause_without_output_before_begins_with_the_first_loss() {
        let start = Instant::now();
        let mut moves = Moves::new(false, Resumes::default());
        for tokens in [1, 2] {
            moves.add(Move {
                reason: RetryReason::Silent,
                tokens,
                since: start + u32::try_from(tokens).unwrap() * SECOND,
            });
        }
        moves.bear_fruit(start + 5 * SECOND);
        let found = moves.report().unwrap().to_string();
        assert_eq!(found, "times=1, replayed=0, tokens=2, pause-ms=4000");
    }
}
