//! What became of the lines. Each gets its result once, and only from the batch's holder.

use super::files::{self, NewFile};
use super::leases::{self, Claim};
use super::schema::{DELETED, FAILED, SUCCEEDED, UNRUN, WAITING, WHOLE};
use super::sql::Transaction;
use super::value::values;
use super::{Result, Store};
use crate::batch::Status;
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

/// Why a batch ends before its lines are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    Expired,
    Cancelled,
}

/// Lines that are ended together.
const GROUP: i64 = 1000;

impl Store {
    /// Keeps the results of some lines, and ends the batch when they were the last. A line that has a result keeps it.
    /// Returns whether the batch has ended.
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
            end(transaction, self, claim, Status::Completed, now)?;
            Ok(true)
        })
    }

    /// Ends a batch though not all of its lines have results.
    ///
    /// # Errors
    /// The batch is no longer held, or the database failed.
    pub fn close(&self, claim: &Claim, why: Close, now: i64) -> Result<()> {
        let (unrun, status) = match why {
            Close::Expired => (Unrun::Expired, Status::Expired),
            Close::Cancelled => (Unrun::Cancelled, Status::Cancelled),
        };
        loop {
            let ended = self.change(|transaction| {
                leases::check(transaction, claim)?;
                let lines = leases::next_waiting(transaction, claim.key, GROUP)?;
                if lines.is_empty() {
                    end(transaction, self, claim, status, now)?;
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
}

/// The batch has ended: its results are files, and what it alone needed goes.
fn end(
    transaction: &Transaction<'_>,
    store: &Store,
    claim: &Claim,
    status: Status,
    now: i64,
) -> Result<()> {
    let results = format!("state = {SUCCEEDED}");
    let output = file_of(transaction, store, claim, "output", &results, now)?;
    let failures = format!("state NOT IN ({WAITING}, {SUCCEEDED})");
    let failures = file_of(transaction, store, claim, "error", &failures, now)?;
    transaction.execute(
        "UPDATE batches SET status = ?2, ended = ?3, output_id = ?4, failures_id = ?5 WHERE key = ?1",
        &values![claim.key, status.as_str(), now, output, failures],
    )?;
    let sql = "SELECT files.key FROM files JOIN batches ON files.key = batches.input
               WHERE batches.key = ?1 AND files.state = ?2";
    let deleted = transaction.query_row(sql, &values![claim.key, DELETED], |row| row.integer(0))?;
    if let Some(input) = deleted {
        files::remove(transaction, input, None)?;
    }
    Ok(())
}

/// Makes the file of the results that are so; `None`: there are none, or its clients read them from the batch.
fn file_of(
    transaction: &Transaction<'_>,
    store: &Store,
    claim: &Claim,
    name: &str,
    are: &str,
    now: i64,
) -> Result<Option<[u8; 16]>> {
    if claim.batch.dialect == crate::batch::Dialect::Anthropic {
        return Ok(None);
    }
    let sql = format!("SELECT SUM(LENGTH(result)) FROM lines WHERE batch = ?1 AND {are}");
    let bytes = transaction.query_row(&sql, &values![claim.key], |row| row.maybe_integer(0))?;
    let Some(bytes) = bytes.flatten() else {
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
    let (_, id) = files::insert(
        transaction,
        &new,
        WHOLE,
        bytes,
        store.bounds().age,
        Some(claim.key),
    )?;
    Ok(Some(id.0.to_be_bytes()))
}
