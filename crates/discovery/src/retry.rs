//! When a source that is away is asked again.

use std::time::Duration;

/// First wait after a failed attempt; doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// A source that comes back is heard within this.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// The waits between attempts.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(BACKOFF_MIN)
    }
}

impl Backoff {
    /// The next wait, with jitter: many gateways lose the same source, and do not return in step.
    pub(crate) fn next(&mut self) -> Duration {
        let wait = self.0;
        self.0 = (wait * 2).min(BACKOFF_MAX);
        wait.mul_f64(rand::random_range(0.5..1.0))
    }
}
