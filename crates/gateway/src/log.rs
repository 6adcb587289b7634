//! Logging to standard error. Owns how a log line is written; which lines are, the filter decides.

mod writer;

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use self::writer::LogWriter;

/// What the last lines of a process get to be written; a reader of the log needs a moment at most.
const LAST_LINES: Duration = Duration::from_millis(500);

static WRITER: OnceLock<LogWriter> = OnceLock::new();

type SetFilter = Box<dyn Fn(EnvFilter) + Send + Sync>;

/// Replaces the filter of the log that [`start_log`] has started.
static FILTER: OnceLock<SetFilter> = OnceLock::new();

/// How a log line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    // For people: a line of text, in color on a terminal.
    #[default]
    Text,
    // For collectors: one JSON object a line.
    Json,
}

impl LogFormat {
    /// The format that `INFLIGHT_LOG_FORMAT` names, for processes whose command has no option for it; else text.
    pub fn from_environment() -> Self {
        let name = std::env::var("INFLIGHT_LOG_FORMAT").unwrap_or_default();
        <Self as clap::ValueEnum>::from_str(&name, true).unwrap_or_default()
    }
}

/// Logs to standard error what `filter` selects, in the syntax of `tracing`'s environment filter. A
/// subscriber that the process already has stays.
///
/// A thread writes the lines, and drops them while nobody reads them: logging never waits. Call
/// [`flush_log`] before the process ends.
///
/// # Errors
/// `filter` is not valid; nothing has changed.
pub fn start_log(filter: &str, format: LogFormat) -> Result<(), ParseError> {
    let filter = EnvFilter::try_new(filter)?;
    if WRITER.get().is_none()
        && let Ok(writer) = standard_error().and_then(LogWriter::start)
    {
        let _ = WRITER.set(writer);
    }
    let writer = match WRITER.get() {
        Some(writer) => BoxMakeWriter::new(writer.clone()),
        None => BoxMakeWriter::new(io::stderr),
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        // Reporting a failed write on standard error, which is the default, would panic in whatever task
        // has just logged.
        .log_internal_errors(false);
    let started = match format {
        LogFormat::Text => {
            let is_terminal = io::IsTerminal::is_terminal(&io::stderr());
            let log = log.with_ansi(is_terminal).with_filter_reloading();
            let handle = log.reload_handle();
            let set: SetFilter = Box::new(move |filter| drop(handle.reload(filter)));
            log.try_init().map(|()| set)
        }
        LogFormat::Json => {
            let log = log.json().flatten_event(true).with_filter_reloading();
            let handle = log.reload_handle();
            let set: SetFilter = Box::new(move |filter| drop(handle.reload(filter)));
            log.try_init().map(|()| set)
        }
    };
    if let Ok(set) = started {
        let _ = FILTER.set(set);
    }
    Ok(())
}

/// Logs everything of this level and of more severe ones from now on, in place of the filter that the log was
/// started with.
pub fn set_log_level(level: LevelFilter) {
    if let Some(set) = FILTER.get() {
        set(EnvFilter::default().add_directive(level.into()));
    }
}

/// Checks a filter.
///
/// # Errors
/// What [`start_log`] would say.
pub(crate) fn check_filter(filter: &str) -> Result<(), ParseError> {
    EnvFilter::try_new(filter).map(drop)
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
