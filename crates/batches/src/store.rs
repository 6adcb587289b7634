//! Everything that is kept, in one SQLite database. Owns its connections, its bounds and its errors; each table has its
//! file. Every call may block, for milliseconds at most but where it says so.

mod batches;
mod files;
mod import;
mod leases;
mod page;
mod results;
mod schema;
mod sweep;

use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, Transaction, TransactionBehavior};

pub use self::batches::NewBatch;
pub use self::files::{NewFile, Position, Stored};
pub use self::import::check_lines;
pub use self::leases::{Claim, Work};
pub use self::page::Page;
pub use self::results::{Close, Done};

/// The database, in the directory.
const FILE: &str = "batches.sqlite3";
/// How long a call waits for another process that writes.
const PATIENCE: Duration = Duration::from_secs(10);

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Of all files and results together.
    pub bytes: i64,
    /// What one owner may have of that.
    pub owner_bytes: i64,
    /// Of one file.
    pub file_bytes: i64,
    /// Of one line of a batch.
    pub line_bytes: usize,
    /// Seconds after which a file goes that does not say when, and a batch after its end.
    pub age: i64,
}

/// Lines of one batch, as OpenAI has it.
pub(crate) const MAX_LINES: i64 = 50_000;
/// Files and batches of one owner: a list of them stays short.
const MAX_ITEMS: i64 = 10_000;

/// What cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot use the directory `{path}` for files and batches")]
    Directory {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "`{path}` was written by a newer version, with layout `{found}`; this one knows `{known}`. Run that version, \
         or name another directory"
    )]
    Newer {
        path: PathBuf,
        found: i64,
        known: i64,
    },
    #[error("cannot open `{path}`")]
    Open {
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    /// No file of this owner has the name.
    #[error("there is no such file")]
    NoFile,
    /// No batch of this owner has the name.
    #[error("there is no such batch")]
    NoBatch,
    /// The batch is at this point of its life, and the call needs another.
    #[error("the batch is `{}`", .0.as_str())]
    Status(crate::batch::Status),
    #[error("the file has more than `{0}` bytes")]
    FileTooLarge(i64),
    #[error("all files and results together may have `{0}` bytes")]
    Full(i64),
    #[error("the files and results of one key may have `{0}` bytes")]
    OwnerFull(i64),
    #[error("one key may have `{MAX_ITEMS}` files and as many batches")]
    TooMany,
    /// Another holder has the batch.
    #[error("the lease of the batch was lost")]
    LeaseLost,
    /// The work on the database did not come to its end.
    #[error("the work on the database was broken off")]
    Stopped,
    #[error("the database failed")]
    Database(#[from] rusqlite::Error),
}

type Result<T> = std::result::Result<T, StoreError>;

/// See the module.
#[derive(Debug)]
pub struct Store {
    /// For whatever changes something.
    writer: Mutex<Connection>,
    /// Reads while another connection writes.
    reader: Mutex<Connection>,
    bounds: Bounds,
}

impl Store {
    /// Opens what `directory` keeps, or begins it there.
    ///
    /// # Errors
    /// The directory cannot be written, or what is there is no store of this version.
    pub fn open(directory: &Path, bounds: Bounds) -> Result<Self> {
        std::fs::create_dir_all(directory).map_err(|source| StoreError::Directory {
            path: directory.to_owned(),
            source,
        })?;
        let path = directory.join(FILE);
        let open = || {
            schema::connect(&path, PATIENCE).map_err(|source| StoreError::Open {
                path: path.clone(),
                source,
            })
        };
        let mut writer = open()?;
        let found = schema::prepare(&mut writer).map_err(|source| StoreError::Open {
            path: path.clone(),
            source,
        })?;
        if found > schema::VERSION {
            return Err(StoreError::Newer {
                path,
                found,
                known: schema::VERSION,
            });
        }
        Ok(Self {
            writer: Mutex::new(writer),
            reader: Mutex::new(open()?),
            bounds,
        })
    }

    /// The bounds that it keeps.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Does `work` as a whole or not at all.
    fn change<T>(&self, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        let mut writer = self.writer.lock();
        // From its first statement on nobody else writes: two that read and then write would fail each other.
        let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let done = work(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }

    /// Reads what was there at one moment.
    fn read<T>(&self, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        let mut reader = self.reader.lock();
        let transaction = reader.transaction()?;
        work(&transaction)
    }
}

#[cfg(test)]
mod tests;
