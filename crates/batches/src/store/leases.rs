//! Who runs which batch. A holder takes batches that nobody runs and renews its leases; a batch whose holder is gone is
//! free once its lease has run out.

use super::contents::{self, Source};
use super::schema::WAITING;
use super::sql::Transaction;
use super::value::values;
use super::{Result, Store, StoreError, batches};
use crate::batch::Batch;
use crate::id::Owner;
use crate::input::{BODY, read_entry};

/// A batch that is held.
#[derive(Clone, Debug)]
pub struct Claim {
    pub(super) key: i64,
    pub(super) holder: i64,
    pub owner: Owner,
    pub batch: Batch,
}

/// A line to run.
#[derive(Clone, Debug)]
pub struct Work {
    pub number: i64,
    pub custom_id: String,
    /// What is sent.
    pub body: Vec<u8>,
}

impl Store {
    /// Renews the leases of `holder` until `until`, by the clock that all holders share, and takes up to `most` batches in all. Returns all that it holds now,
    /// the oldest first.
    ///
    /// # Errors
    /// The database failed.
    pub fn claim(&self, holder: i64, most: usize, now: i64, until: i64) -> Result<Vec<Claim>> {
        let length = until.saturating_sub(now);
        self.change(|transaction| {
            let now = transaction.clock(now)?;
            let until = now.saturating_add(length);
            transaction.execute(
                "UPDATE batches SET lease = ?2 WHERE holder = ?1 AND ended IS NULL AND lease >= ?3",
                &values![holder, until, now],
            )?;
            let sql =
                "SELECT COUNT(*) FROM batches WHERE holder = ?1 AND ended IS NULL AND lease >= ?2";
            let held = transaction.integer(sql, &values![holder, now])?;
            let more = i64::try_from(most).unwrap_or(i64::MAX).saturating_sub(held);
            if more > 0 {
                transaction.execute(
                    "UPDATE batches SET holder = ?1, lease = ?2 WHERE key IN (
                         SELECT key FROM batches WHERE ended IS NULL AND (holder = 0 OR lease < ?3)
                         ORDER BY key LIMIT ?4)",
                    &values![holder, until, now, more],
                )?;
            }
            let sql =
                "SELECT key, owner FROM batches WHERE holder = ?1 AND ended IS NULL ORDER BY key";
            let rows = transaction.query(sql, &values![holder], |row| {
                Ok((row.integer(0)?, Owner(row.id(1)?)))
            })?;
            let claims = rows.into_iter().map(|(key, owner)| {
                Ok(Claim {
                    key,
                    holder,
                    owner,
                    batch: batches::by_key(transaction, key)?,
                })
            });
            claims.collect()
        })
    }

    /// Gives all batches of `holder` back.
    ///
    /// # Errors
    /// The database failed.
    pub fn release(&self, holder: i64) -> Result<()> {
        self.change(|transaction| {
            transaction.execute(
                "UPDATE batches SET holder = 0, lease = 0 WHERE holder = ?1 AND ended IS NULL",
                &values![holder],
            )?;
            Ok(())
        })
    }

    /// Lines of a batch that have no result, by their numbers, from the one after `after`: at most `most`, and no more
    /// than `bytes` of them but for the first.
    ///
    /// # Errors
    /// The batch is no longer held, or the store failed.
    pub fn waiting(
        &self,
        claim: &Claim,
        after: i64,
        most: usize,
        bytes: usize,
    ) -> Result<Vec<Work>> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let (lines, ranges, contents, object) = self.read(|transaction| {
            check(transaction, claim)?;
            let sql = "SELECT input FROM batches WHERE key = ?1";
            let input = transaction.integer(sql, &values![claim.key])?;
            let sql = format!(
                "SELECT number, custom_id, start, length FROM lines
                 WHERE batch = ?1 AND state = {WAITING} AND number > ?2 ORDER BY number LIMIT ?3"
            );
            let rows = transaction.query(&sql, &values![claim.key, after, most], |row| {
                let size = |size| u64::try_from(size).unwrap_or(0);
                let range = (size(row.integer(2)?), size(row.integer(3)?));
                Ok(((row.integer(0)?, row.text(1)?), range))
            })?;
            let mut total = 0_u64;
            let fitting = rows.into_iter().take_while(|(_, (_, length))| {
                let is_first = total == 0;
                total = total.saturating_add(*length);
                is_first || total <= bytes
            });
            let (lines, ranges): (Vec<_>, Vec<_>) = fitting.unzip();
            Ok(match contents::source(transaction, input)? {
                Source::Pieces(file) => {
                    let contents = contents::ranges(transaction, file, &ranges)?;
                    (lines, ranges, contents, None)
                }
                Source::Object(object) => (lines, ranges, Vec::new(), Some(object)),
            })
        })?;
        let contents = match object {
            Some(object) => self.bucket()?.ranges(object, &ranges)?,
            None => contents,
        };
        let work = lines.into_iter().zip(contents);
        let work = work.map(|((number, custom_id), line)| {
            // It was read when the batch began.
            let entry = read_entry(&line, &claim.batch.endpoint, BODY);
            let body = entry.map(|entry| entry.body.get().as_bytes().to_vec());
            Work {
                number,
                custom_id,
                body: body.unwrap_or_default(),
            }
        });
        Ok(work.collect())
    }
}

/// Whether the batch is still held.
pub(super) fn check(transaction: &Transaction<'_>, claim: &Claim) -> Result<()> {
    let sql = "SELECT 1 FROM batches WHERE key = ?1 AND holder = ?2 AND ended IS NULL";
    let held = transaction.exists(sql, &values![claim.key, claim.holder])?;
    held.then_some(()).ok_or(StoreError::LeaseLost)
}

/// The next line's `custom_id`, of those without a result; used where all of them end.
pub(super) fn next_waiting(
    transaction: &Transaction<'_>,
    batch: i64,
    most: i64,
) -> Result<Vec<(i64, String)>> {
    let sql = format!(
        "SELECT number, custom_id FROM lines WHERE batch = ?1 AND state = {WAITING} ORDER BY number LIMIT ?2"
    );
    Ok(transaction.query(&sql, &values![batch, most], |row| {
        Ok((row.integer(0)?, row.text(1)?))
    })?)
}

/// Whether a line has no result yet.
pub(super) fn has_waiting(transaction: &Transaction<'_>, batch: i64) -> Result<bool> {
    let sql = format!("SELECT 1 FROM lines WHERE batch = ?1 AND state = {WAITING} LIMIT 1");
    Ok(transaction.exists(&sql, &values![batch])?)
}
