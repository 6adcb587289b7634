//! Answers of one worker, which share its iterations: each iteration brings each of them a token. Owns how far they are and
//! the times between their tokens; knows nothing of why an iteration takes as long as it does.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Requests that generate at which an iteration takes twice its time, as the routing crate has it.
const FULL_BATCH: f64 = 256.0;
/// Of an iteration, so that rounding leaves no answer an instant before its end.
const NEARLY: f64 = 1e-3;

/// Times between tokens, each with how many tokens had it.
#[derive(Clone, Debug, Default)]
pub struct Gaps {
    /// By microseconds.
    counts: BTreeMap<u64, f64>,
}

impl Gaps {
    pub(crate) fn add(&mut self, seconds: f64, tokens: f64) {
        *self.counts.entry((seconds * 1e6) as u64).or_default() += tokens;
    }

    pub fn mean_s(&self) -> f64 {
        let sum: f64 = self.each().map(|(gap, tokens)| gap * tokens).sum();
        sum / self.tokens().max(1.0)
    }

    /// The time that this percentage of the tokens needed at most, in seconds.
    pub fn percentile_s(&self, percent: f64) -> f64 {
        let wanted = self.tokens() * percent / 100.0;
        let mut passed = 0.0;
        let reached = |(_, tokens): &(f64, f64)| {
            passed += tokens;
            passed >= wanted
        };
        let mut found = self.each();
        found.find(reached).map_or(0.0, |(gap, _)| gap)
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (gap, tokens) in &other.counts {
            *self.counts.entry(*gap).or_default() += tokens;
        }
    }

    /// Tokens that came after another one.
    pub fn tokens(&self) -> f64 {
        self.counts.values().sum()
    }

    fn each(&self) -> impl Iterator<Item = (f64, f64)> {
        let counts = self.counts.iter();
        counts.map(|(gap, tokens)| (*gap as f64 / 1e6, *tokens))
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Since the beginning.
    iterations: f64,
    at: f64,
    iteration_s: f64,
    /// The iteration that brings the last token, as bits of a float, whose order is its own; and whose it is.
    ends: BinaryHeap<Reverse<(u64, u32)>>,
    pub(crate) gaps: Gaps,
}

impl Streams {
    pub(crate) fn new(token_s: f64) -> Self {
        Self {
            iterations: 0.0,
            at: 0.0,
            iteration_s: token_s,
            ends: BinaryHeap::new(),
            gaps: Gaps::default(),
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.ends.len() as u32
    }

    pub(crate) fn iteration_s(&self) -> f64 {
        self.iteration_s
    }

    /// What an iteration takes that only generates; alone it takes `token_s`.
    pub(crate) fn step_s(&self, token_s: f64) -> f64 {
        token_s * (1.0 + f64::from(self.count()) / FULL_BATCH)
    }

    /// Time has passed with iterations as they were.
    pub(crate) fn advance(&mut self, now: f64) {
        let passed = (now - self.at).max(0.0) / self.iteration_s;
        if !self.ends.is_empty() {
            self.gaps
                .add(self.iteration_s, passed * self.ends.len() as f64);
        }
        self.iterations += passed;
        self.at = now;
    }

    /// Iterations take so long from now on. Returns when the next answer ends.
    pub(crate) fn retime(&mut self, iteration_s: f64) -> Option<f64> {
        self.iteration_s = iteration_s;
        let Reverse((end, _)) = self.ends.peek()?;
        let left = (f64::from_bits(*end) - self.iterations).max(0.0);
        Some(self.at + left * iteration_s)
    }

    /// A request generates so many tokens from now on.
    pub(crate) fn join(&mut self, request: u32, tokens: u32) {
        let end = self.iterations + f64::from(tokens);
        self.ends.push(Reverse((end.to_bits(), request)));
    }

    /// A request whose last token has come.
    pub(crate) fn ended(&mut self) -> Option<u32> {
        let Reverse((end, request)) = *self.ends.peek()?;
        (f64::from_bits(end) <= self.iterations + NEARLY).then(|| {
            self.ends.pop();
            request
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_end_after_their_tokens_and_wait_for_what_is_between() {
        let mut streams = Streams::new(0.01);
        streams.join(1, 100);
        streams.join(2, 200);
        assert_eq!(streams.retime(0.01), Some(1.0));
        streams.advance(1.0);
        assert_eq!((streams.ended(), streams.ended()), (Some(1), None));
        // Iterations of a prompt.
        assert_eq!(streams.retime(0.06), Some(7.0));
        streams.advance(1.6);
        assert_eq!(streams.retime(0.01), Some(2.5));
        streams.advance(2.5);
        assert_eq!((streams.ended(), streams.retime(0.01)), (Some(2), None));
        // 290 tokens of 10 ms and 10 of 60.
        let gaps = &streams.gaps;
        assert_eq!(
            (gaps.percentile_s(96.0), gaps.percentile_s(97.0)),
            (0.01, 0.06)
        );
        assert!((gaps.mean_s() - 3.5 / 300.0).abs() < 1e-9);
    }
}
