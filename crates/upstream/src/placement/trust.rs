//! Whether a worker's reports are believed. Pure: what was expected and what was found in, a fault out.

use std::time::Duration;

use inflight_routing::expectation::Seconds;

/// What is wrong with a worker's reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// The stream has ended or failed.
    Lost,
    /// Nothing has come for too long.
    Late,
    /// A message is missing, came twice or in another order.
    Gap,
    /// Figures that no worker can have.
    Impossible,
    /// Answers have fewer cached tokens than the reports promise.
    Lies,
}

impl Fault {
    /// Every fault there is, in their order.
    pub const ALL: [Self; 5] = [
        Self::Lost,
        Self::Late,
        Self::Gap,
        Self::Impossible,
        Self::Lies,
    ];

    /// For metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Late => "late",
            Self::Gap => "gap",
            Self::Impossible => "impossible",
            Self::Lies => "wrong",
        }
    }

    /// For logs and `/health`.
    pub fn text(self) -> &'static str {
        match self {
            Self::Lost => {
                "its reports of cached blocks have ended; what it was sent is assumed to be cached"
            }
            Self::Late => {
                "its reports of cached blocks are late; what it was sent is assumed to be cached"
            }
            Self::Gap => {
                "its reports of cached blocks have gaps; what it was sent is assumed to be cached"
            }
            Self::Impossible => {
                "its reports of cached blocks are impossible; what it was sent is assumed to be cached"
            }
            Self::Lies => {
                "its reports of cached blocks promise more than its answers have; what it was sent is assumed to be cached"
            }
        }
    }
}

/// Answers that a judgement is about.
const WINDOW: u32 = 32;
/// Wrong ones among them that are too many. Some are wrong in any fleet: blocks are evicted between a pick and its
/// prompt.
const TOO_MANY: u32 = 16;
/// How long a worker whose reports were wrong is not trusted.
pub(super) const WITHHELD: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Trust {
    answers: u32,
    wrong: u32,
    until: Seconds,
}

impl Trust {
    /// Whether the worker is not to be believed yet.
    pub(super) fn is_withheld(&self, now: Seconds) -> bool {
        now < self.until
    }

    /// Notes what an answer says was cached, next to what was expected. Tokens of a block: an executor may use one block
    /// less than it holds.
    pub(super) fn note(
        &mut self,
        expected: u32,
        found: u32,
        block: u32,
        now: Seconds,
    ) -> Option<Fault> {
        if expected == 0 {
            return None;
        }
        self.answers += 1;
        self.wrong += u32::from(expected > found.saturating_add(block));
        let is_wrong = self.wrong >= TOO_MANY;
        if is_wrong || self.answers == WINDOW {
            (self.answers, self.wrong) = (0, 0);
        }
        if is_wrong {
            self.until = now + WITHHELD.as_secs_f64();
        }
        is_wrong.then_some(Fault::Lies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_its_name_and_says_what_follows() {
        let labels = Fault::ALL.map(Fault::label);
        assert_eq!(labels, ["lost", "late", "gap", "impossible", "wrong"]);
        let mut texts = Fault::ALL.map(Fault::text).to_vec();
        assert!(
            texts
                .iter()
                .all(|text| text.contains("reports of cached blocks"))
        );
        assert!(
            texts
                .iter()
                .all(|text| text.ends_with("is assumed to be cached"))
        );
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), Fault::ALL.len());
    }

    #[test]
    fn half_of_a_window_may_not_be_wrong() {
        let mut trust = Trust::default();
        let mut note = |expected, found, now| trust.note(expected, found, 16, now);
        for answer in 0..64 {
            // One block less is what executors do, and more is never wrong.
            assert_eq!(note(64, 48, 1.0), None);
            assert_eq!(note(64, 640, 1.0), None);
            assert_eq!(note(0, 0, 1.0), None);
            if answer % 2 == 0 {
                assert_eq!(note(64, 0, 1.0), None, "{answer}");
            }
        }
        let faults: Vec<_> = (0..WINDOW).filter_map(|_| note(64, 47, 2.0)).collect();
        assert_eq!(faults, [Fault::Lies; 2]);
        assert!(trust.is_withheld(2.0 + WITHHELD.as_secs_f64() / 2.0));
        assert!(!trust.is_withheld(2.0 + WITHHELD.as_secs_f64()));
    }
}
