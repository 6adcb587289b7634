//! Whether two servers are better than one for a request: one that computes its prompt, and another that generates what
//! follows from the first one's cache. Owns the comparison and what is learned of the way between them. Pure.

use crate::choose::Choice;
use crate::expectation::Seconds;

/// What the newest hand-over counts for.
const NEWEST: f64 = 0.1;

/// How long requests take from one server to the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct HandOvers {
    /// Of those so far; 0 before the first one: it has to be tried to be known.
    seconds_per_token: f64,
}

impl HandOvers {
    /// Learns that a request of so many tokens took so long.
    pub fn learn(&mut self, tokens: u32, took: Seconds) {
        let sample = took / f64::from(tokens.max(1));
        match self.seconds_per_token {
            0.0 => self.seconds_per_token = sample,
            before => self.seconds_per_token += (sample - before) * NEWEST,
        }
    }

    /// How long a request of so many tokens will probably take.
    pub fn expected(&self, tokens: u32) -> Seconds {
        self.seconds_per_token * f64::from(tokens)
    }
}

/// Whether a request should go to the server `context`, and from there to another one, rather than to `whole` alone. Every
/// request that `whole` has waits while it computes the prompt.
pub fn pays(context: &Choice, hand_over: Seconds, whole: &Choice) -> bool {
    let disturbed = whole.compute * f64::from(whole.open);
    context.cost + hand_over < whole.cost + disturbed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(wait: Seconds, compute: Seconds, open: u32) -> Choice {
        Choice {
            server: 0,
            cached_tokens: 0,
            wait,
            compute,
            cost: wait + compute,
            open,
        }
    }

    #[test]
    fn a_prompt_goes_elsewhere_where_it_would_disturb_more_than_that_takes() {
        for (context, hand_over, whole, expected) in [
            // Nobody is disturbed, and one server is as quick.
            (choice(0.0, 1.0, 0), 0.1, choice(0.0, 1.0, 0), false),
            (choice(0.0, 1.0, 0), 0.1, choice(0.0, 1.0, 1), true),
            // It is cached there, or nearly.
            (choice(0.0, 1.0, 0), 0.1, choice(0.0, 0.001, 64), false),
            // The servers for contexts have much to do.
            (choice(9.0, 1.0, 0), 0.1, choice(0.0, 1.0, 4), false),
            (choice(9.0, 1.0, 0), 0.1, choice(0.0, 1.0, 64), true),
            // The way is long.
            (choice(0.0, 1.0, 0), 3.0, choice(0.0, 1.0, 2), false),
        ] {
            assert_eq!(
                pays(&context, hand_over, &whole),
                expected,
                "{context:?} {whole:?}"
            );
        }
    }

    #[test]
    fn the_way_is_learned() {
        let mut hand_overs = HandOvers::default();
        assert_eq!(hand_overs.expected(1000), 0.0);
        hand_overs.learn(1000, 0.01);
        assert!((hand_overs.expected(2000) - 0.02).abs() < 1e-9);
        for _ in 0..50 {
            hand_overs.learn(100, 0.01);
        }
        assert!((hand_overs.expected(100) - 0.01).abs() < 1e-4);
    }
}
