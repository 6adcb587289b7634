//! What is too old goes, and the database gives its room back. Objects go after the rows that named them.

use super::schema::UPLOADING;
use super::value::values;
use super::{Result, Store, batches, files};

/// Seconds after which an upload that has not become whole is given up: no gateway reads one for so long.
const UPLOAD: i64 = 24 * 3600;
/// Seconds after which an object that nothing names is deleted, and an upload in parts is given up: longer than any
/// content is on its way.
const ORPHAN: i64 = 24 * 3600;
/// Items that one call removes at most, so that none takes long.
const GROUP: i64 = 64;
/// Groups of objects that one call deletes at most.
const MOST_GROUPS: usize = 64;

impl Store {
    /// Removes what is too old: some of it at each call. Returns how many items went.
    ///
    /// # Errors
    /// The database failed.
    pub fn sweep(&self, now: i64) -> Result<usize> {
        let gone = self.change(|transaction| {
            let sql = "SELECT key, batch FROM files WHERE (expires <= ?1 AND state != ?2)
                       OR (state = ?2 AND created <= ?1 - ?3) LIMIT ?4";
            let old_files =
                transaction.query(sql, &values![now, UPLOADING, UPLOAD, GROUP], |row| {
                    Ok((row.integer(0)?, row.maybe_integer(1)?))
                })?;
            for (key, batch) in &old_files {
                files::remove(transaction, *key, *batch)?;
            }
            let sql = "SELECT key FROM batches WHERE ended IS NOT NULL AND ended <= ?1 - ?2
                       AND NOT EXISTS (SELECT 1 FROM files WHERE files.batch = batches.key) LIMIT ?3";
            let values = values![now, self.bounds().age, GROUP];
            let old_batches = transaction.query(sql, &values, |row| row.integer(0))?;
            for key in &old_batches {
                batches::remove(transaction, *key)?;
            }
            Ok(old_files.len() + old_batches.len())
        })?;
        self.engine.tidy()?;
        self.purge()?;
        Ok(gone)
    }

    /// Deletes objects that rows named which have gone, unless another call does. Returns how many went.
    ///
    /// # Errors
    /// The store failed: the others go at another call.
    pub fn purge(&self) -> Result<usize> {
        let Some(bucket) = &self.bucket else {
            return Ok(0);
        };
        // While the object store does not answer, one call waits for it.
        let Some(_purging) = bucket.purging.try_lock() else {
            return Ok(0);
        };
        let mut gone = 0;
        for _ in 0..MOST_GROUPS {
            let sql = "SELECT object FROM removed LIMIT ?1";
            let objects = self.read(|transaction| {
                Ok(transaction.query(sql, &values![GROUP], |row| row.id(0))?)
            })?;
            if objects.is_empty() {
                break;
            }
            for id in &objects {
                bucket.delete(id)?;
            }
            self.change(|transaction| {
                let sql = "DELETE FROM removed WHERE object = ?1";
                transaction.execute_all(sql, objects.iter().map(|id| values![*id]))?;
                Ok(())
            })?;
            gone += objects.len();
        }
        Ok(gone)
    }

    /// Deletes objects of this database that no row names and that are old, and gives up uploads of objects that have
    /// not ended: what crashes left, and what an older copy of the database does not have. Reads the list of all
    /// objects. Returns how many went.
    ///
    /// # Errors
    /// The store failed.
    pub fn sweep_objects(&self) -> Result<usize> {
        self.sweep_objects_older_than(ORPHAN)
    }

    pub(super) fn sweep_objects_older_than(&self, age: i64) -> Result<usize> {
        let Some(bucket) = &self.bucket else {
            return Ok(0);
        };
        bucket.sweep(age, |first, last| {
            let of = |table: &str| {
                format!("SELECT object FROM {table} WHERE object >= ?1 AND object <= ?2")
            };
            let sql = format!("{} UNION ALL {}", of("files"), of("batches"));
            self.read(|transaction| {
                let rows = transaction.query(&sql, &values![first, last], |row| row.id(0))?;
                Ok(rows.into_iter().collect())
            })
        })
    }
}
