//! What became of the lines. Each gets its result once, and only from the batch's holder.

use super::bucket::{self, Bucket};
use super::contents::{Object, Position};
use super::files::{self, NewFile};
use super::leases::{self, Claim};
use super::schema::{DELETED, FAILED, SUCCEEDED, UNRUN, WAITING, WHOLE};
use super::sql::Transaction;
use super::value::values;
use super::{Result, Store, StoreError};
use crate::batch::{Dialect, Status};
use crate::file::Purpose;
use crate::lines::{Unrun, unrun_line};
use crate::usage::Usage;

/// A line's result.
#[derive(Clone, Debug)]
pub struct Done {
    pub number: i64,
    pub succeeded: bool,
    /// As it is written, with its newline.
    pub result: Vec<u8>,
    pub usage: Usage,
}

/// Why a batch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// All lines have results.
    Completed,
    Expired,
    Cancelled,
}

/// Lines that are ended together.
const GROUP: i64 = 1000;

impl Store {
    /// Keeps the results of some lines. A line that has a result keeps it. Returns whether they were the last: then the
    /// batch is to be [closed](Self::close).
    ///
    /// # Errors
    /// The batch is no longer held, or the database failed: then none is kept.
    pub fn record(&self, claim: &Claim, done: &[Done], now: i64) -> Result<bool> {
        self.change(|transaction| {
            leases::check(transaction, claim)?;
            let (mut completed, mut failed, mut bytes, mut usage) = (0_i64, 0_i64, 0_i64, Usage::default());
            let sql = format!(
                "UPDATE lines SET state = ?3, result = ?4 WHERE batch = ?1 AND number = ?2 AND state = {WAITING}"
            );
            let rows = done.iter().map(|one| {
                let state = if one.succeeded { SUCCEEDED } else { FAILED };
                values![claim.key, one.number, state, one.result.as_slice()]
            });
            let changed = transaction.execute_all(&sql, rows)?;
            let kept = done.iter().zip(changed).filter(|(_, changed)| *changed > 0);
            for (one, _) in kept {
                completed += i64::from(one.succeeded);
                failed += i64::from(!one.succeeded);
                bytes += i64::try_from(one.result.len()).unwrap_or(0);
                usage += one.usage;
            }
            transaction.execute(
                "UPDATE batches SET completed = completed + ?2, failed = failed + ?3, bytes = bytes + ?4,
                         input_tokens = input_tokens + ?5, cached_tokens = cached_tokens + ?6,
                         output_tokens = output_tokens + ?7, reasoning_tokens = reasoning_tokens + ?8
                     WHERE key = ?1",
                &values![
                    claim.key,
                    completed,
                    failed,
                    bytes,
                    usage.input,
                    usage.cached,
                    usage.output,
                    usage.reasoning
                ],
            )?;
            if leases::has_waiting(transaction, claim.key)? {
                return Ok(false);
            }
            let sql = "UPDATE batches SET status = ?2, finalizing = COALESCE(finalizing, ?3) WHERE key = ?1";
            let status = Status::Finalizing.as_str();
            transaction.execute(sql, &values![claim.key, status, now])?;
            Ok(true)
        })
    }

    /// Ends a batch: its results become files. Takes seconds for a large one in an object store, and may be repeated when
    /// it did not come to its end.
    ///
    /// # Errors
    /// The batch is no longer held, lines have no results though it is said to be complete, or the store failed.
    pub fn close(&self, claim: &Claim, why: Close, now: i64) -> Result<()> {
        let status = match why {
            Close::Completed => Status::Completed,
            Close::Expired => Status::Expired,
            Close::Cancelled => Status::Cancelled,
        };
        match why {
            Close::Completed => {}
            Close::Expired => self.end_lines(claim, Unrun::Expired)?,
            Close::Cancelled => self.end_lines(claim, Unrun::Cancelled)?,
        }
        let written = match &self.bucket {
            Some(bucket) => Some(self.write_results(claim, bucket)?),
            None => None,
        };
        let ended = self.change(|transaction| {
            leases::check(transaction, claim)?;
            if leases::has_waiting(transaction, claim.key)? {
                return Err(StoreError::Status(claim.batch.status));
            }
            end(transaction, self, claim, status, written.as_ref(), now)
        });
        if let (Err(error), Some(written), Some(bucket)) = (&ended, &written, &self.bucket)
            && !matches!(error, StoreError::Database(_))
        {
            // Whether the database has them is known only then; else they go when they are old, if no row names them.
            for object in written.all() {
                let _ = bucket.delete(&object.id);
            }
        }
        ended
    }

    /// Lines without results have the one that they were not run.
    fn end_lines(&self, claim: &Claim, unrun: Unrun) -> Result<()> {
        loop {
            let ended = self.change(|transaction| {
                leases::check(transaction, claim)?;
                let lines = leases::next_waiting(transaction, claim.key, GROUP)?;
                if lines.is_empty() {
                    return Ok(true);
                }
                let sql =
                    "UPDATE lines SET state = ?3, result = ?4 WHERE batch = ?1 AND number = ?2";
                let results: Vec<(i64, Option<Vec<u8>>)> = lines
                    .into_iter()
                    .map(|(number, name)| (number, unrun_line(claim.batch.dialect, &name, unrun)))
                    .collect();
                let rows = results
                    .iter()
                    .map(|(number, line)| values![claim.key, *number, UNRUN, line.as_deref()]);
                transaction.execute_all(sql, rows)?;
                let bytes: usize = results
                    .iter()
                    .flat_map(|(_, line)| line)
                    .map(Vec::len)
                    .sum();
                let bytes = i64::try_from(bytes).unwrap_or(0);
                let sql = "UPDATE batches SET bytes = bytes + ?2 WHERE key = ?1";
                transaction.execute(sql, &values![claim.key, bytes])?;
                Ok(false)
            })?;
            if ended {
                return Ok(());
            }
        }
    }

    /// Writes the results of a batch as objects, which no row names yet.
    fn write_results(&self, claim: &Claim, bucket: &Bucket) -> Result<Written> {
        let write = |kind| self.write_kind(claim, bucket, kind);
        Ok(match claim.batch.dialect {
            Dialect::OpenAi => Written {
                output: write(Some(true))?,
                failures: write(Some(false))?,
                batch: None,
            },
            Dialect::Anthropic => Written {
                batch: write(None)?,
                ..Written::default()
            },
        })
    }

    /// Writes the results of the lines that succeeded, of the others or of all; `None`: there are none.
    fn write_kind(
        &self,
        claim: &Claim,
        bucket: &Bucket,
        succeeded: Option<bool>,
    ) -> Result<Option<Object>> {
        let mut writing = bucket.write(bucket::fresh());
        let (mut part, mut position) = (Vec::new(), Position::default());
        let mut read = || {
            self.read(|transaction| {
                leases::check(transaction, claim)?;
                let next = files::results(transaction, claim.key, succeeded, position)?;
                position = next.as_ref().map_or(position, |(_, next)| *next);
                Ok(next.map(|(content, _)| content))
            })
        };
        loop {
            match read() {
                Ok(Some(content)) => part.extend(content),
                Ok(None) => break,
                Err(error) => return Err(bucket.failed(&writing, error)),
            }
            // The last part is written at the end.
            while part.len() > bucket.part_bytes() {
                let rest = part.split_off(bucket.part_bytes());
                if let Err(error) = bucket.add(&mut writing, part) {
                    return Err(bucket.failed(&writing, error));
                }
                part = rest;
            }
        }
        match part.is_empty() {
            true => Ok(None),
            false => bucket.end(writing, part).map(Some),
        }
    }
}

/// Objects with the results of a batch.
#[derive(Debug, Default)]
struct Written {
    output: Option<Object>,
    failures: Option<Object>,
    /// Those that its clients read from the batch.
    batch: Option<Object>,
}

impl Written {
    fn all(&self) -> impl Iterator<Item = &Object> {
        [&self.output, &self.failures, &self.batch]
            .into_iter()
            .flatten()
    }
}

/// The batch has ended: its results are files, and what it alone needed goes.
fn end(
    transaction: &Transaction<'_>,
    store: &Store,
    claim: &Claim,
    status: Status,
    written: Option<&Written>,
    now: i64,
) -> Result<()> {
    let output = written.map(|written| written.output);
    let output = file_of(transaction, store, claim, ("output", true), output, now)?;
    let failures = written.map(|written| written.failures);
    let failures = file_of(transaction, store, claim, ("error", false), failures, now)?;
    transaction.execute(
        "UPDATE batches SET status = ?2, ended = ?3, output_id = ?4, failures_id = ?5 WHERE key = ?1",
        &values![claim.key, status.as_str(), now, output, failures],
    )?;
    if let Some(written) = written {
        let bytes: i64 = written.all().map(|object| object.bytes).sum();
        let object = written.batch.map(|object| object.id);
        let sql = "UPDATE batches SET object = ?2, bytes = ?3 WHERE key = ?1";
        transaction.execute(sql, &values![claim.key, object, bytes])?;
        transaction.execute("DELETE FROM lines WHERE batch = ?1", &values![claim.key])?;
    }
    let sql = "SELECT files.key FROM files JOIN batches ON files.key = batches.input
               WHERE batches.key = ?1 AND files.state = ?2";
    let deleted = transaction.query_row(sql, &values![claim.key, DELETED], |row| row.integer(0))?;
    if let Some(input) = deleted {
        files::remove(transaction, input, None)?;
    }
    Ok(())
}

/// Makes the file of the results of lines that succeeded or did not, which have become an object, or stay where they are;
/// `None`: there are none, or its clients read them from the batch.
fn file_of(
    transaction: &Transaction<'_>,
    store: &Store,
    claim: &Claim,
    (name, succeeded): (&str, bool),
    written: Option<Option<Object>>,
    now: i64,
) -> Result<Option<[u8; 16]>> {
    if claim.batch.dialect == Dialect::Anthropic {
        return Ok(None);
    }
    let bytes = match written {
        Some(object) => object.map(|object| object.bytes),
        None => {
            let are = files::states(Some(succeeded));
            let sql = format!("SELECT SUM(LENGTH(result)) FROM lines WHERE batch = ?1 AND {are}");
            let row =
                transaction.query_row(&sql, &values![claim.key], |row| row.maybe_integer(0))?;
            row.flatten()
        }
    };
    let Some(bytes) = bytes else {
        return Ok(None);
    };
    let sql = "SELECT results_age FROM batches WHERE key = ?1";
    let age = transaction.query_row(sql, &values![claim.key], |row| row.maybe_integer(0))?;
    let age = age.flatten();
    let new = NewFile {
        owner: claim.owner,
        name: format!("{}_{name}.jsonl", claim.batch.id),
        purpose: Purpose::BatchOutput,
        created: now,
        age,
    };
    let object = written.flatten().map(|object| object.id);
    let age = store.bounds().age;
    let inserted = files::insert(
        transaction,
        &new,
        WHOLE,
        bytes,
        age,
        Some(claim.key),
        object,
    );
    Ok(Some(inserted?.1.0.to_be_bytes()))
}
