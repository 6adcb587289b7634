//! Files of addresses, which an operator or a launcher writes. Owns their form, and when one that has changed is read.

use std::path::PathBuf;
use std::time::Duration;

use inflight_base::blocking;
use inflight_base::text_file::{Stamp, read_text, stamp};

use crate::address::{endpoint_address, worker_address};
use crate::listing::{Listing, Missing};
use crate::reports::Reporter;

/// Larger files are a mistake.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// How often files are looked at. A look is one `stat`.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How a line is read.
type ReadLine = fn(&str) -> Result<String, String>;

/// A file of addresses, one on each line.
#[derive(Clone, Debug)]
pub struct AddressFile {
    path: PathBuf,
    read_line: ReadLine,
    addresses: Vec<String>,
    /// It has no text at all, not even a comment.
    is_void: bool,
    /// As it was when it was read, and at the last look.
    read: Option<Stamp>,
    seen: Option<Stamp>,
}

impl AddressFile {
    /// Reads the file at `path`; it may be empty.
    ///
    /// # Errors
    /// A sentence for the user: it cannot be read, or a line is not an address.
    pub fn read(path: &str) -> Result<Self, String> {
        Self::read_lines(path, worker_address)
    }

    /// As [`AddressFile::read`], a file of servers that are only watched.
    ///
    /// # Errors
    /// As there.
    pub fn read_endpoints(path: &str) -> Result<Self, String> {
        Self::read_lines(path, endpoint_address)
    }

    fn read_lines(path: &str, read_line: ReadLine) -> Result<Self, String> {
        let mut file = Self {
            path: path.into(),
            read_line,
            addresses: Vec::new(),
            is_void: false,
            read: None,
            seen: None,
        };
        file.seen = stamp(&file.path);
        file.take()?;
        Ok(file)
    }

    /// As it was when it could last be read.
    pub fn listing(&self) -> Listing {
        // A full disk leaves such a file, and so does a program that ends while it writes.
        let missing = match self.is_void {
            true => Missing::Doubtful,
            false => Missing::TakenOut,
        };
        Listing::new(self.addresses.clone(), missing)
    }

    /// As the log names it.
    pub(crate) fn described(&self) -> String {
        format!("file {}", self.path.display())
    }

    /// Reports each change of the file. Never returns.
    pub(crate) async fn follow(mut self, reporter: &Reporter) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // A network's file system may block, so not on this thread.
            let mut file = self.clone();
            let looked = blocking::run(move || (file.refresh(), file));
            let Ok((changed, file)) = looked.await else {
                continue;
            };
            self = file;
            match changed {
                Ok(false) => {}
                Ok(true) => {
                    reporter.works();
                    reporter.say(self.listing());
                }
                Err(reason) => reporter.fails(reason),
            }
        }
    }

    /// Reads it again if it is another than before, and the same as at the last look: one that changes between two looks
    /// is still being written. Returns whether the addresses may have changed, or once why they are not known.
    fn refresh(&mut self) -> Result<bool, String> {
        let now = stamp(&self.path);
        let is_settled = std::mem::replace(&mut self.seen, now) == now;
        if !is_settled || now == self.read {
            return Ok(false);
        }
        self.take().map(|()| true)
    }

    fn take(&mut self) -> Result<(), String> {
        self.read = self.seen;
        let text = read_text(&self.path, MAX_FILE_BYTES)?;
        self.addresses = parse(&text, self.read_line)?;
        self.is_void = text.trim().is_empty();
        Ok(())
    }
}

fn parse(text: &str, read_line: ReadLine) -> Result<Vec<String>, String> {
    let lines = text.lines().map(str::trim).zip(1..);
    let lines = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(line, number)| {
            read_line(line).map_err(|error| format!("line {number}, `{line}`, {error}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn addresses_are_one_a_line_with_comments() {
        let text = "# two\na:1\r\n\n  http://[::1]:8001  \n";
        assert_eq!(parse(text, worker_address).unwrap(), ["a:1", "[::1]:8001"]);
        assert_eq!(parse("", worker_address).unwrap(), Vec::<String>::new());
        let error = parse("a:1\nb\n", worker_address).unwrap_err();
        assert_eq!(error, "line 2, `b`, must be HOST:PORT, e.g. 127.0.0.1:8001");
        let endpoints = parse("http://a:1\n#\n", endpoint_address).unwrap();
        assert_eq!(endpoints, ["http://a:1"]);
    }

    #[test]
    fn a_file_is_read_again_once_it_has_settled_and_a_bad_one_changes_nothing() {
        let path = std::env::temp_dir().join(format!("workers-{}", std::process::id()));
        let write = |text: &str| fs::write(&path, text).unwrap();
        write("a:1\n");
        let mut file = AddressFile::read(path.to_str().unwrap()).unwrap();
        assert_eq!(file.refresh(), Ok(false));
        write("a:1\nb:");
        assert_eq!(file.refresh(), Ok(false), "it may not be whole yet");
        write("a:1\nb:1\n");
        let looks = [Ok(false), Ok(true), Ok(false)];
        assert_eq!([(); 3].map(|()| file.refresh()), looks);
        assert_eq!(file.addresses, ["a:1", "b:1"]);
        assert_eq!(file.listing().missing, Missing::TakenOut);
        let mut fails = |reason: &str| {
            assert_eq!(file.refresh(), Ok(false));
            let error = file.refresh().unwrap_err();
            assert!(error.contains(reason), "{error}");
            assert_eq!(file.refresh(), Ok(false), "it is said once");
        };
        write("a:1\nnot an address\n");
        fails("line 2");
        fs::remove_file(&path).unwrap();
        fails("cannot read the file");
        assert_eq!(file.addresses, ["a:1", "b:1"]);
        write("");
        assert_eq!([(); 2].map(|()| file.refresh()), [Ok(false), Ok(true)]);
        assert!(file.addresses.is_empty());
        assert_eq!(file.listing().missing, Missing::Doubtful);
        write("# none\n");
        assert_eq!([(); 2].map(|()| file.refresh()), [Ok(false), Ok(true)]);
        assert_eq!(file.listing(), Listing::new(vec![], Missing::TakenOut));
        fs::remove_file(&path).unwrap();
        assert!(AddressFile::read("/no/such/file").is_err());
    }
}
