//! Who may change a batch: its holder alone, if others die.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::helpers::*;
use super::kept::{BOUNDS, Kept, ONE, on_each};
use crate::batch::{Counts, Dialect, Status};
use crate::store::{Claim, Close, Done, Store, StoreError};

on_each!(only_the_holder_of_a_lease_changes_anything,);

fn only_the_holder_of_a_lease_changes_anything(kept: &Kept) {
    let (one, two) = (kept.open(), kept.open());
    create(&one, &requests(3));
    let first = claim(&one, 7, 0);
    assert!(two.claim(8, 4, 9, 19).unwrap().is_empty(), "held until 10");
    assert!(one.import(&first, 1).unwrap());
    let work = one.waiting(&first, 0, 3, usize::MAX).unwrap();
    one.record(&first, &[done(&first, &work[0], 200)], 2)
        .unwrap();
    // It did not renew.
    let second = claim(&two, 8, 11);
    assert!(
        one.claim(7, 4, 12, 22).unwrap().is_empty(),
        "another has it"
    );
    for _ in 0..2 {
        let late = one.record(&first, &[done(&first, &work[1], 200)], 12);
        assert!(matches!(late, Err(StoreError::LeaseLost)));
        assert!(matches!(
            one.waiting(&first, 0, 3, 1),
            Err(StoreError::LeaseLost)
        ));
        assert!(matches!(
            one.close(&first, Close::Expired, 12),
            Err(StoreError::LeaseLost)
        ));
        assert!(matches!(one.import(&first, 12), Err(StoreError::LeaseLost)));
    }
    let left = two.waiting(&second, 0, 3, usize::MAX).unwrap();
    assert_eq!(
        left.iter().map(|one| one.number).collect::<Vec<_>>(),
        [2, 3]
    );
    // Given back, it is free at once.
    two.release(8).unwrap();
    claim(&one, 9, 12);
}

#[test]
fn leases_have_the_databases_time_whatever_the_gateways_clocks_say() {
    let Some(kept) = Kept::postgres("clock") else {
        return;
    };
    let open = || Store::connect(&kept.url(), None, BOUNDS).unwrap();
    let (one, two) = (open(), open());
    create(&one, &requests(1));
    claim(&one, 7, 0);
    let far = 1 << 40;
    assert!(two.claim(8, 1, far, far + 10).unwrap().is_empty(), "held");
    assert_eq!(one.claim(7, 1, -far, -far + 1).unwrap().len(), 1, "renewed");
    std::thread::sleep(std::time::Duration::from_millis(2100));
    claim(&two, 8, 0);
}

type Steps = Vec<(u8, usize, i64)>;

fn steps() -> impl Strategy<Value = Steps> {
    proptest::collection::vec((0_u8..5, 0_usize..3, 0_i64..25), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn each_line_has_one_result_whoever_dies_on_sqlite(steps in steps()) {
        each_line_has_one_result_whoever_dies(&Kept::sqlite("dies"), steps);
    }

    #[test]
    fn each_line_has_one_result_whoever_dies_on_sqlite_and_s3(steps in steps()) {
        if let Some(kept) = Kept::sqlite("objects-dies").with_objects("dies") {
            each_line_has_one_result_whoever_dies(&kept, steps);
        }
    }

    #[test]
    fn each_line_has_one_result_whoever_dies_on_postgres(steps in steps()) {
        if let Some(kept) = Kept::postgres("dies") {
            each_line_has_one_result_whoever_dies(&kept, steps);
        }
    }
}

/// Holders come and go at any step, at clocks that move on; late ones still try to write.
fn each_line_has_one_result_whoever_dies(kept: &Kept, steps: Steps) {
    let stores = [kept.open(), kept.open(), kept.open()];
    let batch = create(&stores[0], &requests(12));
    let mut claims: BTreeMap<usize, Claim> = BTreeMap::new();
    let mut now = 0;
    let mut recorded = BTreeSet::new();
    for (step, who, wait) in steps {
        now += wait;
        let store = &stores[who];
        let holder = i64::try_from(who).unwrap() + 1;
        match step {
            0 => {
                if let Some(claim) = store.claim(holder, 1, now, now + 10).unwrap().pop() {
                    claims.insert(who, claim);
                }
            }
            1 => store.release(holder).unwrap(),
            _ => {
                let Some(claim) = claims.get(&who) else {
                    continue;
                };
                if claim.batch.status == Status::Validating {
                    if store.import(claim, now).is_ok()
                        && let Some(claim) = store.claim(holder, 1, now, now + 10).unwrap().pop()
                    {
                        claims.insert(who, claim);
                    }
                    continue;
                }
                let Ok(work) = store.waiting(claim, 0, 3, usize::MAX) else {
                    continue;
                };
                let done: Vec<Done> = work.iter().map(|work| done(claim, work, 200)).collect();
                if let Ok(are_all) = store.record(claim, &done, now) {
                    // It may die before it has ended the batch.
                    if are_all && wait % 2 == 0 {
                        store.close(claim, Close::Completed, now).unwrap();
                    }
                    for one in done {
                        assert!(
                            recorded.insert(one.number),
                            "a line was run again after its result"
                        );
                    }
                }
            }
        }
    }
    // One that is left brings it to its end.
    now += 100;
    let last = claim_or_ended(&stores[0], now);
    if let Some(claim) = last {
        let mut claim = claim;
        if claim.batch.status == Status::Validating {
            stores[0].import(&claim, now).unwrap();
            claim = claim_or_ended(&stores[0], now).unwrap();
        }
        let work = stores[0].waiting(&claim, 0, 12, usize::MAX).unwrap();
        let done: Vec<Done> = work.iter().map(|work| done(&claim, work, 200)).collect();
        assert!(keep(&stores[0], &claim, &done, now));
    }
    let ended = stores[1].batch(&ONE, Dialect::OpenAi, batch.id).unwrap();
    assert_eq!(
        ended.counts,
        Counts {
            total: 12,
            completed: 12,
            failed: 0
        }
    );
    let ids: BTreeSet<String> = custom_ids(&read_all(&stores[2], &ONE, ended.output.unwrap()))
        .into_iter()
        .collect();
    assert_eq!(ids.len(), 12);
}

fn claim_or_ended(store: &Store, now: i64) -> Option<Claim> {
    store.claim(99, 1, now, now + 10).unwrap().pop()
}
