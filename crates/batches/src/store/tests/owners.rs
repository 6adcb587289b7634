//! Who sees what, and in which order.

use super::helpers::*;
use super::kept::{Kept, ONE, TWO, on_each};
use crate::batch::Dialect;
use crate::file::Purpose;
use crate::id::FileId;
use crate::store::{NewBatch, Page, StoreError};

on_each!(
    each_owner_sees_only_its_own,
    lists_are_cut_into_pages_without_gaps,
);

fn each_owner_sees_only_its_own(kept: &Kept) {
    let store = kept.open();
    let file = upload(&store, ONE, b"x").unwrap();
    assert!(matches!(
        store.file(&TWO, file.id, 0),
        Err(StoreError::NoFile)
    ));
    assert!(matches!(
        store.delete_file(&TWO, file.id, 0),
        Err(StoreError::NoFile)
    ));
    let of_two = NewBatch {
        owner: TWO,
        ..new_batch(Dialect::OpenAi)
    };
    assert!(matches!(
        store.create_batch(&of_two, file.id),
        Err(StoreError::NoFile)
    ));
    let batch = store
        .create_batch(&new_batch(Dialect::OpenAi), file.id)
        .unwrap();
    assert!(matches!(
        store.batch(&TWO, Dialect::OpenAi, batch.id),
        Err(StoreError::NoBatch)
    ));
    let page = Page {
        after: None,
        before: None,
        limit: 9,
        is_descending: true,
    };
    assert!(
        store
            .batches(&TWO, Dialect::OpenAi, &page)
            .unwrap()
            .0
            .is_empty()
    );
    assert!(store.files(&TWO, None, &page, 0).unwrap().0.is_empty());
}

fn lists_are_cut_into_pages_without_gaps(kept: &Kept) {
    let store = kept.open();
    let names: Vec<FileId> = (0..5)
        .map(|_| upload(&store, ONE, b"x").unwrap().id)
        .collect();
    for is_descending in [false, true] {
        let mut expected = names.clone();
        if is_descending {
            expected.reverse();
        }
        for limit in 1..=5 {
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let page = Page {
                    after,
                    before: None,
                    limit,
                    is_descending,
                };
                let (files, has_more) = store.files(&ONE, Some(Purpose::Batch), &page, 0).unwrap();
                seen.extend(files.iter().map(|file| file.id));
                after = files.last().map(|file| file.id.to_string());
                if !has_more {
                    break;
                }
            }
            assert_eq!(seen, expected, "{limit}");
        }
    }
    let batches: Vec<String> = (0..4)
        .map(|_| {
            store
                .create_batch_of(&new_batch(Dialect::Anthropic), b"x")
                .unwrap()
                .id
                .anthropics()
        })
        .collect();
    let page = Page {
        after: None,
        before: Some(batches[0].clone()),
        limit: 2,
        is_descending: true,
    };
    let (before, has_more) = store.batches(&ONE, Dialect::Anthropic, &page).unwrap();
    let before: Vec<String> = before.iter().map(|batch| batch.id.anthropics()).collect();
    assert_eq!(
        (before, has_more),
        (vec![batches[2].clone(), batches[1].clone()], true)
    );
}
