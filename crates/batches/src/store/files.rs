//! Files: uploaded in pieces, listed, read and deleted.

use rusqlite::{OptionalExtension, Row, Transaction, params};

use super::schema::{DELETED, SUCCEEDED, UPLOADING, WAITING, WHOLE};
use super::{MAX_ITEMS, Page, Result, Store, StoreError};
use crate::file::{File, Purpose};
use crate::id::{FileId, Owner};

/// Bytes of a piece.
pub(super) const PIECE: usize = 256 * 1024;
/// Results are read in groups of about this size.
const RESULTS: usize = 256 * 1024;
/// Lines of a group at most.
const GROUP: i64 = 256;

/// What a file is before its content.
#[derive(Clone, Debug)]
pub struct NewFile {
    pub owner: Owner,
    pub name: String,
    pub purpose: Purpose,
    pub created: i64,
    /// Seconds after which it goes; `None`: as long as files are kept.
    pub age: Option<i64>,
}

/// A file whose content can be read.
#[derive(Clone, Debug)]
pub struct Stored {
    pub file: File,
    key: i64,
    /// Of results.
    batch: Option<i64>,
}

/// How far a reader is in a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Position(i64);

impl Store {
    /// Begins a file, which nobody sees before it is whole. Returns its key for [`append`](Self::append).
    ///
    /// # Errors
    /// The owner has too many, or there is no room.
    pub fn begin_file(&self, new: &NewFile) -> Result<i64> {
        self.change(|transaction| {
            check_count(transaction, "files", &new.owner)?;
            check_room(transaction, self, &new.owner, 1)?;
            insert(transaction, new, UPLOADING, 0, self.bounds().age, None).map(|(key, _)| key)
        })
    }

    /// Adds the piece `number` to a file that is not yet whole: at most [`Store::piece_bytes`], and less only at its end.
    ///
    /// # Errors
    /// The file is too large, there is no room, or the upload was given up.
    pub fn append(&self, file: i64, number: i64, content: &[u8]) -> Result<()> {
        let length = i64::try_from(content.len()).unwrap_or(i64::MAX);
        self.change(|transaction| {
            let found: Option<(Owner, i64)> = transaction
                .prepare_cached("SELECT owner, bytes FROM files WHERE key = ?1 AND state = ?2")?
                .query_row(params![file, UPLOADING], |row| {
                    Ok((Owner(row.get(0)?), row.get(1)?))
                })
                .optional()?;
            let (owner, bytes) = found.ok_or(StoreError::NoFile)?;
            let limit = self.bounds().file_bytes;
            if bytes.saturating_add(length) > limit {
                return Err(StoreError::FileTooLarge(limit));
            }
            check_room(transaction, self, &owner, length)?;
            transaction
                .prepare_cached("INSERT INTO pieces (file, number, content) VALUES (?1, ?2, ?3)")?
                .execute(params![file, number, content])?;
            transaction
                .prepare_cached("UPDATE files SET bytes = bytes + ?2 WHERE key = ?1")?
                .execute(params![file, length])?;
            Ok(())
        })
    }

    /// Bytes of a piece.
    pub const fn piece_bytes() -> usize {
        PIECE
    }

    /// The file is whole: from here on its owner sees it. A name or purpose that came after the content counts.
    ///
    /// # Errors
    /// The upload was given up.
    pub fn finish_file(
        &self,
        key: i64,
        name: &str,
        purpose: Purpose,
        age: Option<i64>,
    ) -> Result<File> {
        self.change(|transaction| {
            let changed = transaction.execute(
                "UPDATE files SET state = ?2, name = ?3, purpose = ?4, expires = created + ?5
                 WHERE key = ?1 AND state = ?6",
                params![
                    key,
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
            let sql = format!("SELECT {COLUMNS} FROM files WHERE key = ?1");
            Ok(transaction.query_row(&sql, [key], stored)?.file)
        })
    }

    /// Removes a file that did not become whole.
    ///
    /// # Errors
    /// The database failed.
    pub fn abandon_file(&self, key: i64) -> Result<()> {
        self.change(|transaction| {
            let sql = "DELETE FROM files WHERE key = ?1 AND state = ?2";
            if transaction.execute(sql, params![key, UPLOADING])? > 0 {
                transaction.execute("DELETE FROM pieces WHERE file = ?1", [key])?;
            }
            Ok(())
        })
    }

    /// A file of `owner`.
    ///
    /// # Errors
    /// [`StoreError::NoFile`].
    pub fn file(&self, owner: &Owner, id: FileId, now: i64) -> Result<Stored> {
        self.read(|transaction| find(transaction, owner, id, now))
    }

    /// Files of `owner`, and whether there are more.
    ///
    /// # Errors
    /// The page is to follow a file that is not there.
    pub fn files(
        &self,
        owner: &Owner,
        purpose: Option<Purpose>,
        page: &Page,
        now: i64,
    ) -> Result<(Vec<File>, bool)> {
        self.read(|transaction| {
            let after = page.after.as_deref().map(|after| {
                let id = FileId::parse(after).ok_or(StoreError::NoFile)?;
                find(transaction, owner, id, now).map(|found| found.key)
            });
            let after = after.transpose()?;
            let order = Page::order(page.is_descending);
            let beyond = if page.is_descending { "<" } else { ">" };
            let sql = format!(
                "SELECT {COLUMNS} FROM files WHERE owner = ?1 AND state = ?2 AND expires > ?3
                 AND (?4 IS NULL OR key {beyond} ?4) AND purpose != ?5 AND (?6 IS NULL OR purpose = ?6)
                 {order} LIMIT ?7"
            );
            let mut statement = transaction.prepare_cached(&sql)?;
            let purpose = purpose.map(Purpose::as_str);
            let hidden = Purpose::Requests.as_str();
            let rows = statement.query_map(
                params![owner.0, WHOLE, now, after, hidden, purpose, page.rows()],
                stored,
            )?;
            let rows = rows.map(|row| row.map(|row| row.file)).collect::<rusqlite::Result<_>>()?;
            Ok(page.cut(rows))
        })
    }

    /// Deletes a file of `owner`. What a batch that has not ended still needs stays until then.
    ///
    /// # Errors
    /// [`StoreError::NoFile`].
    pub fn delete_file(&self, owner: &Owner, id: FileId, now: i64) -> Result<()> {
        self.change(|transaction| {
            let found = find(transaction, owner, id, now)?;
            remove(transaction, found.key, found.batch)
        })
    }

    /// The content of a file from `position` on, about a quarter of a megabyte, and where to read on; `None`: it has
    /// ended. A file that is deleted meanwhile is [`StoreError::NoFile`].
    ///
    /// # Errors
    /// The file was deleted.
    pub fn read_file(
        &self,
        stored: &Stored,
        position: Position,
    ) -> Result<Option<(Vec<u8>, Position)>> {
        self.read(|transaction| {
            let state: Option<i64> = transaction
                .prepare_cached("SELECT state FROM files WHERE key = ?1")?
                .query_row([stored.key], |row| row.get(0))
                .optional()?;
            state
                .filter(|state| *state == WHOLE)
                .ok_or(StoreError::NoFile)?;
            match stored.batch {
                None => {
                    let piece = piece(transaction, stored.key, position.0)?;
                    Ok(piece.map(|piece| (piece, Position(position.0 + 1))))
                }
                Some(batch) => {
                    let succeeded = stored.file.purpose == Purpose::BatchOutput
                        && is_output(transaction, batch, stored.file.id)?;
                    results(transaction, batch, Some(succeeded), position)
                }
            }
        })
    }
}

/// The piece `number` of a file.
pub(super) fn piece(
    transaction: &Transaction<'_>,
    file: i64,
    number: i64,
) -> Result<Option<Vec<u8>>> {
    let sql = "SELECT content FROM pieces WHERE file = ?1 AND number = ?2";
    let mut statement = transaction.prepare_cached(sql)?;
    Ok(statement
        .query_row(params![file, number], |row| row.get(0))
        .optional()?)
}

/// Results of a batch by their lines: of those that succeeded, of the others, or of all.
pub(super) fn results(
    transaction: &Transaction<'_>,
    batch: i64,
    succeeded: Option<bool>,
    position: Position,
) -> Result<Option<(Vec<u8>, Position)>> {
    let states = match succeeded {
        Some(true) => format!("state = {SUCCEEDED}"),
        Some(false) => format!("state NOT IN ({WAITING}, {SUCCEEDED})"),
        None => format!("state != {WAITING}"),
    };
    let sql = format!(
        "SELECT number, result FROM lines WHERE batch = ?1 AND number > ?2 AND result IS NOT NULL AND {states}
         ORDER BY number LIMIT {GROUP}"
    );
    let mut statement = transaction.prepare_cached(&sql)?;
    let mut rows = statement.query(params![batch, position.0])?;
    let (mut content, mut position) = (Vec::new(), position);
    while content.len() < RESULTS
        && let Some(row) = rows.next()?
    {
        position = Position(row.get(0)?);
        content.extend_from_slice(row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?);
    }
    Ok((!content.is_empty()).then_some((content, position)))
}

fn is_output(transaction: &Transaction<'_>, batch: i64, file: FileId) -> Result<bool> {
    let sql = "SELECT 1 FROM batches WHERE key = ?1 AND output_id = ?2";
    let mut statement = transaction.prepare_cached(sql)?;
    Ok(statement.exists(params![batch, file.0.to_be_bytes()])?)
}

const COLUMNS: &str = "key, id, name, purpose, bytes, created, expires, batch";

fn stored(row: &Row<'_>) -> rusqlite::Result<Stored> {
    let purpose: String = row.get(3)?;
    Ok(Stored {
        key: row.get(0)?,
        batch: row.get(7)?,
        file: File {
            id: FileId(u128::from_be_bytes(row.get(1)?)),
            name: row.get(2)?,
            purpose: Purpose::parse(&purpose).unwrap_or(Purpose::Requests),
            bytes: row.get(4)?,
            created: row.get(5)?,
            expires: row.get(6)?,
        },
    })
}

pub(super) fn find(
    transaction: &Transaction<'_>,
    owner: &Owner,
    id: FileId,
    now: i64,
) -> Result<Stored> {
    let sql = format!(
        "SELECT {COLUMNS} FROM files WHERE id = ?1 AND owner = ?2 AND state = ?3 AND expires > ?4 AND purpose != ?5"
    );
    let mut statement = transaction.prepare_cached(&sql)?;
    let id = id.0.to_be_bytes();
    let hidden = Purpose::Requests.as_str();
    let found = statement.query_row(params![id, owner.0, WHOLE, now, hidden], stored);
    found.optional()?.ok_or(StoreError::NoFile)
}

impl Stored {
    pub(super) fn key(&self) -> i64 {
        self.key
    }

    /// Whether it is the results of a batch.
    pub fn is_result(&self) -> bool {
        self.batch.is_some()
    }
}

/// Adds a file; `batch`: whose results it is.
pub(super) fn insert(
    transaction: &Transaction<'_>,
    new: &NewFile,
    state: i64,
    bytes: i64,
    age: i64,
    batch: Option<i64>,
) -> Result<(i64, FileId)> {
    let id = FileId::new();
    transaction.execute(
        "INSERT INTO files (id, owner, name, purpose, state, bytes, created, expires, batch)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            id.0.to_be_bytes(),
            new.owner.0,
            new.name,
            new.purpose.as_str(),
            state,
            bytes,
            new.created,
            new.created.saturating_add(new.age.unwrap_or(age)),
            batch
        ],
    )?;
    Ok((transaction.last_insert_rowid(), id))
}

/// Removes a file, or hides it until the batches that need it have ended.
pub(super) fn remove(transaction: &Transaction<'_>, key: i64, batch: Option<i64>) -> Result<()> {
    if let Some(batch) = batch {
        let id: Vec<u8> =
            transaction.query_row("SELECT id FROM files WHERE key = ?1", [key], |row| {
                row.get(0)
            })?;
        let succeeded = transaction.execute(
            "UPDATE batches SET output_id = NULL WHERE key = ?1 AND output_id = ?2",
            params![batch, id],
        )? > 0;
        let states = match succeeded {
            true => format!("state = {SUCCEEDED}"),
            false => format!("state NOT IN ({WAITING}, {SUCCEEDED})"),
        };
        if !succeeded {
            transaction.execute(
                "UPDATE batches SET failures_id = NULL WHERE key = ?1",
                [batch],
            )?;
        }
        let freed: i64 = transaction.query_row(
            &format!(
                "SELECT COALESCE(SUM(LENGTH(result)), 0) FROM lines WHERE batch = ?1 AND {states}"
            ),
            [batch],
            |row| row.get(0),
        )?;
        transaction.execute(
            &format!("UPDATE lines SET result = NULL WHERE batch = ?1 AND {states}"),
            [batch],
        )?;
        transaction.execute(
            "UPDATE batches SET bytes = MAX(bytes - ?2, 0) WHERE key = ?1",
            params![batch, freed],
        )?;
        transaction.execute("DELETE FROM files WHERE key = ?1", [key])?;
        return Ok(());
    }
    let needed = "SELECT 1 FROM batches WHERE input = ?1 AND ended IS NULL";
    if transaction.prepare_cached(needed)?.exists([key])? {
        transaction.execute(
            "UPDATE files SET state = ?2 WHERE key = ?1",
            params![key, DELETED],
        )?;
    } else {
        transaction.execute("DELETE FROM pieces WHERE file = ?1", [key])?;
        transaction.execute("DELETE FROM files WHERE key = ?1", [key])?;
    }
    Ok(())
}

/// Whether the owner may have one more row of `table`.
pub(super) fn check_count(transaction: &Transaction<'_>, table: &str, owner: &Owner) -> Result<()> {
    let sql = format!("SELECT COUNT(*) FROM {table} WHERE owner = ?1");
    let count: i64 = transaction
        .prepare_cached(&sql)?
        .query_row([owner.0], |row| row.get(0))?;
    match count < MAX_ITEMS {
        true => Ok(()),
        false => Err(StoreError::TooMany),
    }
}

/// Whether there is room for `more` bytes of `owner`.
pub(super) fn check_room(
    transaction: &Transaction<'_>,
    store: &Store,
    owner: &Owner,
    more: i64,
) -> Result<()> {
    // What results take is counted with their batches.
    let sql =
        "SELECT COALESCE(SUM(bytes), 0), COALESCE(SUM(bytes) FILTER (WHERE owner = ?1), 0) FROM (
                   SELECT owner, bytes FROM files WHERE batch IS NULL
                   UNION ALL SELECT owner, bytes FROM batches)";
    let mut statement = transaction.prepare_cached(sql)?;
    let (all, own): (i64, i64) =
        statement.query_row([owner.0], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let bounds = store.bounds();
    if own.saturating_add(more) > bounds.owner_bytes {
        return Err(StoreError::OwnerFull(bounds.owner_bytes));
    }
    if all.saturating_add(more) > bounds.bytes {
        return Err(StoreError::Full(bounds.bytes));
    }
    Ok(())
}
