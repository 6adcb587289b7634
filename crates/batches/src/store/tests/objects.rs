//! Contents in a bucket: where they are, how they come and go, and what is swept.

use inflight_objects::{Objects, ObjectsUrl};

use super::helpers::*;
use super::kept::{BOUNDS, Kept, ONE};
use crate::batch::Dialect;
use crate::store::{Bounds, Close, Store, StoreError};

fn kept(name: &str) -> Option<Kept> {
    Kept::sqlite(name).with_objects(name)
}

fn count(store: &Store, table: &str) -> i64 {
    let sql = format!("SELECT COUNT(*) FROM {table}");
    store
        .read(|transaction| Ok(transaction.integer(&sql, &[])?))
        .unwrap()
}

#[test]
fn contents_are_objects_and_go_with_their_rows() {
    let Some(kept) = kept("contents") else { return };
    let store = kept.open();
    assert!(kept.names().is_empty(), "the check left nothing");
    let batch = create(&store, &requests(3));
    assert_eq!(kept.names().len(), 1);
    let claim = claim(&store, 7, 1);
    assert!(store.import(&claim, 1).unwrap());
    let work = store.waiting(&claim, 0, 3, usize::MAX).unwrap();
    let results = [200, 200, 500].iter().zip(&work);
    let results: Vec<_> = results
        .map(|(status, work)| done(&claim, work, *status))
        .collect();
    assert!(keep(&store, &claim, &results, 2));
    assert_eq!((count(&store, "lines"), count(&store, "pieces")), (0, 0));
    assert_eq!(
        kept.names().len(),
        3,
        "the requests and two kinds of results"
    );
    let ended = store.batch(&ONE, Dialect::OpenAi, batch.id).unwrap();
    assert_eq!(
        custom_ids(&read_all(&store, &ONE, ended.output.unwrap())),
        ["0", "1"]
    );
    assert_eq!(
        custom_ids(&read_all(&store, &ONE, ended.failures.unwrap())),
        ["2"]
    );
    for id in [ended.input, ended.output.unwrap(), ended.failures.unwrap()] {
        store.delete_file(&ONE, id, 3).unwrap();
    }
    assert_eq!(store.purge().unwrap(), 3);
    assert!(kept.names().is_empty());
    assert_eq!(count(&store, "removed"), 0);
    let bytes = "batches WHERE bytes > 0";
    assert_eq!(count(&store, bytes), 0, "nothing counts any more");
}

#[test]
fn a_large_file_comes_in_parts_and_one_that_is_given_up_leaves_nothing() {
    let Some(kept) = kept("large") else { return };
    let bounds = Bounds {
        bytes: 100 << 20,
        owner_bytes: 100 << 20,
        file_bytes: 40 << 20,
        ..BOUNDS
    };
    let store = kept.open_with(kept.objects.as_ref(), bounds).unwrap();
    let content: Vec<u8> = (0..20 << 20)
        .map(|place: u32| (place / 1000) as u8)
        .collect();
    let file = upload(&store, ONE, &content).unwrap();
    assert!(read_all(&store, &ONE, file.id) == content);
    let mut given_up = store.begin_file(&new_file(ONE)).unwrap();
    store
        .append(&mut given_up, vec![b'x'; store.piece_bytes()])
        .unwrap();
    store.abandon_file(&given_up).unwrap();
    assert_eq!(store.purge().unwrap(), 1);
    assert_eq!(kept.names().len(), 1);
    let objects = Objects::new(kept.objects.as_ref().unwrap()).unwrap();
    assert!(objects.unfinished("").unwrap().is_empty());
}

#[test]
fn a_holder_that_dies_halfway_leaves_a_batch_that_the_next_one_ends() {
    let Some(kept) = kept("halfway") else { return };
    let store = kept.open();
    let batch = create(&store, &requests(2));
    let first = claim(&store, 7, 0);
    store.import(&first, 0).unwrap();
    let work = store.waiting(&first, 0, 2, usize::MAX).unwrap();
    let results: Vec<_> = work.iter().map(|work| done(&first, work, 200)).collect();
    assert!(store.record(&first, &results, 1).unwrap());
    assert_eq!(object(&store, &batch)["status"], "finalizing");
    // It wrote an object and died before a row named it.
    let bucket = store.bucket().unwrap();
    bucket.put(b"half").unwrap();
    let second = claim(&store, 8, 20);
    // The first one was only slow.
    let late = store.close(&first, Close::Completed, 21);
    assert!(matches!(late, Err(StoreError::LeaseLost)));
    store.close(&second, Close::Completed, 21).unwrap();
    let late = store.close(&second, Close::Completed, 22);
    assert!(matches!(late, Err(StoreError::LeaseLost)), "it has ended");
    let ended = store.batch(&ONE, Dialect::OpenAi, batch.id).unwrap();
    assert_eq!(
        custom_ids(&read_all(&store, &ONE, ended.output.unwrap())),
        ["0", "1"]
    );
    assert_eq!(
        kept.names().len(),
        3,
        "the requests, the results and what the first one left"
    );
}

#[test]
fn what_no_row_names_goes_once_it_is_old_and_nothing_else() {
    let Some(kept) = kept("sweep") else { return };
    let store = kept.open();
    let file = upload(&store, ONE, b"x").unwrap();
    let bucket = store.bucket().unwrap();
    bucket.put(b"orphan").unwrap();
    let mut writing = bucket.write([9; 16]);
    bucket
        .add(&mut writing, vec![b'x'; bucket.part_bytes()])
        .unwrap();
    let objects = Objects::new(kept.objects.as_ref().unwrap()).unwrap();
    objects
        .put("elsewhere", bytes::Bytes::from_static(b"another's"))
        .unwrap();
    assert_eq!(store.sweep_objects().unwrap(), 0, "all are young");
    assert_eq!(kept.names().len(), 3);
    assert_eq!(store.sweep_objects_older_than(-60).unwrap(), 2);
    assert_eq!(kept.names().len(), 2);
    assert!(objects.unfinished("").unwrap().is_empty());
    assert_eq!(read_all(&store, &ONE, file.id), b"x");
}

#[test]
fn contents_are_looked_for_where_they_are() {
    let Some(kept) = kept("where") else { return };
    let rows = kept.open_with(None, BOUNDS).unwrap();
    let in_rows = upload(&rows, ONE, b"rows").unwrap();
    let store = kept.open();
    let in_bucket = upload(&store, ONE, b"bucket").unwrap();
    assert_eq!(read_all(&store, &ONE, in_rows.id), b"rows");
    // One that was started without it says so.
    let stored = rows.file(&ONE, in_bucket.id, 0).unwrap();
    let read = rows.read_file(&stored, crate::store::Position::default());
    assert!(matches!(read, Err(StoreError::WithoutObjects)));
    let refused = kept.open_with(None, BOUNDS).unwrap_err();
    assert!(matches!(refused, StoreError::NoObjects { .. }), "{refused}");
    let other = ObjectsUrl::new(std::env::var("INFLIGHT_TEST_S3").unwrap() + "/other");
    let refused = kept.open_with(Some(&other), BOUNDS).unwrap_err();
    assert!(matches!(refused, StoreError::Elsewhere { .. }), "{refused}");
    store.delete_file(&ONE, in_bucket.id, 0).unwrap();
    store.purge().unwrap();
    let moved = kept.open_with(Some(&other), BOUNDS).unwrap();
    assert_eq!(read_all(&moved, &ONE, in_rows.id), b"rows");
}

#[test]
fn a_bucket_that_cannot_be_used_is_noticed_at_once() {
    let Some(kept) = kept("refused") else { return };
    let none = ObjectsUrl::new("s3://no-such-bucket-of-ours");
    let refused = kept.open_with(Some(&none), BOUNDS).unwrap_err();
    assert!(matches!(refused, StoreError::Objects { .. }), "{refused}");
}
