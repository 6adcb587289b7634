//! Everything that is kept, in one database: SQLite's or PostgreSQL's, which may have the contents in a bucket. Owns its
//! bounds and its errors; each table has its file, and each engine. Every call may block: for milliseconds at most but
//! where it says so, or where a server of another machine does not answer.

mod batches;
mod bucket;
mod contents;
mod database;
mod encrypted;
mod files;
mod import;
mod leases;
mod page;
mod postgres;
mod results;
mod schema;
mod sql;
mod sqlite;
mod sweep;
mod uploads;
mod url;
mod value;

use std::path::{Path, PathBuf};

use inflight_objects::{ObjectError, ObjectsUrl};

use self::bucket::Bucket;
use self::postgres::{Clock, Postgres};
use self::sql::{Engine, Transaction};
use self::sqlite::Sqlite;

pub use self::batches::NewBatch;
pub use self::contents::Position;
pub use self::database::DatabaseError;
pub use self::files::{NewFile, Stored};
pub use self::import::check_lines;
pub use self::leases::{Claim, Work};
pub use self::page::Page;
pub use self::results::{Close, Done};
pub use self::uploads::Receiving;
pub use self::url::{DataUrl, UrlError};

/// The database, in the directory.
const FILE: &str = "batches.sqlite3";

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
        "`{place}` was written by a newer version, with layout `{found}`; this one knows `{known}`. Run that version, \
         or name another place"
    )]
    Newer {
        place: String,
        found: i64,
        known: i64,
    },
    #[error("cannot open `{path}`")]
    Open {
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error(transparent)]
    Url(#[from] UrlError),
    #[error("cannot use the database `{place}`")]
    Connect {
        place: String,
        #[source]
        source: DatabaseError,
    },
    #[error(transparent)]
    ObjectsUrl(#[from] inflight_objects::UrlError),
    #[error("the object store `{place}` cannot be used")]
    Objects {
        place: String,
        #[source]
        source: Box<ObjectError>,
    },
    #[error(
        "the contents of this database are in `{kept}`, not in `{given}`; pass `--data-objects {kept}`"
    )]
    Elsewhere { kept: String, given: String },
    #[error("the contents of this database are in `{kept}`; pass `--data-objects {kept}`")]
    NoObjects { kept: String },
    /// Another process has written it since this one was started.
    #[error(
        "a content is in an object store; start all gateways of this database with the same `--data-objects`"
    )]
    WithoutObjects,
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
    Database(#[from] DatabaseError),
}

type Result<T> = std::result::Result<T, StoreError>;

/// See the module.
#[derive(Debug)]
pub struct Store {
    engine: Engine,
    /// Where contents are; without one, in rows.
    bucket: Option<Bucket>,
    bounds: Bounds,
}

impl Store {
    /// Opens what `directory` keeps, or begins it there: for processes of this machine. Contents are at `objects`.
    ///
    /// # Errors
    /// The directory cannot be written, or what is there is no store of this version; the object store cannot be used.
    pub fn open(directory: &Path, objects: Option<&ObjectsUrl>, bounds: Bounds) -> Result<Self> {
        std::fs::create_dir_all(directory).map_err(|source| StoreError::Directory {
            path: directory.to_owned(),
            source,
        })?;
        let path = directory.join(FILE);
        let opened = Sqlite::open(&path, &schema::STEPS);
        let (sqlite, found) = opened.map_err(|source| StoreError::Open {
            path: path.clone(),
            source,
        })?;
        check_version(&path.display(), found)?;
        Self::of(Engine::Sqlite(Box::new(sqlite)), objects, bounds)
    }

    /// Opens what the database at `url` keeps, or begins it there: for processes of several machines. Contents are at
    /// `objects`. Blocks, and must not be called where tasks run.
    ///
    /// # Errors
    /// The database cannot be used, or what is there is no store of this version; the object store cannot be used.
    pub fn connect(url: &DataUrl, objects: Option<&ObjectsUrl>, bounds: Bounds) -> Result<Self> {
        Self::connect_by(url, objects, bounds, Clock::Server)
    }

    fn connect_by(
        url: &DataUrl,
        objects: Option<&ObjectsUrl>,
        bounds: Bounds,
        clock: Clock,
    ) -> Result<Self> {
        let (config, place) = url.read()?;
        let opened = Postgres::open(config, clock, &schema::STEPS);
        let (postgres, found) = opened.map_err(|source| StoreError::Connect {
            place: place.clone(),
            source,
        })?;
        check_version(&place, found)?;
        Self::of(Engine::Postgres(Box::new(postgres)), objects, bounds)
    }

    fn of(engine: Engine, objects: Option<&ObjectsUrl>, bounds: Bounds) -> Result<Self> {
        let bucket = engine.change(|transaction| {
            let of = |url| Bucket::of(transaction, url, bounds.file_bytes);
            let bucket = objects.map(of).transpose()?;
            match contents::place(transaction)? {
                Some(kept) if bucket.is_none() && contents::is_used(transaction)? => {
                    Err(StoreError::NoObjects { kept })
                }
                _ => Ok(bucket),
            }
        })?;
        if let Some(bucket) = &bucket {
            bucket.check()?;
        }
        Ok(Self {
            engine,
            bucket,
            bounds,
        })
    }

    /// Where objects are.
    fn bucket(&self) -> Result<&Bucket> {
        self.bucket.as_ref().ok_or(StoreError::WithoutObjects)
    }

    /// The bounds that it keeps.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Does `work` as a whole or not at all.
    fn change<T>(&self, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        self.engine.change(work)
    }

    /// Reads what was there at one moment.
    fn read<T>(&self, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        self.engine.read(work)
    }
}

fn check_version(place: &dyn std::fmt::Display, found: i64) -> Result<()> {
    if found <= schema::VERSION {
        return Ok(());
    }
    Err(StoreError::Newer {
        place: place.to_string(),
        found,
        known: schema::VERSION,
    })
}

#[cfg(test)]
mod tests;
