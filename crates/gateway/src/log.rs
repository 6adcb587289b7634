//! Logging to standard error. Owns how a log line is written; which lines are, the filter decides.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// Logs to standard error what `filter` selects, in the syntax of `tracing`'s environment filter. A
/// subscriber that the process already has stays.
///
/// # Errors
/// `filter` is not valid; nothing has changed.
pub fn start_log(filter: &str) -> Result<(), ParseError> {
    let filter = EnvFilter::try_new(filter)?;
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        // A full disk or a closed pipe costs log lines. Reporting that on standard error, which is the
        // default, would panic in whatever task has just logged.
        .log_internal_errors(false)
        .try_init();
    Ok(())
}
