//! The tables, as SQLite reads them, and how they became what they are.

/// What makes each version's tables of those of the version before; an empty database has none.
pub(super) const STEPS: [&str; 2] = [TABLES, OBJECTS];
/// The version that the steps lead to. A program leaves databases of later ones alone.
pub(super) const VERSION: i64 = STEPS.len() as i64;

/// States of a file.
pub(super) const UPLOADING: i64 = 0;
pub(super) const WHOLE: i64 = 1;
/// Its owner has deleted it, and a batch that has not ended needs its content.
pub(super) const DELETED: i64 = 2;

/// States of a line.
pub(super) const WAITING: i64 = 0;
pub(super) const SUCCEEDED: i64 = 1;
pub(super) const FAILED: i64 = 2;
pub(super) const UNRUN: i64 = 3;

const TABLES: &str = "
CREATE TABLE files (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    id BLOB NOT NULL UNIQUE,
    owner BLOB NOT NULL,
    name TEXT NOT NULL,
    purpose TEXT NOT NULL,
    state INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    -- Of results: the batch that has them, whose lines they are.
    batch INTEGER
);
CREATE INDEX files_of_owner ON files (owner, key);
CREATE INDEX files_by_end ON files (expires);
-- A file's content, in pieces of one size but for the last.
CREATE TABLE pieces (
    file INTEGER NOT NULL,
    number INTEGER NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (file, number)
);
CREATE TABLE batches (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    id BLOB NOT NULL UNIQUE,
    owner BLOB NOT NULL,
    dialect INTEGER NOT NULL,
    endpoint TEXT NOT NULL,
    \"window\" TEXT NOT NULL,
    input INTEGER NOT NULL,
    input_id BLOB NOT NULL,
    output_id BLOB,
    failures_id BLOB,
    metadata TEXT,
    status TEXT NOT NULL,
    errors TEXT,
    results_age INTEGER,
    created INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    started INTEGER,
    cancelling INTEGER,
    ended INTEGER,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    reasoning_tokens INTEGER NOT NULL DEFAULT 0,
    holder INTEGER NOT NULL DEFAULT 0,
    lease INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX batches_of_owner ON batches (owner, key);
CREATE INDEX batches_open ON batches (key) WHERE ended IS NULL;
-- The requests of a batch: where each is in its file, and its result once there is one.
CREATE TABLE lines (
    batch INTEGER NOT NULL,
    number INTEGER NOT NULL,
    custom_id TEXT NOT NULL,
    start INTEGER NOT NULL,
    length INTEGER NOT NULL,
    state INTEGER NOT NULL DEFAULT 0,
    result BLOB,
    PRIMARY KEY (batch, number)
);
CREATE UNIQUE INDEX lines_by_name ON lines (batch, custom_id);
CREATE INDEX lines_waiting ON lines (batch, number) WHERE state = 0;
";

/// Contents may be objects of a bucket, each by its number.
const OBJECTS: &str = "
-- The object with the content; without one, it is in `pieces`, or in `lines` for results.
ALTER TABLE files ADD COLUMN object BLOB;
CREATE INDEX files_by_object ON files (object) WHERE object IS NOT NULL;
-- The object with the results, where they are not files.
ALTER TABLE batches ADD COLUMN object BLOB;
CREATE INDEX batches_by_object ON batches (object) WHERE object IS NOT NULL;
-- When all of its lines had results.
ALTER TABLE batches ADD COLUMN finalizing INTEGER;
-- Objects that nothing names any more and that are still to be deleted.
CREATE TABLE removed (
    object BLOB NOT NULL PRIMARY KEY
);
-- What all processes that share the database must agree on.
CREATE TABLE settings (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
);
";
