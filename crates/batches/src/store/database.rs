//! Why a database did not do what it was asked for, whichever it is.

/// What a database did not do. Its text may name tables and hosts, and never a password.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error(transparent)]
    Postgres(#[from] tokio_postgres::Error),
    #[error("the database did not answer for `{0}` seconds")]
    Late(u64),
    #[error("a thread for the database cannot be set up")]
    Runtime(#[source] std::io::Error),
    #[error("a value in the database has another form than was written")]
    Form,
}
