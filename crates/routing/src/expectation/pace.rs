//! How long a server takes to compute a prompt token, learned from what it reports. Owns the robust estimate; knows
//! nothing of servers.

/// Seconds a token before anything was learned: 10,000 tokens a second, what one current GPU computes of a model of
/// some ten billion parameters. What matters before the first report is only that all servers have the same.
pub(super) const ASSUMED: f64 = 1e-4;
/// Tokens that make a full sample. A short prompt's time is mostly what every iteration costs.
const FULL_SAMPLE: f64 = 4096.0;
/// Weight of a full sample in the long run: about the last ten count.
const WEIGHT: f64 = 0.1;
/// A sample counts as at most this many times slower or faster than the estimate, so that one pause or one wrong
/// clock moves it little.
const FURTHEST: f64 = 2.0;
/// What no device reaches, in seconds a token; reports beyond are nonsense.
const POSSIBLE: std::ops::RangeInclusive<f64> = 1e-8..=10.0;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// The logarithm of the estimate.
    log: f64,
    /// Full samples so far.
    samples: f64,
}

impl Pace {
    /// Learns that `tokens` took `seconds`.
    pub(super) fn learn(&mut self, tokens: u64, seconds: f64) {
        let sample = seconds / tokens as f64;
        if !POSSIBLE.contains(&sample) {
            return;
        }
        let size = (tokens as f64 / FULL_SAMPLE).min(1.0);
        if self.samples == 0.0 {
            self.log = sample.ln();
            self.samples = size;
            return;
        }
        self.samples += size;
        let weight = size * (1.0 / self.samples).clamp(WEIGHT, 1.0);
        let furthest = FURTHEST.ln();
        self.log += weight * (sample.ln() - self.log).clamp(-furthest, furthest);
    }

    /// Seconds a token; `None` until a full sample was learned.
    pub(super) fn seconds(&self) -> Option<f64> {
        (self.samples >= 1.0).then(|| self.log.exp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(samples: &[(u64, f64)]) -> f64 {
        let mut pace = Pace::default();
        for (tokens, seconds) in samples {
            pace.learn(*tokens, *seconds);
        }
        pace.seconds().unwrap_or(ASSUMED)
    }

    #[test]
    fn an_estimate_follows_most_of_what_is_reported() {
        let near = |value: f64, expected: f64| (value / expected - 1.0).abs() < 0.15;
        assert!(near(learned(&[]), ASSUMED));
        assert!(near(learned(&[(8192, 8.192)]), 1e-3));
        // A pause of a minute, a short prompt, and what cannot be.
        let steady = [(8192, 0.8192); 20];
        for odd in [
            (8192, 60.0),
            (16, 0.03),
            (0, 1.0),
            (8192, f64::NAN),
            (1, -1.0),
        ] {
            assert!(
                near(learned(&[&steady[..], &[odd]].concat()), 1e-4),
                "{odd:?}"
            );
        }
        // Short prompts say little: together they are a full sample.
        let mut pace = Pace::default();
        let count = (FULL_SAMPLE / 16.0) as usize;
        for number in 1..=count {
            assert_eq!(pace.seconds(), None, "{number}");
            pace.learn(16, 0.016);
        }
        assert!(near(pace.seconds().unwrap(), 1e-3));
        // A server that became slower for good.
        assert!(near(
            learned(&[&steady[..], &[(8192, 4.096); 40]].concat()),
            5e-4
        ));
    }
}
