//! When requests wait for their turn, because their executor has no room for them. Owns how the simulated executor counts
//! room; which of its requests have begun is the caller's.

use std::iter::Sum;
use std::time::Duration;

use inflight_worker::executor::Request;

/// Tokens of a block, as the simulated executor has them by default.
const BLOCK: usize = 32;

/// What an executor has, or requests take of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) sequences: usize,
    pub(crate) blocks: usize,
}

impl Room {
    /// What a request takes, from its beginning to its end.
    pub(super) fn of(request: &Request) -> Self {
        let sequences = request.sampling_config.num_return_sequences.max(1) as usize;
        let prompt = request.input_token_ids.len().div_ceil(BLOCK);
        let answer = (request.max_tokens as usize).div_ceil(BLOCK);
        Self {
            sequences,
            blocks: prompt + sequences * answer,
        }
    }

    /// Whether all of `other` fits.
    pub(super) fn holds(self, other: Self) -> bool {
        other.sequences <= self.sequences && other.blocks <= self.blocks
    }
}

impl Sum for Room {
    fn sum<I: Iterator<Item = Self>>(rooms: I) -> Self {
        rooms.fold(Self::default(), |sum, one| Self {
            sequences: sum.sequences + one.sequences,
            blocks: sum.blocks + one.blocks,
        })
    }
}

/// A request's wait for its turn.
#[derive(Debug)]
struct Turn {
    since: Duration,
    /// `None`: it waits still.
    until: Option<Duration>,
    prompt: Vec<u8>,
}

/// The waits at all processes of a worker.
#[derive(Debug, Default)]
pub(super) struct Turns(Vec<Turn>);

impl Turns {
    /// A request waits from now on. Returns the number of its wait.
    pub(super) fn begin(&mut self, prompt: &[u8], now: Duration) -> usize {
        self.0.push(Turn {
            since: now,
            until: None,
            prompt: prompt.to_vec(),
        });
        self.0.len() - 1
    }

    /// It is its turn, or it is over.
    pub(super) fn end(&mut self, turn: usize, now: Duration) {
        if let Some(turn) = self.0.get_mut(turn) {
            turn.until.get_or_insert(now);
        }
    }

    /// The process has ended, and another one begins.
    pub(super) fn end_all(&mut self, now: Duration) {
        for turn in &mut self.0 {
            turn.until.get_or_insert(now);
        }
    }

    /// From when until when requests waited, up to now, whose prompts are such.
    pub(super) fn of(
        &self,
        is_own: impl Fn(&[u8]) -> bool,
        now: Duration,
    ) -> Vec<(Duration, Duration)> {
        let own = self.0.iter().filter(|turn| is_own(&turn.prompt));
        own.map(|turn| (turn.since, turn.until.unwrap_or(now)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_lasts_until_its_turn_or_the_end_of_its_process() {
        let mut turns = Turns::default();
        let at = Duration::from_secs;
        let first = turns.begin(b"a", at(1));
        let second = turns.begin(b"a", at(2));
        turns.begin(b"b", at(2));
        turns.end(first, at(3));
        let own = |turns: &Turns| turns.of(|prompt| prompt == b"a", at(9));
        assert_eq!(own(&turns), [(at(1), at(3)), (at(2), at(9))]);
        turns.end_all(at(4));
        turns.end(second, at(5));
        assert_eq!(own(&turns), [(at(1), at(3)), (at(2), at(4))]);
    }

    #[test]
    fn what_is_too_much_of_either_does_not_fit() {
        let has = Room {
            sequences: 3,
            blocks: 8,
        };
        for (sequences, blocks, fits) in [(3, 8, true), (4, 1, false), (1, 9, false)] {
            assert_eq!(has.holds(Room { sequences, blocks }), fits);
        }
    }
}
