//! What is too old goes, and the database gives its room back.

use rusqlite::params;

use super::schema::UPLOADING;
use super::{Result, Store, batches, files};

/// Seconds after which an upload that has not become whole is given up: no gateway reads one for so long.
const UPLOAD: i64 = 24 * 3600;
/// Items that one call removes at most, so that none takes long.
const GROUP: i64 = 64;
/// Pages that one call gives back to the file system, of 4 KiB.
const PAGES: i64 = 8192;

impl Store {
    /// Removes what is too old: some of it at each call. Returns how many items went.
    ///
    /// # Errors
    /// The database failed.
    pub fn sweep(&self, now: i64) -> Result<usize> {
        let gone = self.change(|transaction| {
            let old_files: Vec<(i64, Option<i64>)> = {
                let sql = "SELECT key, batch FROM files WHERE (expires <= ?1 AND state != ?2)
                           OR (state = ?2 AND created <= ?1 - ?3) LIMIT ?4";
                let mut statement = transaction.prepare_cached(sql)?;
                let rows = statement.query_map(params![now, UPLOADING, UPLOAD, GROUP], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?;
                rows.collect::<rusqlite::Result<_>>()?
            };
            for (key, batch) in &old_files {
                files::remove(transaction, *key, *batch)?;
            }
            let old_batches: Vec<i64> = {
                let sql = "SELECT key FROM batches WHERE ended IS NOT NULL AND ended <= ?1 - ?2
                           AND NOT EXISTS (SELECT 1 FROM files WHERE files.batch = batches.key) LIMIT ?3";
                let mut statement = transaction.prepare_cached(sql)?;
                let rows = statement
                    .query_map(params![now, self.bounds().age, GROUP], |row| row.get(0))?;
                rows.collect::<rusqlite::Result<_>>()?
            };
            for key in &old_batches {
                batches::remove(transaction, *key)?;
            }
            Ok(old_files.len() + old_batches.len())
        })?;
        let writer = self.writer.lock();
        let mut vacuum = writer.prepare(&format!("PRAGMA incremental_vacuum({PAGES})"))?;
        let mut rows = vacuum.query([])?;
        while rows.next()?.is_some() {}
        Ok(gone)
    }
}
