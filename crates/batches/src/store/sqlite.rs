//! SQLite: one file of one machine, for several processes. Owns its connections and how they are opened.

use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags, ToSql, TransactionBehavior, params_from_iter};

use super::database::DatabaseError;
use super::value::Value;

pub(super) type Transaction<'a> = rusqlite::Transaction<'a>;

/// How long a call waits for another process that writes.
const PATIENCE: Duration = Duration::from_secs(10);
/// Statements that a connection keeps prepared: all that there are.
const STATEMENTS: usize = 128;
/// Pages that one call gives back to the file system, of 4 KiB.
const PAGES: i64 = 8192;

/// See the module.
#[derive(Debug)]
pub(super) struct Sqlite {
    /// For whatever changes something.
    writer: Mutex<Connection>,
    /// Reads while another connection writes.
    reader: Mutex<Connection>,
}

impl Sqlite {
    /// Opens `path`, and makes the tables that `steps` lead to of those that are there; returns their version as well.
    pub(super) fn open(path: &Path, steps: &[&str]) -> rusqlite::Result<(Self, i64)> {
        let mut writer = connect(path)?;
        let found = prepare(&mut writer, steps)?;
        let opened = Self {
            writer: Mutex::new(writer),
            reader: Mutex::new(connect(path)?),
        };
        Ok((opened, found))
    }

    pub(super) fn change<T, E: From<DatabaseError>>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut writer = self.writer.lock();
        // From its first statement on nobody else writes: two that read and then write would fail each other.
        let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = transaction.map_err(DatabaseError::from)?;
        let done = work(&transaction)?;
        transaction.commit().map_err(DatabaseError::from)?;
        Ok(done)
    }

    pub(super) fn read<T, E: From<DatabaseError>>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut reader = self.reader.lock();
        let transaction = reader.transaction().map_err(DatabaseError::from)?;
        work(&transaction)
    }

    pub(super) fn vacuum(&self) -> rusqlite::Result<()> {
        let writer = self.writer.lock();
        let mut vacuum = writer.prepare(&format!("PRAGMA incremental_vacuum({PAGES})"))?;
        let mut rows = vacuum.query([])?;
        while rows.next()?.is_some() {}
        Ok(())
    }
}

pub(super) fn execute(
    transaction: &Transaction<'_>,
    sql: &str,
    values: &[Value<'_>],
) -> rusqlite::Result<u64> {
    let changed = transaction
        .prepare_cached(sql)?
        .execute(params_from_iter(values))?;
    Ok(changed as u64)
}

pub(super) fn execute_all<'v, const N: usize>(
    transaction: &Transaction<'_>,
    sql: &str,
    rows: impl IntoIterator<Item = [Value<'v>; N]>,
) -> rusqlite::Result<Vec<u64>> {
    let mut statement = transaction.prepare_cached(sql)?;
    let rows = rows.into_iter();
    rows.map(|values| Ok(statement.execute(params_from_iter(values))? as u64))
        .collect()
}

pub(super) fn query<T, E: From<rusqlite::Error>>(
    transaction: &Transaction<'_>,
    sql: &str,
    values: &[Value<'_>],
    mut read: impl FnMut(&rusqlite::Row<'_>) -> Result<T, E>,
) -> Result<Vec<T>, E> {
    let mut statement = transaction.prepare_cached(sql)?;
    let mut rows = statement.query(params_from_iter(values))?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(read(row)?);
    }
    Ok(all)
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Integer(Some(value)) => ValueRef::Integer(*value),
            Self::Text(Some(text)) => ValueRef::Text(text.as_bytes()),
            Self::Blob(Some(blob)) => ValueRef::Blob(blob),
            Self::Id(Some(id)) => ValueRef::Blob(id),
            Self::Integer(None) | Self::Text(None) | Self::Blob(None) | Self::Id(None) => {
                ValueRef::Null
            }
        }))
    }
}

/// A connection whose changes survive a crash of the machine once they are committed.
fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(PATIENCE)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // Only before the first table: what is deleted may give its room back.
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    // Readers and one writer at once.
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

/// Takes the steps that were not yet taken; returns the version of the tables that are there now.
fn prepare(connection: &mut Connection, steps: &[&str]) -> rusqlite::Result<i64> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut version: i64 =
        transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    for step in steps.iter().skip(usize::try_from(version).unwrap_or(0)) {
        transaction.execute_batch(step)?;
        version += 1;
    }
    transaction.pragma_update(None, "user_version", version)?;
    transaction.commit()?;
    Ok(version)
}
