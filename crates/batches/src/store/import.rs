//! The lines of a batch are read from its file: all are requests, or the batch fails.

use std::collections::HashSet;

use super::contents::{self, Position};
use super::leases::{self, Claim};
use super::value::values;
use super::{MAX_LINES, Result, Store};
use crate::batch::Status;
use crate::input::{BODY, InputError, InputErrors, Lines, read_entry};

/// What is wrong with lines that came with a request for a batch; nothing, if all are requests. `body_name`: what that
/// request calls the body of each.
pub fn check_lines(
    lines: &[u8],
    endpoint: &str,
    body_name: &str,
    line_bytes: usize,
) -> InputErrors {
    let mut reading = Reading::new(endpoint, body_name, line_bytes);
    let mut cut = Lines::default();
    cut.feed(lines, |start, line| reading.line(start, line));
    cut.end(|start, line| reading.line(start, line));
    reading.errors
}

/// Lines that are written together: others write between two groups.
const GROUP: usize = 1000;

/// A line that is a request.
struct Read {
    custom_id: String,
    start: i64,
    length: i64,
}

impl Store {
    /// Reads all lines of a batch and begins it, or ends it with what is wrong. Takes seconds for a large file; may be
    /// repeated when it did not come to its end. Returns whether it has begun.
    ///
    /// # Errors
    /// The batch is no longer held, or the database failed.
    pub fn import(&self, claim: &Claim, now: i64) -> Result<bool> {
        self.change(|transaction| {
            leases::check(transaction, claim)?;
            transaction.execute("DELETE FROM lines WHERE batch = ?1", &values![claim.key])?;
            Ok(())
        })?;
        let input = self.read(|transaction| {
            let sql = "SELECT input FROM batches WHERE key = ?1";
            contents::source(transaction, transaction.integer(sql, &values![claim.key])?)
        })?;
        let mut reading = Reading::new(&claim.batch.endpoint, BODY, self.bounds().line_bytes);
        let mut lines = Lines::default();
        let mut position = Position::default();
        while let Some((piece, next)) = self.read_source(input, position)? {
            lines.feed(&piece, |start, line| reading.line(start, line));
            if lines.pending() > self.bounds().line_bytes {
                reading.too_long();
                break;
            }
            if reading.is_hopeless() {
                break;
            }
            if reading.read.len() >= GROUP {
                self.write(claim, &mut reading)?;
            }
            position = next;
        }
        if !reading.is_hopeless() {
            lines.end(|start, line| reading.line(start, line));
        }
        if reading.count == 0 && reading.errors.data.is_empty() {
            let message =
                "The file has no requests. Write one JSON object on each line.".to_owned();
            reading
                .errors
                .push(InputError::new("empty_file", None, message));
        }
        self.write(claim, &mut reading)?;
        self.change(|transaction| {
            leases::check(transaction, claim)?;
            if reading.errors.data.is_empty() {
                // One that is cancelled meanwhile stays so.
                transaction.execute(
                    "UPDATE batches SET total = ?2, started = ?3, status = CASE status WHEN ?4 THEN ?5 ELSE status END
                     WHERE key = ?1",
                    &values![
                        claim.key,
                        reading.count,
                        now,
                        Status::Validating.as_str(),
                        Status::InProgress.as_str()
                    ],
                )?;
                return Ok(true);
            }
            transaction.execute("DELETE FROM lines WHERE batch = ?1", &values![claim.key])?;
            let errors = serde_json::to_string(&reading.errors).unwrap_or_default();
            transaction.execute(
                "UPDATE batches SET status = ?2, ended = ?3, errors = ?4 WHERE key = ?1",
                &values![claim.key, Status::Failed.as_str(), now, errors.as_str()],
            )?;
            Ok(false)
        })
    }

    fn write(&self, claim: &Claim, reading: &mut Reading<'_>) -> Result<()> {
        self.change(|transaction| {
            leases::check(transaction, claim)?;
            let sql =
                "INSERT INTO lines (batch, number, custom_id, start, length) VALUES (?1, ?2, ?3, ?4, ?5)";
            let numbered = (reading.written + 1..).zip(&reading.read);
            let rows = numbered.map(|(number, read)| {
                let name = read.custom_id.as_str();
                values![claim.key, number, name, read.start, read.length]
            });
            transaction.execute_all(sql, rows)?;
            Ok(())
        })?;
        reading.written += i64::try_from(reading.read.len()).unwrap_or(i64::MAX);
        reading.read.clear();
        Ok(())
    }
}

/// The lines so far.
struct Reading<'a> {
    endpoint: &'a str,
    /// What the client calls the body of a line.
    body_name: &'a str,
    line_bytes: usize,
    /// Not yet written.
    read: Vec<Read>,
    written: i64,
    count: i64,
    names: HashSet<String>,
    errors: InputErrors,
    is_too_long: bool,
}

impl<'a> Reading<'a> {
    fn new(endpoint: &'a str, body_name: &'a str, line_bytes: usize) -> Self {
        Self {
            endpoint,
            body_name,
            line_bytes,
            read: Vec::new(),
            written: 0,
            count: 0,
            names: HashSet::new(),
            errors: InputErrors::default(),
            is_too_long: false,
        }
    }

    fn line(&mut self, start: u64, line: &[u8]) {
        self.count += 1;
        if self.count > MAX_LINES {
            if self.count == MAX_LINES + 1 {
                let message =
                    format!("The file has more than {MAX_LINES} lines. Send several batches.");
                self.errors
                    .push(InputError::new("too_many_requests", None, message));
            }
            return;
        }
        if line.len() > self.line_bytes {
            self.too_long();
            return;
        }
        let entry = match read_entry(line, self.endpoint, self.body_name) {
            Ok(entry) => entry,
            Err(error) => return self.errors.push(error.at(self.count)),
        };
        let custom_id = entry.custom_id.into_owned();
        if !self.names.insert(custom_id.clone()) {
            let message =
                "Another line has the same `custom_id`. Each names one result.".to_owned();
            let error = InputError::new("duplicate_custom_id", Some("custom_id"), message);
            return self.errors.push(error.at(self.count));
        }
        // What is wrong is reported; nothing will be run.
        if self.errors.data.is_empty() {
            self.read.push(Read {
                custom_id,
                start: i64::try_from(start).unwrap_or(i64::MAX),
                length: i64::try_from(line.len()).unwrap_or(i64::MAX),
            });
        }
    }

    fn too_long(&mut self) {
        self.is_too_long = true;
        let message = format!(
            "The line has more than `{}` bytes, which is the most that one request may have.",
            self.line_bytes
        );
        let error = InputError::new("request_too_large", None, message);
        self.errors.push(error.at(self.count.max(1)));
    }

    /// Whether reading on would say nothing new.
    fn is_hopeless(&self) -> bool {
        self.is_too_long || self.count > MAX_LINES
    }
}
