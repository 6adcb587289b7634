//! One set of queries for two engines. Owns what a query may ask of either: the queries are written as SQLite reads
//! them, and PostgreSQL's side translates. It does not know the tables.

use super::database::DatabaseError;
use super::postgres::{self, Postgres};
use super::sqlite::{self, Sqlite};
use super::value::Value;

type Result<T> = std::result::Result<T, DatabaseError>;

/// What keeps the tables.
#[derive(Debug)]
pub(super) enum Engine {
    Sqlite(Box<Sqlite>),
    Postgres(Box<Postgres>),
}

impl Engine {
    /// Does `work` as a whole or not at all; nobody else writes meanwhile.
    pub(super) fn change<T, E: From<DatabaseError>>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        match self {
            Self::Sqlite(sqlite) => {
                sqlite.change(|transaction| work(&Transaction::Sqlite(transaction)))
            }
            Self::Postgres(postgres) => {
                postgres.change(|transaction| work(&Transaction::Postgres(transaction)))
            }
        }
    }

    /// Reads what was there at one moment.
    pub(super) fn read<T, E: From<DatabaseError>>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        match self {
            Self::Sqlite(sqlite) => {
                sqlite.read(|transaction| work(&Transaction::Sqlite(transaction)))
            }
            Self::Postgres(postgres) => {
                postgres.read(|transaction| work(&Transaction::Postgres(transaction)))
            }
        }
    }

    /// Gives room of what was removed back, where the database does not do so by itself.
    pub(super) fn tidy(&self) -> Result<()> {
        match self {
            Self::Sqlite(sqlite) => Ok(sqlite.vacuum()?),
            Self::Postgres(_) => Ok(()),
        }
    }
}

/// What is done as a whole or not at all.
pub(super) enum Transaction<'a> {
    Sqlite(&'a sqlite::Transaction<'a>),
    Postgres(&'a postgres::Transaction<'a>),
}

impl Transaction<'_> {
    /// The time by which leases are compared: the database's own where several machines share it, for their clocks
    /// differ; else `now`.
    pub(super) fn clock(&self, now: i64) -> Result<i64> {
        match self {
            Self::Sqlite(_) => Ok(now),
            Self::Postgres(transaction) => Ok(transaction.clock(now)?),
        }
    }

    /// Runs a statement; returns how many rows it changed.
    pub(super) fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<u64> {
        match self {
            Self::Sqlite(transaction) => Ok(sqlite::execute(transaction, sql, values)?),
            Self::Postgres(transaction) => Ok(transaction.execute(sql, values)?),
        }
    }

    /// Runs a statement with each of `rows`, without waiting between two; returns how many rows each changed.
    pub(super) fn execute_all<'v, const N: usize>(
        &self,
        sql: &str,
        rows: impl IntoIterator<Item = [Value<'v>; N]>,
    ) -> Result<Vec<u64>> {
        match self {
            Self::Sqlite(transaction) => Ok(sqlite::execute_all(transaction, sql, rows)?),
            Self::Postgres(transaction) => Ok(transaction.execute_all(sql, rows)?),
        }
    }

    /// All rows that a statement returns: it bounds them.
    pub(super) fn query<T>(
        &self,
        sql: &str,
        values: &[Value<'_>],
        mut read: impl FnMut(&Row<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        match self {
            Self::Sqlite(transaction) => {
                sqlite::query(transaction, sql, values, |row| read(&Row::Sqlite(row)))
            }
            Self::Postgres(transaction) => {
                let rows = transaction.query(sql, values)?;
                rows.iter().map(|row| read(&Row::Postgres(row))).collect()
            }
        }
    }

    /// The first row that a statement returns, which returns one at most.
    pub(super) fn query_row<T>(
        &self,
        sql: &str,
        values: &[Value<'_>],
        read: impl FnMut(&Row<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        Ok(self.query(sql, values, read)?.into_iter().next())
    }

    /// The integer that a statement returns in any case.
    pub(super) fn integer(&self, sql: &str, values: &[Value<'_>]) -> Result<i64> {
        let found = self.query_row(sql, values, |row| row.integer(0))?;
        found.ok_or(DatabaseError::Form)
    }

    /// Whether a statement returns a row.
    pub(super) fn exists(&self, sql: &str, values: &[Value<'_>]) -> Result<bool> {
        Ok(self.query_row(sql, values, |_| Ok(()))?.is_some())
    }
}

/// A row that a statement returned.
pub(super) enum Row<'a> {
    Sqlite(&'a rusqlite::Row<'a>),
    Postgres(&'a postgres::Row),
}

impl Row<'_> {
    pub(super) fn maybe_integer(&self, column: usize) -> Result<Option<i64>> {
        match self {
            Self::Sqlite(row) => Ok(row.get(column)?),
            Self::Postgres(row) => Ok(postgres::column(row, column)?),
        }
    }

    pub(super) fn integer(&self, column: usize) -> Result<i64> {
        self.maybe_integer(column)?.ok_or(DatabaseError::Form)
    }

    pub(super) fn maybe_text(&self, column: usize) -> Result<Option<String>> {
        match self {
            Self::Sqlite(row) => Ok(row.get(column)?),
            Self::Postgres(row) => Ok(postgres::text(row, column)?),
        }
    }

    pub(super) fn text(&self, column: usize) -> Result<String> {
        self.maybe_text(column)?.ok_or(DatabaseError::Form)
    }

    pub(super) fn maybe_blob(&self, column: usize) -> Result<Option<&[u8]>> {
        match self {
            Self::Sqlite(row) => {
                let blob = row.get_ref(column)?.as_blob_or_null();
                Ok(blob.map_err(rusqlite::Error::from)?)
            }
            Self::Postgres(row) => Ok(postgres::column(row, column)?),
        }
    }

    pub(super) fn blob(&self, column: usize) -> Result<&[u8]> {
        self.maybe_blob(column)?.ok_or(DatabaseError::Form)
    }

    pub(super) fn maybe_id(&self, column: usize) -> Result<Option<[u8; 16]>> {
        let blob = self.maybe_blob(column)?;
        let id = blob.map(<[u8; 16]>::try_from).transpose();
        id.map_err(|_| DatabaseError::Form)
    }

    pub(super) fn id(&self, column: usize) -> Result<[u8; 16]> {
        self.maybe_id(column)?.ok_or(DatabaseError::Form)
    }
}
