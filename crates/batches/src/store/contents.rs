//! Where contents are: rows of the database, or objects that rows name. Owns how the rows are read, and which objects are
//! to be deleted; how objects are asked for is the bucket's.

use super::Result;
use super::sql::Transaction;
use super::value::values;

/// Bytes of a piece in rows.
pub(super) const PIECE: usize = 256 * 1024;
pub(super) const INSERT_PIECE: &str =
    "INSERT INTO pieces (file, number, content) VALUES (?1, ?2, ?3)";

/// The number of an object, which none had before.
pub(super) type ObjectId = [u8; 16];

/// How far a reader is in a content.
#[derive(Clone, Copy, Debug, Default)]
pub struct Position(pub(super) i64);

/// What is read at once, and where to read on; `None`: the content has ended.
pub(super) type Part = Option<(Vec<u8>, Position)>;

/// Where a file's content is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// Of the file with this key.
    Pieces(i64),
    Object(Object),
}

/// An object that is whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object {
    pub(super) id: ObjectId,
    pub(super) bytes: i64,
}

/// The name of the setting that says where the objects are.
pub(super) const PLACE: &str = "objects";

pub(super) fn setting(transaction: &Transaction<'_>, name: &str) -> Result<Option<String>> {
    let sql = "SELECT value FROM settings WHERE name = ?1";
    Ok(transaction.query_row(sql, &values![name], |row| row.text(0))?)
}

/// Where the objects of the database are, if it ever had some.
pub(super) fn place(transaction: &Transaction<'_>) -> Result<Option<String>> {
    setting(transaction, PLACE)
}

/// Whether a row names an object.
pub(super) fn is_used(transaction: &Transaction<'_>) -> Result<bool> {
    let of = |table: &str| format!("SELECT 1 FROM {table} WHERE object IS NOT NULL LIMIT 1");
    Ok(transaction.exists(&of("files"), &[])? || transaction.exists(&of("batches"), &[])?)
}

/// Where the content of the file with this key is.
pub(super) fn source(transaction: &Transaction<'_>, file: i64) -> Result<Source> {
    let sql = "SELECT object, bytes FROM files WHERE key = ?1";
    let found = transaction.query_row(sql, &values![file], |row| {
        Ok((row.maybe_id(0)?, row.integer(1)?))
    })?;
    Ok(match found {
        Some((Some(id), bytes)) => Source::Object(Object { id, bytes }),
        _ => Source::Pieces(file),
    })
}

/// The piece `number` of a file.
pub(super) fn piece(transaction: &Transaction<'_>, file: i64, number: i64) -> Result<Part> {
    let sql = "SELECT content FROM pieces WHERE file = ?1 AND number = ?2";
    let piece =
        transaction.query_row(sql, &values![file, number], |row| Ok(row.blob(0)?.to_vec()))?;
    Ok(piece.map(|piece| (piece, Position(number + 1))))
}

/// Ranges of a file in pieces, by their first byte and length; in their order.
pub(super) fn ranges(
    transaction: &Transaction<'_>,
    file: i64,
    ranges: &[(u64, u64)],
) -> Result<Vec<Vec<u8>>> {
    let (mut all, mut number, mut content) = (Vec::new(), -1, Vec::new());
    for (start, length) in ranges {
        let size = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
        let (mut at, end) = (size(*start), size(start.saturating_add(*length)));
        let mut range = Vec::with_capacity(end - at);
        while at < end {
            let wanted = i64::try_from(at / PIECE).unwrap_or(i64::MAX);
            if wanted != number {
                let read = piece(transaction, file, wanted)?;
                (number, content) = (wanted, read.map(|(piece, _)| piece).unwrap_or_default());
            }
            let rest = content.get(at % PIECE..).unwrap_or_default();
            let part = &rest[..rest.len().min(end - at)];
            if part.is_empty() {
                break;
            }
            range.extend_from_slice(part);
            at += part.len();
        }
        all.push(range);
    }
    Ok(all)
}

/// Has the objects deleted that rows of `table` name of which `those` is true of `key`.
pub(super) fn forget(
    transaction: &Transaction<'_>,
    table: &str,
    those: &str,
    key: i64,
) -> Result<()> {
    let sql = format!(
        "INSERT INTO removed (object) SELECT object FROM {table} WHERE {those} = ?1 AND object IS NOT NULL
         ON CONFLICT (object) DO NOTHING"
    );
    transaction.execute(&sql, &values![key])?;
    Ok(())
}
