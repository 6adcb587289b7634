//! Files that are whole: listed, read and deleted.

use super::contents::{self, Object, ObjectId, Part, Position, Source};
use super::database::DatabaseError;
use super::schema::{DELETED, SUCCEEDED, WAITING, WHOLE};
use super::sql::{Row, Transaction};
use super::value::values;
use super::{MAX_ITEMS, Page, Result, Store, StoreError};
use crate::file::{File, Purpose};
use crate::id::{FileId, Owner};

/// Results are read in groups of about this size.
const RESULTS: i64 = 512 * 1024;
/// Lines of a group at most.
const GROUP: i64 = 2048;

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
    object: Option<Object>,
}

impl Store {
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
            let purpose = purpose.map(Purpose::as_str);
            let hidden = Purpose::Requests.as_str();
            let values = values![owner.0, WHOLE, now, after, hidden, purpose, page.rows()];
            let rows = transaction.query(&sql, &values, |row| Ok(stored(row)?.file))?;
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

    /// The content of a file from `position` on, about half a megabyte, and where to read on; `None`: it has ended. A file
    /// that is deleted meanwhile is [`StoreError::NoFile`].
    ///
    /// # Errors
    /// The file was deleted, or the store failed.
    pub fn read_file(&self, stored: &Stored, position: Position) -> Result<Part> {
        let (part, object) = self.read(|transaction| {
            let sql = "SELECT state FROM files WHERE key = ?1";
            let state = transaction.query_row(sql, &values![stored.key], |row| row.integer(0))?;
            state
                .filter(|state| *state == WHOLE)
                .ok_or(StoreError::NoFile)?;
            if let Some(object) = stored.object {
                return Ok((None, Some(object)));
            }
            let part = match stored.batch {
                None => contents::piece(transaction, stored.key, position.0)?,
                Some(batch) => {
                    let succeeded = is_output(transaction, batch, stored.file.id)?;
                    results(transaction, batch, Some(succeeded), position)?
                }
            };
            Ok((part, None))
        })?;
        match object {
            Some(object) => self.bucket()?.read(object, position),
            None => Ok(part),
        }
    }

    /// A part of the content of a file, whatever its state.
    pub(super) fn read_source(&self, source: Source, position: Position) -> Result<Part> {
        match source {
            Source::Pieces(file) => {
                self.read(|transaction| contents::piece(transaction, file, position.0))
            }
            Source::Object(object) => self.bucket()?.read(object, position),
        }
    }
}

/// Results of a batch by their lines: of those that succeeded, of the others, or of all.
pub(super) fn results(
    transaction: &Transaction<'_>,
    batch: i64,
    succeeded: Option<bool>,
    position: Position,
) -> Result<Part> {
    let states = states(succeeded);
    let those =
        format!("FROM lines WHERE batch = ?1 AND number > ?2 AND result IS NOT NULL AND {states}");
    // Which they are, by their lengths: no more is read than is returned.
    let sql = format!(
        "SELECT number, CAST(LENGTH(result) AS BIGINT) {those} ORDER BY number LIMIT {GROUP}"
    );
    let (mut last, mut total) = (position, 0_i64);
    let lengths = transaction.query(&sql, &values![batch, position.0], |row| {
        Ok((row.integer(0)?, row.integer(1)?))
    })?;
    for (number, length) in lengths {
        if total >= RESULTS {
            break;
        }
        (last, total) = (Position(number), total.saturating_add(length));
    }
    let sql = format!("SELECT result {those} AND number <= ?3 ORDER BY number");
    let mut content = Vec::new();
    transaction.query(&sql, &values![batch, position.0, last.0], |row| {
        content.extend_from_slice(row.blob(0)?);
        Ok(())
    })?;
    Ok((!content.is_empty()).then_some((content, last)))
}

fn is_output(transaction: &Transaction<'_>, batch: i64, file: FileId) -> Result<bool> {
    let sql = "SELECT 1 FROM batches WHERE key = ?1 AND output_id = ?2";
    Ok(transaction.exists(sql, &values![batch, file.0.to_be_bytes()])?)
}

pub(super) const COLUMNS: &str = "key, id, name, purpose, bytes, created, expires, batch, object";

pub(super) fn stored(row: &Row<'_>) -> std::result::Result<Stored, DatabaseError> {
    let purpose = row.text(3)?;
    let bytes = row.integer(4)?;
    Ok(Stored {
        key: row.integer(0)?,
        batch: row.maybe_integer(7)?,
        object: row.maybe_id(8)?.map(|id| Object { id, bytes }),
        file: File {
            id: FileId(u128::from_be_bytes(row.id(1)?)),
            name: row.text(2)?,
            purpose: Purpose::parse(&purpose).unwrap_or(Purpose::Requests),
            bytes,
            created: row.integer(5)?,
            expires: row.integer(6)?,
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
    let id = id.0.to_be_bytes();
    let hidden = Purpose::Requests.as_str();
    let found = transaction.query_row(&sql, &values![id, owner.0, WHOLE, now, hidden], stored)?;
    found.ok_or(StoreError::NoFile)
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

/// Adds a file; `batch`: whose results it is; `object`: has its content.
pub(super) fn insert(
    transaction: &Transaction<'_>,
    new: &NewFile,
    state: i64,
    bytes: i64,
    age: i64,
    batch: Option<i64>,
    object: Option<ObjectId>,
) -> Result<(i64, FileId)> {
    let id = FileId::new();
    let key = transaction.integer(
        "INSERT INTO files (id, owner, name, purpose, state, bytes, created, expires, batch, object)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) RETURNING key",
        &values![
            id.0.to_be_bytes(),
            new.owner.0,
            new.name.as_str(),
            new.purpose.as_str(),
            state,
            bytes,
            new.created,
            new.created.saturating_add(new.age.unwrap_or(age)),
            batch,
            object
        ],
    )?;
    Ok((key, id))
}

/// Removes a file, or hides it until the batches that need it have ended.
pub(super) fn remove(transaction: &Transaction<'_>, key: i64, batch: Option<i64>) -> Result<()> {
    let needed = "SELECT 1 FROM batches WHERE input = ?1 AND ended IS NULL";
    match batch {
        Some(batch) => remove_results(transaction, key, batch)?,
        None if transaction.exists(needed, &values![key])? => {
            let sql = "UPDATE files SET state = ?2 WHERE key = ?1";
            transaction.execute(sql, &values![key, DELETED])?;
            return Ok(());
        }
        None => drop(transaction.execute("DELETE FROM pieces WHERE file = ?1", &values![key])?),
    }
    contents::forget(transaction, "files", "key", key)?;
    transaction.execute("DELETE FROM files WHERE key = ?1", &values![key])?;
    Ok(())
}

/// Frees the results of a batch that a file has.
fn remove_results(transaction: &Transaction<'_>, key: i64, batch: i64) -> Result<()> {
    let sql = "SELECT id, object, bytes FROM files WHERE key = ?1";
    let found = transaction.query_row(sql, &values![key], |row| {
        Ok((row.id(0)?, row.maybe_id(1)?.is_some(), row.integer(2)?))
    })?;
    let Some((id, is_object, bytes)) = found else {
        return Ok(());
    };
    let sql = "UPDATE batches SET output_id = NULL WHERE key = ?1 AND output_id = ?2";
    let succeeded = transaction.execute(sql, &values![batch, id])? > 0;
    if !succeeded {
        let sql = "UPDATE batches SET failures_id = NULL WHERE key = ?1";
        transaction.execute(sql, &values![batch])?;
    }
    if !is_object {
        let states = states(Some(succeeded));
        let sql = format!("UPDATE lines SET result = NULL WHERE batch = ?1 AND {states}");
        transaction.execute(&sql, &values![batch])?;
    }
    transaction.execute(
        "UPDATE batches SET bytes = CASE WHEN bytes > ?2 THEN bytes - ?2 ELSE 0 END WHERE key = ?1",
        &values![batch, bytes],
    )?;
    Ok(())
}

/// The lines that succeeded, the others, or all that have results.
pub(super) fn states(succeeded: Option<bool>) -> String {
    match succeeded {
        Some(true) => format!("state = {SUCCEEDED}"),
        Some(false) => format!("state NOT IN ({WAITING}, {SUCCEEDED})"),
        None => format!("state != {WAITING}"),
    }
}

/// Whether the owner may have one more row of `table`.
pub(super) fn check_count(transaction: &Transaction<'_>, table: &str, owner: &Owner) -> Result<()> {
    let sql = format!("SELECT COUNT(*) FROM {table} WHERE owner = ?1");
    match transaction.integer(&sql, &values![owner.0])? < MAX_ITEMS {
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
    let sql = "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT),
                      CAST(COALESCE(SUM(bytes) FILTER (WHERE owner = ?1), 0) AS BIGINT)
               FROM (SELECT owner, bytes FROM files WHERE batch IS NULL
                     UNION ALL SELECT owner, bytes FROM batches) AS kept";
    let sums = transaction.query_row(sql, &values![owner.0], |row| {
        Ok((row.integer(0)?, row.integer(1)?))
    })?;
    let (all, own) = sums.unwrap_or_default();
    let bounds = store.bounds();
    if own.saturating_add(more) > bounds.owner_bytes {
        return Err(StoreError::OwnerFull(bounds.owner_bytes));
    }
    if all.saturating_add(more) > bounds.bytes {
        return Err(StoreError::Full(bounds.bytes));
    }
    Ok(())
}
