//! PostgreSQL: one database of several machines. Owns its connections, how long a call may take, and how a query in
//! SQLite's spelling is put to it. Every call blocks, and none may be made where tasks run.
//!
//! A connection that a call failed on is closed, and the next call makes a new one: nothing is known of its state.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;

use futures_util::future::try_join_all;
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Config, NoTls, Statement};

use super::database::DatabaseError;
use super::encrypted::Encrypted;
use super::value::Value;

pub(super) use tokio_postgres::Row;

type Result<T> = std::result::Result<T, DatabaseError>;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long an answer may take: longer than the server's own limits, which say more.
const ANSWER: Duration = Duration::from_secs(30);
/// The server gives up what takes longer: a lock that another gateway holds, a statement, and a transaction whose
/// gateway has gone silent, which would keep all others from writing. Whatever is ordered has an index of that order; of a
/// table that has just grown, the server has no statistics, and would sort the rest of a batch for each of its parts.
const LIMITS: &str = "SET lock_timeout = '10s'; SET statement_timeout = '20s';
    SET idle_in_transaction_session_timeout = '10s'; SET synchronous_commit = on;
    SET enable_sort = off; SET client_min_messages = warning";
/// The lock of the gateway that writes: `inflight` as a number.
const WRITER: i64 = i64::from_be_bytes(*b"inflight");

/// See the module.
#[derive(Debug)]
pub(super) struct Postgres {
    writer: Mutex<Link>,
    /// Reads while another connection writes.
    reader: Mutex<Link>,
    clock: Clock,
}

/// Whose time leases have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clock {
    Server,
    /// What a test says.
    #[cfg(test)]
    Caller,
}

/// A connection, once there is one.
#[derive(Debug)]
struct Link {
    config: Config,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    client: Client,
    /// Drives the connection while a call waits, and closes it when it goes.
    runtime: Option<Runtime>,
    /// By their text.
    statements: RefCell<HashMap<String, Statement>>,
}

/// What is done as a whole or not at all.
pub(super) struct Transaction<'a> {
    open: &'a Open,
    clock: Clock,
}

impl Postgres {
    /// Connects, and makes the tables that `steps` lead to of those that are there; returns their version as well.
    pub(super) fn open(config: Config, clock: Clock, steps: &[&str]) -> Result<(Self, i64)> {
        let link = || {
            Mutex::new(Link {
                config: config.clone(),
                open: None,
            })
        };
        let opened = Self {
            writer: link(),
            reader: link(),
            clock,
        };
        let found = opened.change(|transaction| transaction.prepare(steps))?;
        Ok((opened, found))
    }

    /// One at a time, whatever machine asks: two that read and then write would undo each other's work.
    pub(super) fn change<T, E: From<DatabaseError>>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let begin = format!("BEGIN; SELECT pg_advisory_xact_lock({WRITER})");
        self.writer.lock().transact(&begin, self.clock, work)
    }

    pub(super) fn read<T, E: From<DatabaseError>>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        self.reader.lock().transact(begin, self.clock, work)
    }
}

impl Link {
    fn transact<T, E: From<DatabaseError>>(
        &mut self,
        begin: &str,
        clock: Clock,
        work: impl FnOnce(&Transaction<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        // It comes back only from a transaction that has ended.
        let open = self.begin(begin)?;
        let done = work(&Transaction { open: &open, clock });
        let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
        match (done, open.run(end)) {
            (done, Ok(())) => {
                self.open = Some(open);
                done
            }
            (Err(error), Err(_)) => Err(error),
            (Ok(_), Err(error)) => Err(error.into()),
        }
    }

    /// A connection in a new transaction.
    fn begin(&mut self, begin: &str) -> Result<Open> {
        // The server may have closed it since: nothing has been done, so another is as good.
        if let Some(open) = self.open.take()
            && open.run(begin).is_ok()
        {
            return Ok(open);
        }
        let open = Open::new(&self.config)?;
        open.run(begin)?;
        Ok(open)
    }
}

impl Open {
    fn new(config: &Config) -> Result<Self> {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder
            .enable_all()
            .build()
            .map_err(DatabaseError::Runtime)?;
        let client = match config.get_ssl_mode() {
            SslMode::Require => {
                let connect = config.connect(Encrypted::new());
                let (client, connection) = within(&runtime, CONNECT, connect)?;
                runtime.spawn(connection);
                client
            }
            _ => {
                let connect = config.connect(NoTls);
                let (client, connection) = within(&runtime, CONNECT, connect)?;
                runtime.spawn(connection);
                client
            }
        };
        let open = Self {
            client,
            runtime: Some(runtime),
            statements: RefCell::default(),
        };
        open.run(LIMITS)?;
        Ok(open)
    }

    /// Runs statements without values.
    fn run(&self, sql: &str) -> Result<()> {
        self.wait(self.client.batch_execute(sql))
    }

    fn wait<T>(
        &self,
        answer: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
    ) -> Result<T> {
        // It is there until the connection is dropped.
        let runtime = self.runtime.as_ref().ok_or(DatabaseError::Form)?;
        within(runtime, ANSWER, answer)
    }

    fn prepare(&self, sql: &str, values: &[Value<'_>]) -> Result<Statement> {
        if let Some(statement) = self.statements.borrow().get(sql) {
            return Ok(statement.clone());
        }
        let types: Vec<Type> = values.iter().map(kind).collect();
        let translated = sql.replace('?', "$");
        let statement = self.wait(self.client.prepare_typed(&translated, &types))?;
        let mut statements = self.statements.borrow_mut();
        statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // Waiting for its threads is not allowed where tasks run, and it has none.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn within<T>(
    runtime: &Runtime,
    limit: Duration,
    answer: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
) -> Result<T> {
    let late = |_| DatabaseError::Late(limit.as_secs());
    let answer = async { tokio::time::timeout(limit, answer).await };
    Ok(runtime.block_on(answer).map_err(late)??)
}

impl Transaction<'_> {
    /// The server's time, in seconds since the epoch.
    pub(super) fn clock(&self, now: i64) -> Result<i64> {
        match self.clock {
            Clock::Server => {
                let sql = "SELECT CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp())) AS BIGINT)";
                self.integer(sql).map(|time| time.unwrap_or(now))
            }
            #[cfg(test)]
            Clock::Caller => Ok(now),
        }
    }

    pub(super) fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<u64> {
        let statement = self.open.prepare(sql, values)?;
        let answer = self.open.client.execute_raw(&statement, values);
        self.open.wait(answer)
    }

    /// All are sent before the first is answered.
    pub(super) fn execute_all<'v, const N: usize>(
        &self,
        sql: &str,
        rows: impl IntoIterator<Item = [Value<'v>; N]>,
    ) -> Result<Vec<u64>> {
        let rows: Vec<[Value<'v>; N]> = rows.into_iter().collect();
        let Some(first) = rows.first() else {
            return Ok(Vec::new());
        };
        let statement = self.open.prepare(sql, first)?;
        let answers = rows
            .iter()
            .map(|values| self.open.client.execute_raw(&statement, values));
        self.open.wait(try_join_all(answers))
    }

    pub(super) fn query(&self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>> {
        let statement = self.open.prepare(sql, values)?;
        let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as _).collect();
        self.open.wait(self.open.client.query(&statement, &values))
    }

    fn integer(&self, sql: &str) -> Result<Option<i64>> {
        let rows = self.query(sql, &[])?;
        let first = rows.first().map(|row| column(row, 0));
        Ok(first.transpose()?.flatten())
    }

    /// Takes the steps that were not yet taken; returns the version of the tables that are there now.
    fn prepare(&self, steps: &[&str]) -> Result<i64> {
        let is_there = "SELECT CAST(1 AS BIGINT) WHERE to_regclass('inflight_layout') IS NOT NULL";
        if self.integer(is_there)?.is_none() {
            self.open.run(
                "CREATE TABLE inflight_layout (version BIGINT NOT NULL);
                 INSERT INTO inflight_layout VALUES (0)",
            )?;
        }
        let found = self.integer("SELECT version FROM inflight_layout")?;
        let mut version = found.ok_or(DatabaseError::Form)?;
        for step in steps.iter().skip(usize::try_from(version).unwrap_or(0)) {
            self.open.run(&translated(step))?;
            version += 1;
            let sql = format!("UPDATE inflight_layout SET version = {version}");
            self.open.run(&sql)?;
        }
        Ok(version)
    }
}

/// Tables as PostgreSQL reads them.
pub(super) fn translated(tables: &str) -> String {
    let key = "INTEGER PRIMARY KEY AUTOINCREMENT";
    let identity = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY";
    let tables = tables.replace(key, identity);
    tables
        .replace(" INTEGER", " BIGINT")
        .replace(" BLOB", " BYTEA")
}

fn kind(value: &Value<'_>) -> Type {
    match value {
        Value::Integer(_) => Type::INT8,
        Value::Text(_) => Type::TEXT,
        Value::Blob(_) | Value::Id(_) => Type::BYTEA,
    }
}

impl ToSql for Value<'_> {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Self::Integer(value) => value.to_sql(kind, out),
            Self::Text(text) => text.map(escaped).to_sql(kind, out),
            Self::Blob(blob) => blob.to_sql(kind, out),
            Self::Id(id) => id.as_ref().map(<[u8; 16]>::as_slice).to_sql(kind, out),
        }
    }

    // The statement was prepared with the values' types.
    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// The value of a column.
pub(super) fn column<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<Option<T>> {
    Ok(row.try_get(column)?)
}

/// The text of a column, as it was before it was escaped.
pub(super) fn text(row: &Row, place: usize) -> Result<Option<String>> {
    Ok(column(row, place)?.map(unescaped))
}

/// Starts the two characters that are written for one. Texts do not contain it: it is not a character.
const ESCAPE: char = '\u{10FFFF}';

/// PostgreSQL's texts cannot have NUL, which a client's may.
fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', ESCAPE]) {
        return Cow::Borrowed(text);
    }
    let escape = ESCAPE.to_string();
    let text = text.replace(ESCAPE, &format!("{escape}1"));
    Cow::Owned(text.replace('\0', &format!("{escape}0")))
}

fn unescaped(text: &str) -> String {
    let escape = ESCAPE.to_string();
    if !text.contains(ESCAPE) {
        return text.to_owned();
    }
    let text = text.replace(&format!("{escape}0"), "\0");
    text.replace(&format!("{escape}1"), &escape)
}

#[cfg(test)]
pub(super) fn run_once(config: &Config, sql: &str) {
    Open::new(config).unwrap().run(sql).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_is_kept() {
        for text in [
            "",
            "a\u{10FFFF}0",
            "\0",
            "\u{10FFFF}",
            "a\0\u{10FFFF}\u{10FFFF}1\0",
        ] {
            let written = escaped(text);
            assert!(!written.contains('\0'));
            assert_eq!(unescaped(&written), text);
        }
    }
}
