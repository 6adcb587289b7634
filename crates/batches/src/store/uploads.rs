//! Files on their way: nobody sees them before they are whole.

use super::bucket::{self, Bucket, Writing};
use super::contents::{self, INSERT_PIECE};
use super::files::{self, NewFile};
use super::schema::{UPLOADING, WHOLE};
use super::value::values;
use super::{Result, Store, StoreError};
use crate::file::{File, Purpose};
use crate::id::Owner;

/// A file on its way, which nobody sees.
#[derive(Debug)]
pub struct Receiving {
    key: i64,
    /// Pieces so far.
    pieces: i64,
    /// Where its content is not in pieces.
    object: Option<Writing>,
}

impl Store {
    /// Begins a file, which nobody sees before it is whole.
    ///
    /// # Errors
    /// The owner has too many, or there is no room.
    pub fn begin_file(&self, new: &NewFile) -> Result<Receiving> {
        let object = self
            .bucket
            .as_ref()
            .map(|bucket| bucket.write(bucket::fresh()));
        let id = object.as_ref().map(|object| object.id);
        let key = self.change(|transaction| {
            files::check_count(transaction, "files", &new.owner)?;
            files::check_room(transaction, self, &new.owner, 1)?;
            let inserted =
                files::insert(transaction, new, UPLOADING, 0, self.bounds().age, None, id);
            inserted.map(|(key, _)| key)
        })?;
        Ok(Receiving {
            key,
            pieces: 0,
            object,
        })
    }

    /// Adds a piece that is not the last: [`Store::piece_bytes`].
    ///
    /// # Errors
    /// The file is too large, there is no room, or the upload was given up.
    pub fn append(&self, file: &mut Receiving, content: Vec<u8>) -> Result<()> {
        self.count_piece(file, &content)?;
        match &mut file.object {
            Some(writing) => self.bucket()?.add(writing, content),
            None => Ok(()),
        }
    }

    /// Counts a piece, and keeps it unless it is for an object.
    fn count_piece(&self, file: &mut Receiving, content: &[u8]) -> Result<()> {
        let length = i64::try_from(content.len()).unwrap_or(i64::MAX);
        self.change(|transaction| {
            let sql = "SELECT owner, bytes FROM files WHERE key = ?1 AND state = ?2";
            let found = transaction.query_row(sql, &values![file.key, UPLOADING], |row| {
                Ok((Owner(row.id(0)?), row.integer(1)?))
            })?;
            let (owner, bytes) = found.ok_or(StoreError::NoFile)?;
            let limit = self.bounds().file_bytes;
            if bytes.saturating_add(length) > limit {
                return Err(StoreError::FileTooLarge(limit));
            }
            files::check_room(transaction, self, &owner, length)?;
            if file.object.is_none() {
                transaction.execute(INSERT_PIECE, &values![file.key, file.pieces, content])?;
            }
            let sql = "UPDATE files SET bytes = bytes + ?2 WHERE key = ?1";
            transaction.execute(sql, &values![file.key, length])?;
            Ok(())
        })?;
        file.pieces += 1;
        Ok(())
    }

    /// Bytes of a piece, which is in memory at once.
    pub fn piece_bytes(&self) -> usize {
        let bucket = self.bucket.as_ref();
        bucket.map_or(contents::PIECE, Bucket::part_bytes)
    }

    /// Adds the last piece, which may be empty, and the file is whole: from here on its owner sees it. A name or purpose
    /// that came after the content counts.
    ///
    /// # Errors
    /// The file is too large, there is no room, or the upload was given up.
    pub fn finish_file(
        &self,
        file: &mut Receiving,
        last: Vec<u8>,
        name: &str,
        purpose: Purpose,
        age: Option<i64>,
    ) -> Result<File> {
        if !last.is_empty() {
            self.count_piece(file, &last)?;
        }
        if let Some(writing) = &mut file.object {
            self.bucket()?.finish(writing, last)?;
        }
        self.change(|transaction| {
            let changed = transaction.execute(
                "UPDATE files SET state = ?2, name = ?3, purpose = ?4, expires = created + ?5
                 WHERE key = ?1 AND state = ?6",
                &values![
                    file.key,
                    WHOLE,
                    name,
                    purpose.as_str(),
                    age.unwrap_or(self.bounds().age),
                    UPLOADING
                ],
            )?;
            if changed == 0 {
                return Err(StoreError::NoFile);
            }
            let sql = format!("SELECT {} FROM files WHERE key = ?1", files::COLUMNS);
            let found = transaction.query_row(&sql, &values![file.key], files::stored)?;
            Ok(found.ok_or(StoreError::NoFile)?.file)
        })
    }

    /// Removes a file that did not become whole; one that did is left as it is.
    ///
    /// # Errors
    /// The store failed.
    pub fn abandon_file(&self, file: &Receiving) -> Result<()> {
        let removed = self.change(|transaction| {
            let unfinished = "SELECT 1 FROM files WHERE key = ?1 AND state = ?2";
            if !transaction.exists(unfinished, &values![file.key, UPLOADING])? {
                return Ok(false);
            }
            contents::forget(transaction, "files", "key", file.key)?;
            transaction.execute("DELETE FROM pieces WHERE file = ?1", &values![file.key])?;
            transaction.execute("DELETE FROM files WHERE key = ?1", &values![file.key])?;
            Ok(true)
        })?;
        match (&file.object, removed) {
            (Some(writing), true) => self.bucket()?.abandon(writing),
            _ => Ok(()),
        }
    }
}
