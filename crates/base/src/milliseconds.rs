//! Times as log lines show them.

use std::time::Duration;

/// Milliseconds, to a tenth.
pub fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}
