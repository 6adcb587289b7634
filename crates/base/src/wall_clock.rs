//! The time of day, as protocols write it: since 1970. What takes time is measured with tokio's clock instead, which
//! nobody sets back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time of day.
#[allow(clippy::disallowed_methods, reason = "the one place that reads it")]
pub fn now() -> SystemTime {
    SystemTime::now()
}

/// Time since 1970; nothing where the machine's clock is before it.
pub fn since_epoch() -> Duration {
    now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Whole seconds since 1970, for protocols and databases whose integers have a sign.
pub fn unix_seconds() -> i64 {
    i64::try_from(since_epoch().as_secs()).unwrap_or(i64::MAX)
}
