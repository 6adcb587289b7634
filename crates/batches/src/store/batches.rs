//! Batches: created, listed, looked at, cancelled and deleted by their owners.

use serde_json::value::RawValue;

use super::bucket::Bucket;
use super::contents::{self, Object, Part, Position};
use super::database::DatabaseError;
use super::files::{self, NewFile};
use super::schema::WHOLE;
use super::sql::{Row, Transaction};
use super::value::values;
use super::{Page, Result, Store, StoreError};
use crate::batch::{Batch, Counts, Dialect, Status};
use crate::file::Purpose;
use crate::id::{BatchId, FileId, Owner};
use crate::input::InputErrors;
use crate::usage::Usage;
use crate::window::Window;

/// What a batch is asked to be.
#[derive(Clone, Debug)]
pub struct NewBatch {
    pub owner: Owner,
    pub dialect: Dialect,
    pub endpoint: String,
    pub window: Window,
    /// An object of JSON.
    pub metadata: Option<Box<RawValue>>,
    /// Seconds that its results are kept; `None`: as long as files are.
    pub results_age: Option<i64>,
    pub created: i64,
}

impl Store {
    /// Creates a batch of the lines of a file.
    ///
    /// # Errors
    /// There is no such file for batches, or the owner has too many batches.
    pub fn create_batch(&self, new: &NewBatch, input: FileId) -> Result<Batch> {
        let id = BatchId::new();
        let created = self.change(|transaction| {
            let found = files::find(transaction, &new.owner, input, new.created)?;
            if found.file.purpose != Purpose::Batch {
                return Err(StoreError::NoFile);
            }
            insert(transaction, new, id, found.key(), input)
        });
        self.settled(created, new, id)
    }

    /// What became of a batch: where the answer of the database was lost, it may be there all the same, and a client that
    /// is refused would create another one.
    fn settled(&self, created: Result<Batch>, new: &NewBatch, id: BatchId) -> Result<Batch> {
        let Err(StoreError::Database(_)) = &created else {
            return created;
        };
        // The transaction that was broken off has ended before another one writes.
        let found = self.change(|transaction| find(transaction, &new.owner, new.dialect, id));
        found.map(|(_, batch)| batch).or(created)
    }

    /// Creates a batch of `requests`, which [`check_lines`](super::check_lines) found nothing wrong with: the lines of a
    /// file that its owner does not see.
    ///
    /// # Errors
    /// The owner has too many batches, or there is no room.
    pub fn create_batch_of(&self, new: &NewBatch, requests: &[u8]) -> Result<Batch> {
        let bytes = i64::try_from(requests.len()).unwrap_or(i64::MAX);
        let put = |bucket: &Bucket| {
            // What there is no room for is not sent.
            self.read(|transaction| files::check_room(transaction, self, &new.owner, bytes))?;
            bucket.put(requests)
        };
        let object = self.bucket.as_ref().map(put).transpose()?;
        let batch = BatchId::new();
        let created = self.change(|transaction| {
            files::check_room(transaction, self, &new.owner, bytes)?;
            let file = NewFile {
                owner: new.owner,
                name: String::new(),
                purpose: Purpose::Requests,
                created: new.created,
                age: None,
            };
            let (age, object) = (self.bounds().age, object.map(|object| object.id));
            let (key, id) = files::insert(transaction, &file, WHOLE, bytes, age, None, object)?;
            if object.is_none() {
                let pieces = (0_i64..).zip(requests.chunks(contents::PIECE));
                let rows = pieces.map(|(number, piece)| values![key, number, piece]);
                transaction.execute_all(contents::INSERT_PIECE, rows)?;
            }
            let batch = insert(transaction, new, batch, key, id)?;
            // They are whole lines already.
            let total = requests.iter().filter(|byte| **byte == b'\n').count();
            transaction.execute(
                "UPDATE batches SET total = ?2 WHERE id = ?1",
                &values![
                    batch.id.0.to_be_bytes(),
                    i64::try_from(total).unwrap_or(i64::MAX)
                ],
            )?;
            Ok(find(transaction, &new.owner, new.dialect, batch.id)?.1)
        });
        if let (Err(error), Some(object)) = (&created, &object)
            && !matches!(error, StoreError::Database(_))
        {
            // Whether the database has it is known only then; else it goes when it is old, if no row names it.
            let _ = self.bucket()?.delete(&object.id);
        }
        self.settled(created, new, batch)
    }

    /// A batch of `owner`.
    ///
    /// # Errors
    /// [`StoreError::NoBatch`].
    pub fn batch(&self, owner: &Owner, dialect: Dialect, id: BatchId) -> Result<Batch> {
        self.read(|transaction| Ok(find(transaction, owner, dialect, id)?.1))
    }

    /// Batches of `owner`, and whether there are more.
    ///
    /// # Errors
    /// The page is to follow a batch that is not there.
    pub fn batches(
        &self,
        owner: &Owner,
        dialect: Dialect,
        page: &Page,
    ) -> Result<(Vec<Batch>, bool)> {
        self.read(|transaction| {
            let key_of = |name: &Option<String>| {
                let parse = match dialect {
                    Dialect::OpenAi => BatchId::parse,
                    Dialect::Anthropic => BatchId::parse_anthropics,
                };
                let name = name.as_deref();
                let key = name.map(|name| {
                    let id = parse(name).ok_or(StoreError::NoBatch)?;
                    find(transaction, owner, dialect, id).map(|(key, _)| key)
                });
                key.transpose()
            };
            let (after, before) = (key_of(&page.after)?, key_of(&page.before)?);
            // The part before a name is read from there, and turned round.
            let is_backwards = before.is_some() && after.is_none();
            let is_descending = page.is_descending != is_backwards;
            let (beyond, within) = match page.is_descending {
                true => ("<", ">"),
                false => (">", "<"),
            };
            let order = Page::order(is_descending);
            let sql = format!(
                "SELECT {COLUMNS} FROM batches WHERE owner = ?1 AND dialect = ?2
                 AND (?3 IS NULL OR key {beyond} ?3) AND (?4 IS NULL OR key {within} ?4) {order} LIMIT ?5"
            );
            let values = values![owner.0, number(dialect), after, before, page.rows()];
            let rows = transaction.query(&sql, &values, |row| Ok(read(row)?.1))?;
            let (mut rows, has_more) = page.cut(rows);
            if is_backwards {
                rows.reverse();
            }
            Ok((rows, has_more))
        })
    }

    /// Asks that no more lines of a batch are run. One that has ended stays as it is.
    ///
    /// # Errors
    /// [`StoreError::NoBatch`]; [`StoreError::Status`]: it has ended.
    pub fn cancel_batch(
        &self,
        owner: &Owner,
        dialect: Dialect,
        id: BatchId,
        now: i64,
    ) -> Result<Batch> {
        self.change(|transaction| {
            let (key, batch) = find(transaction, owner, dialect, id)?;
            if batch.status.is_final() {
                return Err(StoreError::Status(batch.status));
            }
            transaction.execute(
                "UPDATE batches SET status = ?2, cancelling = COALESCE(cancelling, ?3) WHERE key = ?1",
                &values![key, Status::Cancelling.as_str(), now],
            )?;
            Ok(find(transaction, owner, dialect, id)?.1)
        })
    }

    /// Deletes a batch that has ended, with its results.
    ///
    /// # Errors
    /// [`StoreError::NoBatch`]; [`StoreError::Status`]: it has not ended.
    pub fn delete_batch(&self, owner: &Owner, dialect: Dialect, id: BatchId) -> Result<()> {
        self.change(|transaction| {
            let (key, batch) = find(transaction, owner, dialect, id)?;
            if !batch.status.is_final() {
                return Err(StoreError::Status(batch.status));
            }
            remove(transaction, key)
        })
    }

    /// All results of a batch from `position` on, as [`Store::read_file`] has them.
    ///
    /// # Errors
    /// [`StoreError::NoBatch`]: it was deleted.
    pub fn read_results(
        &self,
        owner: &Owner,
        dialect: Dialect,
        id: BatchId,
        position: Position,
    ) -> Result<Part> {
        let (part, object) = self.read(|transaction| {
            let (key, _) = find(transaction, owner, dialect, id)?;
            let sql = "SELECT object, bytes FROM batches WHERE key = ?1 AND object IS NOT NULL";
            let object = transaction.query_row(sql, &values![key], |row| {
                let (id, bytes) = (row.id(0)?, row.integer(1)?);
                Ok(Object { id, bytes })
            })?;
            match object {
                Some(object) => Ok((None, Some(object))),
                None => Ok((files::results(transaction, key, None, position)?, None)),
            }
        })?;
        match object {
            Some(object) => self.bucket()?.read(object, position),
            None => Ok(part),
        }
    }
}

const COLUMNS: &str = "key, id, dialect, endpoint, \"window\", input_id, output_id, failures_id, metadata, status, errors, \
    created, expires, started, cancelling, ended, total, completed, failed, input_tokens, cached_tokens, \
    output_tokens, reasoning_tokens, finalizing";

const fn number(dialect: Dialect) -> i64 {
    match dialect {
        Dialect::OpenAi => 0,
        Dialect::Anthropic => 1,
    }
}

fn insert(
    transaction: &Transaction<'_>,
    new: &NewBatch,
    id: BatchId,
    input: i64,
    input_id: FileId,
) -> Result<Batch> {
    files::check_count(transaction, "batches", &new.owner)?;
    transaction.execute(
        "INSERT INTO batches (id, owner, dialect, endpoint, \"window\", input, input_id, metadata, status, results_age,
                              created, expires)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        &values![
            id.0.to_be_bytes(),
            new.owner.0,
            number(new.dialect),
            new.endpoint.as_str(),
            new.window.to_string().as_str(),
            input,
            input_id.0.to_be_bytes(),
            new.metadata.as_deref().map(RawValue::get),
            Status::Validating.as_str(),
            new.results_age,
            new.created,
            new.created.saturating_add(new.window.seconds()),
        ],
    )?;
    Ok(find(transaction, &new.owner, new.dialect, id)?.1)
}

fn find(
    transaction: &Transaction<'_>,
    owner: &Owner,
    dialect: Dialect,
    id: BatchId,
) -> Result<(i64, Batch)> {
    let sql =
        format!("SELECT {COLUMNS} FROM batches WHERE id = ?1 AND owner = ?2 AND dialect = ?3");
    let values = values![id.0.to_be_bytes(), owner.0, number(dialect)];
    let found = transaction.query_row(&sql, &values, read)?;
    found.ok_or(StoreError::NoBatch)
}

/// The batch of this key.
pub(super) fn by_key(transaction: &Transaction<'_>, key: i64) -> Result<Batch> {
    let sql = format!("SELECT {COLUMNS} FROM batches WHERE key = ?1");
    let found = transaction.query_row(&sql, &values![key], read)?;
    found.map(|(_, batch)| batch).ok_or(StoreError::NoBatch)
}

fn read(row: &Row<'_>) -> std::result::Result<(i64, Batch), DatabaseError> {
    let file = |column: usize| -> std::result::Result<Option<FileId>, DatabaseError> {
        let id = row.maybe_id(column)?;
        Ok(id.map(|id| FileId(u128::from_be_bytes(id))))
    };
    let status = row.text(9)?;
    let known = Status::ALL.into_iter().find(|one| one.as_str() == status);
    let window = row.text(4)?;
    let metadata = row.maybe_text(8)?;
    let errors = row.maybe_text(10)?;
    let errors = errors.and_then(|errors| serde_json::from_str::<InputErrors>(&errors).ok());
    let batch = Batch {
        id: BatchId(u128::from_be_bytes(row.id(1)?)),
        dialect: match row.integer(2)? {
            0 => Dialect::OpenAi,
            _ => Dialect::Anthropic,
        },
        endpoint: row.text(3)?,
        // All that was written can be read; a value that cannot is another program's.
        window: window.parse().unwrap_or(Window::DAY),
        input: FileId(u128::from_be_bytes(row.id(5)?)),
        output: file(6)?,
        failures: file(7)?,
        metadata: metadata.and_then(|text| RawValue::from_string(text).ok()),
        status: known.unwrap_or(Status::Failed),
        errors: errors.unwrap_or_default(),
        created: row.integer(11)?,
        expires: row.integer(12)?,
        started: row.maybe_integer(13)?,
        cancelling: row.maybe_integer(14)?,
        finalizing: row.maybe_integer(23)?,
        ended: row.maybe_integer(15)?,
        counts: Counts {
            total: row.integer(16)?,
            completed: row.integer(17)?,
            failed: row.integer(18)?,
        },
        usage: Usage {
            input: row.integer(19)?,
            cached: row.integer(20)?,
            output: row.integer(21)?,
            reasoning: row.integer(22)?,
        },
    };
    Ok((row.integer(0)?, batch))
}

/// Removes a batch with everything that is only its own.
pub(super) fn remove(transaction: &Transaction<'_>, key: i64) -> Result<()> {
    let input = transaction.integer("SELECT input FROM batches WHERE key = ?1", &values![key])?;
    transaction.execute("DELETE FROM lines WHERE batch = ?1", &values![key])?;
    contents::forget(transaction, "files", "batch", key)?;
    contents::forget(transaction, "batches", "key", key)?;
    transaction.execute("DELETE FROM files WHERE batch = ?1", &values![key])?;
    transaction.execute("DELETE FROM batches WHERE key = ?1", &values![key])?;
    let sql = "SELECT 1 FROM files WHERE key = ?1 AND purpose = ?2";
    if transaction.exists(sql, &values![input, Purpose::Requests.as_str()])? {
        files::remove(transaction, input, None)?;
    }
    Ok(())
}
