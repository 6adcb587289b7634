//! Whether two servers are better than one for a request: one that computes its prompt, and another that generates what
//! follows from the first one's cache. Owns the comparison and what is learned of the way between them. Pure.

use crate::choose::Choice;
use crate::expectation::Seconds;

/// What the newest hand-over counts for.
const NEWEST: f64 = 0.1;
/// Tokens of a request whose hand-over says all of what a token takes, and nothing of what each request does.
const LONG: f64 = 4096.0;

/// How long requests take from one server to the other: each a while, and its tokens more.
#[derive(Clone, Copy, Debug, Default)]
pub struct HandOvers {
    each: Learned,
    token: Learned,
}

/// An average of which new samples count more.
#[derive(Clone, Copy, Debug, Default)]
struct Learned {
    value: Seconds,
    samples: f64,
}

impl Learned {
    fn learn(&mut self, sample: Seconds, weight: f64) {
        self.samples += weight;
        if self.samples > 0.0 {
            let rate = (1.0 / self.samples).clamp(NEWEST, 1.0);
            self.value += (sample.max(0.0) - self.value) * weight * rate;
        }
    }
}

impl HandOvers {
    /// Learns that a request of so many tokens took so long.
    pub fn learn(&mut self, tokens: u32, took: Seconds) {
        let tokens = f64::from(tokens.max(1));
        let share = (tokens / LONG).min(1.0);
        let (each, token) = (self.each.value, self.token.value);
        self.token.learn((took - each) / tokens, share);
        self.each.learn(took - token * tokens, 1.0 - share);
    }

    /// How long a request of so many tokens will probably take; 0 before the first: it has to be tried to be known.
    pub fn expected(&self, tokens: u32) -> Seconds {
        self.each.value + self.token.value * f64::from(tokens)
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
        // 5 ms each, and a second for a million tokens.
        for place in 0..200 {
            let tokens = [14, 32_000, 200, 9_000][place % 4];
            hand_overs.learn(tokens, 0.005 + f64::from(tokens) * 1e-6);
        }
        for (tokens, expected) in [(14, 0.005), (4_000, 0.009), (32_000, 0.037)] {
            let found = hand_overs.expected(tokens);
            assert!((found / expected - 1.0).abs() < 0.1, "{tokens}: {found}");
        }
    }

    #[test]
    fn a_short_request_says_little_of_a_long_one() {
        let mut hand_overs = HandOvers::default();
        hand_overs.learn(14, 0.007);
        assert!(hand_overs.expected(32_000) < 0.5);
    }
}
