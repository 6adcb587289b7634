//! Logging to standard error. Owns how a log line is written; which lines are, the filter decides.

mod writer;

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use self::writer::LogWriter;

/// What the last lines of a process get to be written; whoever reads the log needs a moment at most.
const LAST_LINES: Duration = Duration::from_millis(500);

static WRITER: OnceLock<LogWriter> = OnceLock::new();

/// Logs to standard error what `filter` selects, in the syntax of `tracing`'s environment filter. A
/// subscriber that the process already has stays.
///
/// A thread writes the lines, and drops them while nobody reads them: logging never waits. Call
/// [`flush_log`] before the process ends.
///
/// # Errors
/// `filter` is not valid; nothing has changed.
pub fn start_log(filter: &str) -> Result<(), ParseError> {
    let filter = EnvFilter::try_new(filter)?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        // Reporting a failed write on standard error, which is the default, would panic in whatever task
        // has just logged.
        .log_internal_errors(false);
    if WRITER.get().is_none()
        && let Ok(writer) = standard_error().and_then(LogWriter::start)
    {
        let _ = WRITER.set(writer);
    }
    let _ = match WRITER.get() {
        Some(writer) => log.with_writer(writer.clone()).try_init(),
        None => log.with_writer(io::stderr).try_init(),
    };
    Ok(())
}

/// Writes one line as it is, whatever the filter says: after the lines logged before, and without waiting.
pub(crate) fn write_line(line: &str) {
    match WRITER.get() {
        Some(writer) => writer.put(format!("{line}\n").as_bytes()),
        None => {
            use io::Write;
            let _ = writeln!(io::stderr(), "{line}");
        }
    }
}

/// Waits until the lines logged so far are written; half a second at most, because nobody may be reading.
pub fn flush_log() {
    if let Some(writer) = WRITER.get() {
        writer.flush(LAST_LINES);
    }
}

/// Standard error without the lock of the standard library, which would be held while a write waits: a
/// message of a panic would wait for it.
fn standard_error() -> io::Result<std::fs::File> {
    use std::os::fd::AsFd;
    Ok(io::stderr().as_fd().try_clone_to_owned()?.into())
}
