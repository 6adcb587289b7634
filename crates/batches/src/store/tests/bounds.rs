//! How much is kept, and for how long.

use super::helpers::*;
use super::kept::{BOUNDS, HOUR, Kept, ONE, TWO, on_each};
use crate::batch::{Counts, Dialect};
use crate::file::{File, Purpose};
use crate::store::{NewFile, StoreError};

on_each!(
    nothing_grows_beyond_its_bounds,
    what_is_deleted_or_too_old_goes_and_what_is_needed_stays,
    deleted_results_are_gone_and_their_batch_is_not,
);

fn nothing_grows_beyond_its_bounds(kept: &Kept) {
    let store = kept.open();
    let megabyte = vec![b'x'; 1 << 20];
    let large = vec![b'x'; (2 << 20) + 1];
    assert!(matches!(
        upload(&store, ONE, &large),
        Err(StoreError::FileTooLarge(_))
    ));
    let files: Vec<File> = (0..3)
        .map(|_| upload(&store, ONE, &megabyte).unwrap())
        .collect();
    assert!(matches!(
        upload(&store, ONE, b"x"),
        Err(StoreError::OwnerFull(_))
    ));
    upload(&store, TWO, &megabyte).unwrap();
    assert!(matches!(
        upload(&store, TWO, b"x"),
        Err(StoreError::Full(_))
    ));
    store.delete_file(&ONE, files[0].id, 0).unwrap();
    upload(&store, TWO, &megabyte).unwrap();
}

fn what_is_deleted_or_too_old_goes_and_what_is_needed_stays(kept: &Kept) {
    let store = kept.open();
    let batch = create(&store, &requests(2));
    store.delete_file(&ONE, batch.input, 0).unwrap();
    assert!(matches!(
        store.file(&ONE, batch.input, 0),
        Err(StoreError::NoFile)
    ));
    let claim = claim(&store, 7, 1);
    assert!(
        store.import(&claim, 1).unwrap(),
        "the batch has begun: it still reads its file"
    );
    for work in store.waiting(&claim, 0, 2, usize::MAX).unwrap() {
        keep(&store, &claim, &[done(&claim, &work, 200)], 2);
    }
    let pieces = || -> i64 {
        store
            .read(|transaction| Ok(transaction.integer("SELECT COUNT(*) FROM pieces", &[])?))
            .unwrap()
    };
    assert_eq!(pieces(), 0, "now nobody needs it");
    let output = store
        .batch(&ONE, Dialect::OpenAi, batch.id)
        .unwrap()
        .output
        .unwrap();
    let unfinished = NewFile {
        owner: ONE,
        name: String::new(),
        purpose: Purpose::Batch,
        created: 0,
        age: None,
    };
    store.begin_file(&unfinished).unwrap();
    assert_eq!(store.sweep(HOUR).unwrap(), 0);
    assert_eq!(store.sweep(25 * HOUR).unwrap(), 1, "the upload");
    let late = BOUNDS.age + 10;
    assert!(matches!(
        store.file(&ONE, output, late),
        Err(StoreError::NoFile)
    ));
    assert_eq!(
        store.sweep(late).unwrap(),
        2,
        "the results and then the batch"
    );
    assert!(matches!(
        store.batch(&ONE, Dialect::OpenAi, batch.id),
        Err(StoreError::NoBatch)
    ));
}

fn deleted_results_are_gone_and_their_batch_is_not(kept: &Kept) {
    let store = kept.open();
    let batch = create(&store, &requests(2));
    let claim = claim(&store, 7, 1);
    store.import(&claim, 1).unwrap();
    let work = store.waiting(&claim, 0, 2, usize::MAX).unwrap();
    let results = [done(&claim, &work[0], 200), done(&claim, &work[1], 500)];
    assert!(keep(&store, &claim, &results, 2));
    let ended = store.batch(&ONE, Dialect::OpenAi, batch.id).unwrap();
    store.delete_file(&ONE, ended.output.unwrap(), 3).unwrap();
    let left = store.batch(&ONE, Dialect::OpenAi, batch.id).unwrap();
    assert_eq!((left.output, left.failures), (None, ended.failures));
    assert_eq!(
        left.counts,
        Counts {
            total: 2,
            completed: 1,
            failed: 1
        }
    );
    assert_eq!(
        custom_ids(&read_all(&store, &ONE, left.failures.unwrap())),
        ["1"]
    );
}
