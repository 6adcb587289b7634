//! What is too old goes, and the database gives its room back.

use super::schema::UPLOADING;
use super::value::values;
use super::{Result, Store, batches, files};

/// Seconds after which an upload that has not become whole is given up: no gateway reads one for so long.
const UPLOAD: i64 = 24 * 3600;
/// Items that one call removes at most, so that none takes long.
const GROUP: i64 = 64;

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
        Ok(gone)
    }
}
