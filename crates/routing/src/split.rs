//! Whether two servers are better than one for a request: one that computes its prompt, and another that generates what
//! follows from the first one's cache. Owns the comparison and what is learned of the way between them. Pure.
//!
//! Both ways are compared by what all requests together wait, in seconds: the request itself, those that come after it,
//! and the streams that a server has, each of which waits while a prompt is computed next to it. A hand-over is a wait as
//! well, and not as others: all of it comes between two tokens of an answer that has just begun, and may be short.
//!
//! The constants are not options. They were chosen over the cells of the table in `docs/ROUTING.md`.

use crate::choose::{Choice, EQUAL, Eligible, Request, choose};
use crate::expectation::{Expectations, Seconds};
use crate::index::Held;

/// What the newest hand-over counts for.
const NEWEST: f64 = 0.1;
/// Tokens of a request whose hand-over says all of what a token takes, and nothing of what each request does.
const LONG: f64 = 4096.0;

/// What a second of a hand-over costs, in seconds of waiting that streams share which have run for a while.
const OWN: f64 = 2.5;
/// How much longer a hand-over takes than by itself: half of what an iteration may have of a prompt, since it comes into
/// the midst of one.
const MIDST: Seconds = 0.025;
/// How much longer each stream's tokens take while blocks come next to it: 8% on an H200.
const NEXT_TO_BLOCKS: f64 = 0.08;
/// How much longer a prompt takes next to streams, whose steps come between its chunks: 20% on an H200.
const NEXT_TO_STREAMS: f64 = 0.2;
/// Requests that come at once, where any come: those of a recorded hour come in bursts.
const BEHIND: f64 = 3.0;
/// No server counts as busier.
const BUSIEST: f64 = 0.95;

/// How long requests take from one server to the other: each a while, and its tokens more.
///
/// What a request waits there for others is not of the way, and would be believed for as long as none is tried again. So
/// one counts where no prompt is computed and no other request is on its way, or if it is quicker than expected.
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
    /// Learns that a request took so long to where it was sent by this choice.
    pub fn learn(&mut self, then: &Choice, took: Seconds) {
        let waits = then.arriving > 0 || then.wait >= EQUAL;
        if waits && took >= self.expected(then.moved_tokens) {
            return;
        }
        let tokens = f64::from(then.moved_tokens.max(1));
        // None takes less than what each takes, or than its tokens.
        self.each.value = self.each.value.min(took);
        self.token.value = self.token.value.min(took / tokens);
        let share = (tokens / LONG).min(1.0);
        let (each, token) = (self.each.value, self.token.value);
        self.token.learn((took - each) / tokens, share);
        self.each.learn(took - token * tokens, 1.0 - share);
    }

    /// Seconds that a token takes.
    pub fn token_s(&self) -> Seconds {
        self.token.value
    }

    /// How long a request of so many tokens will probably take; 0 before the first: it has to be tried to be known.
    pub fn expected(&self, tokens: u32) -> Seconds {
        self.each.value + self.token.value * f64::from(tokens)
    }
}

/// What a comparison looks at.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// What servers have of the request's blocks.
    pub held: &'a Held,
    pub expectations: &'a Expectations,
    pub hand_overs: &'a HandOvers,
    pub now: Seconds,
}

impl Known<'_> {
    /// Whether a request should be computed by one of `contexts` and continued by one of `others`, rather than be computed
    /// by one of those alone. `None`: on one side, none is known and not drained.
    pub fn split_pays(
        &self,
        request: &Request,
        contexts: impl IntoIterator<Item = Eligible>,
        others: impl IntoIterator<Item = Eligible> + Clone,
    ) -> Option<bool> {
        let context = self.choose(request, contexts)?;
        let moved = Request {
            transfer: Some(self.hand_overs.token_s()),
            ..*request
        };
        let then = self.choose(&moved, others.clone())?;
        let whole = Request {
            spares_streams: true,
            ..*request
        };
        let whole = self.choose(&whole, others)?;
        let hand_over = self.hand_overs.expected(then.moved_tokens);
        Some(pays(&context, hand_over, &then, &whole))
    }

    fn choose(
        &self,
        request: &Request,
        among: impl IntoIterator<Item = Eligible>,
    ) -> Option<Choice> {
        choose(request, among, self.held, self.expectations, self.now)
    }
}

/// Whether a request should go to the server `context`, and from there to `then`, rather than to `whole` alone.
fn pays(context: &Choice, hand_over: Seconds, then: &Choice, whole: &Choice) -> bool {
    let pauses = OWN * (hand_over + MIDST) + NEXT_TO_BLOCKS * hand_over * f64::from(then.open);
    let split = context.wait + context.compute + behind(context) + pauses;
    let streams = f64::from(whole.open);
    let disturbed = whole.compute * (streams + NEXT_TO_STREAMS * streams.min(1.0));
    split < whole.wait + whole.compute + behind(whole) + disturbed
}

/// What those wait that come after the request: the longer, the less time the server has left.
fn behind(choice: &Choice) -> Seconds {
    let busy = choice.busy.clamp(0.0, BUSIEST);
    BEHIND * choice.compute * busy / (1.0 - busy)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a server that was busy for a share of the time, and has so many requests.
    fn choice(wait: Seconds, compute: Seconds, open: u32, busy: f64) -> Choice {
        Choice {
            server: 0,
            cached_tokens: 0,
            moved_tokens: 0,
            wait,
            compute,
            cost: wait + compute,
            busy,
            open,
            arriving: 0,
        }
    }

    #[test]
    fn a_prompt_goes_elsewhere_where_it_would_disturb_more_than_that_takes() {
        let idle = choice(0.0, 1.0, 0, 0.0);
        for (context, hand_over, then, whole, expected) in [
            // Nobody is disturbed, and one server is as quick.
            (idle, 0.1, 0, choice(0.0, 1.0, 0, 0.0), false),
            (idle, 0.1, 0, choice(0.0, 1.0, 1, 0.0), true),
            // It is cached there, or nearly.
            (idle, 0.1, 0, choice(0.0, 0.001, 64, 0.0), false),
            // The servers for contexts have much to do, now or all the time.
            (
                choice(9.0, 1.0, 0, 0.0),
                0.1,
                0,
                choice(0.0, 1.0, 4, 0.0),
                false,
            ),
            (
                choice(9.0, 1.0, 0, 0.0),
                0.1,
                0,
                choice(0.0, 1.0, 64, 0.0),
                true,
            ),
            (
                choice(0.0, 1.0, 0, 0.9),
                0.1,
                0,
                choice(0.0, 1.0, 4, 0.0),
                false,
            ),
            // Or the others have.
            (idle, 0.1, 0, choice(0.0, 1.0, 0, 0.9), true),
            // The way is long, or many wait for what comes.
            (idle, 3.0, 0, choice(0.0, 1.0, 2, 0.0), false),
            (idle, 0.3, 0, choice(0.0, 1.0, 2, 0.0), true),
            (idle, 0.3, 64, choice(0.0, 1.0, 2, 0.0), false),
            // To the hundredth: what streams wait, the midst of an iteration, and those next to the blocks.
            (idle, 0.85, 0, choice(0.0, 1.0, 2, 0.0), true),
            (idle, 0.86, 0, choice(0.0, 1.0, 2, 0.0), false),
            (idle, 0.56, 16, choice(0.0, 1.0, 2, 0.0), true),
            (idle, 0.57, 16, choice(0.0, 1.0, 2, 0.0), false),
            // Those that come later wait three seconds for one of a server that is half busy.
            (
                choice(0.0, 1.0, 0, 0.5),
                0.45,
                0,
                choice(0.0, 1.0, 4, 0.0),
                true,
            ),
            (
                choice(0.0, 1.0, 0, 0.5),
                0.46,
                0,
                choice(0.0, 1.0, 4, 0.0),
                false,
            ),
            (
                choice(0.0, 2.0, 0, 0.5),
                0.05,
                0,
                choice(0.0, 1.0, 8, 0.0),
                true,
            ),
            (
                choice(0.0, 2.0, 0, 0.5),
                0.46,
                0,
                choice(0.0, 1.0, 8, 0.0),
                false,
            ),
        ] {
            let then = choice(0.0, 0.0, then, 0.0);
            assert_eq!(
                pays(&context, hand_over, &then, &whole),
                expected,
                "{context:?} {hand_over} {then:?} {whole:?}"
            );
        }
    }

    /// To a server with nothing to do but streams.
    fn moved(moved_tokens: u32) -> Choice {
        Choice {
            moved_tokens,
            ..choice(0.0, 0.0, 16, 0.0)
        }
    }

    /// 5 ms each, and a second for a million tokens.
    fn learned() -> HandOvers {
        let mut hand_overs = HandOvers::default();
        assert_eq!(hand_overs.expected(1000), 0.0);
        for place in 0..200 {
            let tokens = [14, 32_000, 2_000, 9_000][place % 4];
            hand_overs.learn(&moved(tokens), 0.005 + f64::from(tokens) * 1e-6);
        }
        hand_overs
    }

    fn assert_learned(hand_overs: &HandOvers) {
        for (tokens, expected) in [(14, 0.005), (4_000, 0.009), (32_000, 0.037)] {
            let found = hand_overs.expected(tokens);
            assert!((found / expected - 1.0).abs() < 0.1, "{tokens}: {found}");
        }
    }

    #[test]
    fn the_way_is_learned() {
        assert_learned(&learned());
        // The first few count alike.
        let mut hand_overs = HandOvers::default();
        for token_s in [1e-6, 3e-6] {
            hand_overs.learn(&moved(10_000), 10_000.0 * token_s);
        }
        assert!((hand_overs.token_s() / 2e-6 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_short_request_says_little_of_a_long_one() {
        let mut hand_overs = HandOvers::default();
        hand_overs.learn(&moved(14), 0.007);
        assert!(hand_overs.expected(32_000) < 0.5);
    }

    #[test]
    fn waits_are_not_of_the_way() {
        let mut hand_overs = learned();
        // A thousand at once, one after another, and more behind a prompt.
        for place in 1..1000 {
            let arriving = Choice {
                arriving: place,
                ..moved(64)
            };
            hand_overs.learn(&arriving, 0.005 * f64::from(place + 1));
            let behind = Choice {
                wait: 0.5,
                ..moved(64)
            };
            hand_overs.learn(&behind, 0.5);
        }
        assert_learned(&hand_overs);
    }

    #[test]
    fn what_seemed_slow_is_corrected_by_any_request_that_was_quicker() {
        // The first one came while kernels were compiled.
        let slow = || {
            let mut hand_overs = HandOvers::default();
            hand_overs.learn(&moved(64), 3.0);
            hand_overs
        };
        // A long one, so that short ones are tried again.
        let mut hand_overs = slow();
        hand_overs.learn(&moved(32_000), 0.037);
        assert!(hand_overs.expected(64) < 0.04);
        // Ones that waited, less than that.
        let mut hand_overs = slow();
        for _ in 0..50 {
            let arriving = Choice {
                arriving: 1,
                ..moved(64)
            };
            hand_overs.learn(&arriving, 0.01);
        }
        assert!(hand_overs.expected(64) < 0.02);
    }

    #[test]
    fn a_hand_over_takes_what_each_does_and_its_tokens() {
        let then = |moved_tokens| Choice {
            moved_tokens,
            ..choice(0.0, 1.0, 0, 0.0)
        };
        // A long one says all of what a token takes.
        let mut long = HandOvers::default();
        long.learn(&then(4096), 4.096);
        assert!((long.token_s() - 1e-3).abs() < 1e-12);
        assert_eq!((long.token.samples, long.each.samples), (1.0, 0.0));
        // One of half the length says half of both, and the next ones agree.
        let mut half = HandOvers::default();
        for samples in [0.5, 1.0, 1.5] {
            half.learn(&then(2048), 1.0);
            assert!((half.each.value - 0.5).abs() < 1e-12, "{half:?}");
            assert!((half.token_s() - 0.5 / 2048.0).abs() < 1e-12, "{half:?}");
            assert_eq!((half.token.samples, half.each.samples), (samples, samples));
        }
    }
}
