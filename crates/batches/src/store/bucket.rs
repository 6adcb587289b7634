//! The objects of one database in a bucket. Owns how they are named, written and read; which rows name them is others'.
//! An object is written before a row names it for others, and is deleted after the last row that named it: a crash may
//! leave an object without a row, and no row without its object.

use std::collections::HashSet;

use bytes::Bytes;
use inflight_objects::{ObjectError, Objects, ObjectsUrl, Upload};
use parking_lot::Mutex;

use super::contents::{self, Object, ObjectId, Part, Position};
use super::sql::Transaction;
use super::value::values;
use super::{Result, StoreError};

/// Bytes that are read of an object at once.
const READ: u64 = 512 * 1024;
/// Ranges with no more between them are read at once.
const GAP: u64 = 64 * 1024;
/// Parts of a list of objects that one call reads at most.
const MOST_PAGES: usize = 1000;

/// The name of the setting that has the database's folder.
const FOLDER: &str = "folder";

/// An object that is being written.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) id: ObjectId,
    upload: Upload,
}

/// The objects of one database.
#[derive(Debug)]
pub(super) struct Bucket {
    objects: Objects,
    /// Of the database: no other one's objects are touched.
    folder: String,
    /// Of a content, in memory at once.
    part_bytes: usize,
    /// Held by who deletes what is no longer named.
    pub(super) purging: Mutex<()>,
}

impl Bucket {
    /// The objects at `url` of the database that `transaction` reads and whose contents have at most `most` bytes. Asks
    /// nobody.
    ///
    /// # Errors
    /// The place cannot be used, or the contents are elsewhere.
    pub(super) fn of(transaction: &Transaction<'_>, url: &ObjectsUrl, most: i64) -> Result<Self> {
        let objects = Objects::new(url)?;
        let given = objects.place().to_owned();
        if let Some(kept) = contents::place(transaction)?.filter(|kept| *kept != given)
            && contents::is_used(transaction)?
        {
            return Err(StoreError::Elsewhere { kept, given });
        }
        let sql = "INSERT INTO settings (name, value) VALUES (?1, ?2)
                   ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        transaction.execute(sql, &values![contents::PLACE, given.as_str()])?;
        let fresh = format!("{:032x}", rand::random::<u128>());
        let sql =
            "INSERT INTO settings (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO NOTHING";
        transaction.execute(sql, &values![FOLDER, fresh.as_str()])?;
        let part = Upload::part_bytes(u64::try_from(most).unwrap_or(u64::MAX));
        Ok(Self {
            objects,
            folder: contents::setting(transaction, FOLDER)?.unwrap_or(fresh),
            part_bytes: usize::try_from(part).unwrap_or(usize::MAX),
            purging: Mutex::new(()),
        })
    }

    /// Whether the bucket can be used.
    ///
    /// # Errors
    /// It cannot.
    pub(super) fn check(&self) -> Result<()> {
        self.placed(self.objects.check(&format!("{}/check", self.folder)))
    }

    pub(super) fn part_bytes(&self) -> usize {
        self.part_bytes
    }

    /// Begins an object of this number.
    pub(super) fn write(&self, id: ObjectId) -> Writing {
        let upload = Upload::new(self.name(&id));
        Writing { id, upload }
    }

    /// Adds a part that is not the last.
    pub(super) fn add(&self, writing: &mut Writing, part: Vec<u8>) -> Result<()> {
        self.placed(self.objects.add(&mut writing.upload, part.into()))
    }

    /// Adds the last part.
    pub(super) fn finish(&self, writing: &mut Writing, last: Vec<u8>) -> Result<Object> {
        self.placed(self.objects.finish(&mut writing.upload, last.into()))?;
        Ok(Object {
            id: writing.id,
            bytes: i64::try_from(writing.upload.bytes()).unwrap_or(i64::MAX),
        })
    }

    /// Writes a whole content.
    pub(super) fn put(&self, content: &[u8]) -> Result<Object> {
        let mut writing = self.write(fresh());
        let mut parts = content.chunks(self.part_bytes).peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                return self.end(writing, part.to_vec());
            }
            if let Err(error) = self.add(&mut writing, part.to_vec()) {
                return Err(self.failed(&writing, error));
            }
        }
        self.end(writing, Vec::new())
    }

    /// Adds the last part, and gives the object up where that fails.
    pub(super) fn end(&self, mut writing: Writing, last: Vec<u8>) -> Result<Object> {
        let finished = self.finish(&mut writing, last);
        finished.map_err(|error| self.failed(&writing, error))
    }

    /// Gives an object up that did not become whole, because of `error`.
    pub(super) fn failed(&self, writing: &Writing, error: StoreError) -> StoreError {
        // If this fails as well, it goes when it is old.
        let _ = self.abandon(writing);
        error
    }

    /// Gives the parts up that there are so far.
    pub(super) fn abandon(&self, writing: &Writing) -> Result<()> {
        self.placed(self.objects.abandon(&writing.upload))
    }

    /// Deletes an object that no row names.
    pub(super) fn delete(&self, id: &ObjectId) -> Result<()> {
        self.placed(self.objects.delete(&self.name(id)))
    }

    /// A part of an object.
    pub(super) fn read(&self, object: Object, position: Position) -> Result<Part> {
        let length = u64::try_from(object.bytes).unwrap_or(0);
        let from = u64::try_from(position.0).unwrap_or(0);
        let until = from.saturating_add(READ).min(length);
        if until <= from {
            return Ok(None);
        }
        let part = self.range(object, from, until)?;
        let next = Position(i64::try_from(until).unwrap_or(i64::MAX));
        Ok(Some((part.into(), next)))
    }

    /// Ranges of an object, by their first byte and length; in their order, which is the object's.
    pub(super) fn ranges(&self, object: Object, ranges: &[(u64, u64)]) -> Result<Vec<Vec<u8>>> {
        let mut all = Vec::with_capacity(ranges.len());
        let mut rest = ranges;
        while let Some((first, _)) = rest.first() {
            let near = near(rest);
            let (now, later) = rest.split_at(near);
            let end = |(start, length): &(u64, u64)| start.saturating_add(*length);
            let until = now.iter().map(end).max().unwrap_or(*first);
            let read = self.range(object, *first, until)?;
            all.extend(now.iter().map(|(start, length)| {
                let place =
                    |at: u64| usize::try_from(at.saturating_sub(*first)).unwrap_or(usize::MAX);
                let range = place(*start)..place(start.saturating_add(*length));
                read.get(range).unwrap_or_default().to_vec()
            }));
            rest = later;
        }
        Ok(all)
    }

    fn range(&self, object: Object, from: u64, until: u64) -> Result<Bytes> {
        self.placed(self.objects.read(&self.name(&object.id), from, until))
    }

    /// Deletes objects that are older than `age` and that are not among those `named` between two, and gives up uploads
    /// that are as old. Returns how many went.
    pub(super) fn sweep(
        &self,
        age: i64,
        mut named: impl FnMut(ObjectId, ObjectId) -> Result<HashSet<ObjectId>>,
    ) -> Result<usize> {
        let (mut gone, mut from) = (0, None);
        let folder = format!("{}/", self.folder);
        for _ in 0..MOST_PAGES {
            let page = self.placed(self.objects.list(&folder, from.as_deref()))?;
            let old = page.items.iter().filter(|one| one.age > age);
            let old: Vec<ObjectId> = old.filter_map(|one| self.id(&one.name)).collect();
            if let Some((first, last)) = old.iter().min().zip(old.iter().max()) {
                let named = named(*first, *last)?;
                for id in old.iter().filter(|id| !named.contains(*id)) {
                    self.delete(id)?;
                    gone += 1;
                }
            }
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        for upload in self.placed(self.objects.unfinished(&folder))? {
            if upload.age > age {
                self.placed(self.objects.give_up(&upload))?;
                gone += 1;
            }
        }
        Ok(gone)
    }

    fn name(&self, id: &ObjectId) -> String {
        format!("{}/{:032x}", self.folder, u128::from_be_bytes(*id))
    }

    /// The number of an object of this database; `None`: it is something else.
    fn id(&self, name: &str) -> Option<ObjectId> {
        let digits = name.strip_prefix(&self.folder)?.strip_prefix('/')?;
        let number = u128::from_str_radix(digits, 16).ok()?;
        let id = number.to_be_bytes();
        (self.name(&id) == name).then_some(id)
    }

    fn placed<T>(&self, done: std::result::Result<T, ObjectError>) -> Result<T> {
        done.map_err(|source| StoreError::Objects {
            place: self.objects.place().to_owned(),
            source: Box::new(source),
        })
    }
}

/// How many of the first ranges are near each other.
fn near(ranges: &[(u64, u64)]) -> usize {
    let pairs = ranges.windows(2).take_while(|pair| match pair {
        [(start, length), (next, _)] => *next <= start.saturating_add(length + GAP),
        _ => false,
    });
    pairs.count() + 1
}

/// A number that no object has.
pub(super) fn fresh() -> ObjectId {
    rand::random::<u128>().to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_are_near_are_read_at_once() {
        for (ranges, expected) in [
            (&[(0, 10)][..], 1),
            (&[(0, 10), (10, 5), (20, 5)], 3),
            (
                &[(0, 10), (10 + GAP, 5), (15 + 2 * GAP, 5), (21 + 3 * GAP, 1)],
                3,
            ),
            (&[(5, 10), (u64::MAX, 5)], 1),
        ] {
            assert_eq!(near(ranges), expected, "{ranges:?}");
        }
    }
}
