//! Sends log lines to a separate thread that writes them, so that nothing waits for a reader of the log.
//! Owns how much may wait, what is dropped beyond that, and the last lines of a process.
//!
//! Our own instead of `tracing-appender`: that one bounds lines and not bytes, reports what it dropped to the
//! program only, and prints to standard output when its thread is stuck at the end, which may be stuck too.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

/// Bytes that may wait: some seconds of a busy log.
const MAX_WAITING: usize = 1 << 20;
/// A pipe that another process made non-blocking is tried again after this.
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// The way to the thread; copies lead to the same one.
#[derive(Clone, Debug)]
pub(super) struct LogWriter(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// Something waits, or everything is written.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    /// Lines dropped since the last line that fitted.
    dropped: u64,
    is_writing: bool,
}

impl LogWriter {
    /// Starts the thread, which writes to `out`.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(super) fn start(out: impl Write + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        inflight_base::thread::start("log", move || theirs.write_all(out))?;
        Ok(Self(shared))
    }

    /// Adds whole lines, or counts them as dropped. Never waits for the reader of the log.
    pub(super) fn put(&self, lines: &[u8]) {
        let mut waiting = self.0.waiting.lock();
        if waiting.bytes.len() + lines.len() > MAX_WAITING {
            waiting.dropped += 1;
            return;
        }
        waiting.report_dropped();
        waiting.bytes.extend_from_slice(lines);
        drop(waiting);
        self.0.changed.notify_all();
    }

    /// Waits until everything is written, at most `limit`.
    #[expect(
        clippy::disallowed_methods,
        reason = "a lock waits by the system's clock"
    )]
    pub(super) fn flush(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut waiting = self.0.waiting.lock();
        while waiting.is_writing || !waiting.bytes.is_empty() {
            if self.0.changed.wait_until(&mut waiting, until).timed_out() {
                return;
            }
        }
    }
}

impl Waiting {
    fn report_dropped(&mut self) {
        if self.dropped > 0 {
            let dropped = std::mem::take(&mut self.dropped);
            let line = format!("inflight: {dropped} log lines dropped: nothing read the log\n");
            self.bytes.extend_from_slice(line.as_bytes());
        }
    }
}

impl Shared {
    fn write_all(&self, mut out: impl Write) {
        let mut bytes = Vec::new();
        loop {
            {
                let mut waiting = self.waiting.lock();
                waiting.is_writing = false;
                if waiting.bytes.is_empty() {
                    waiting.report_dropped();
                }
                self.changed.notify_all();
                while waiting.bytes.is_empty() {
                    self.changed.wait(&mut waiting);
                }
                waiting.is_writing = true;
                std::mem::swap(&mut bytes, &mut waiting.bytes);
            }
            // A full disk or a closed pipe costs log lines and nothing else.
            let _ = write_patiently(&mut out, &bytes);
            bytes.clear();
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "on the log's own thread")]
fn write_patiently(out: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(TRY_AGAIN);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// One log event on its way: `tracing` writes it in one piece.
#[derive(Debug)]
pub(super) struct Event<'a>(&'a LogWriter);

impl Write for Event<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.put(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Event<'a>;

    fn make_writer(&'a self) -> Event<'a> {
        Event(self)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    /// Takes what is written when the test asks for it.
    struct Slow(SyncSender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let sent = self.0.send(bytes.to_vec());
            sent.map(|()| bytes.len())
                .map_err(|_| io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow() -> (LogWriter, Receiver<Vec<u8>>) {
        // Without a buffer: a write returns when the test has taken it.
        let (sender, written) = sync_channel(0);
        (LogWriter::start(Slow(sender)).unwrap(), written)
    }

    #[test]
    fn lines_that_nobody_reads_are_dropped_counted_and_reported() {
        let (log, written) = slow();
        log.put(b"first\n");
        // Otherwise the thread might take lines between others that are dropped.
        while !log.0.waiting.lock().is_writing {
            std::thread::yield_now();
        }
        let line = [b'x'; 1023]
            .iter()
            .chain(b"\n")
            .copied()
            .collect::<Vec<u8>>();
        let started = Instant::now();
        for _ in 0..3 * MAX_WAITING / line.len() {
            log.put(&line);
        }
        log.flush(Duration::from_millis(50));
        assert!(started.elapsed() < Duration::from_secs(5), "nothing waits");
        assert!(log.0.waiting.lock().bytes.len() <= MAX_WAITING);
        let mut text = String::new();
        while !text.contains("dropped") {
            let bytes = written.recv_timeout(Duration::from_secs(20)).unwrap();
            text.push_str(&String::from_utf8(bytes).unwrap());
        }
        let report = text.lines().last().unwrap();
        let dropped: usize = report.split(' ').nth(1).unwrap().parse().unwrap();
        assert_eq!(
            text.lines().count() - 2 + dropped,
            3 * MAX_WAITING / line.len()
        );
    }

    #[test]
    fn flushing_waits_for_the_last_line() {
        let (log, written) = slow();
        log.put(b"last\n");
        let reader = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            written.recv().unwrap()
        });
        log.flush(Duration::from_secs(20));
        assert!(!log.0.waiting.lock().is_writing);
        assert_eq!(reader.join().unwrap(), b"last\n");
    }
}
