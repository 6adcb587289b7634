//! A batch from its file to its results, or to its end without them.

use serde_json::{Value, json};

use super::helpers::*;
use super::kept::{HOUR, Kept, ONE, on_each};
use crate::batch::{Dialect, Status};
use crate::id::FileId;
use crate::message_batch::MessageBatch;
use crate::store::{Close, MAX_LINES, Page, Position, StoreError, Work};

on_each!(
    a_batch_runs_from_its_file_to_its_results,
    a_file_that_is_not_all_requests_fails_its_batch_and_says_where,
    what_was_not_run_says_so,
    anthropics_batches_have_all_results_in_one_place,
);

fn a_batch_runs_from_its_file_to_its_results(kept: &Kept) {
    let store = kept.open();
    let batch = create(&store, &requests(5));
    assert_eq!(object(&store, &batch)["status"], "validating");
    let claim = claim(&store, 7, 1);
    assert!(store.import(&claim, 2).unwrap());
    let now = object(&store, &batch);
    assert_eq!(
        (&now["status"], &now["in_progress_at"]),
        (&json!("in_progress"), &json!(2))
    );
    assert_eq!(now["metadata"], json!({"a": "b"}));
    assert_eq!(
        (&now["errors"], &now["expires_at"]),
        (&Value::Null, &json!(24 * HOUR))
    );
    let work = store.waiting(&claim, 0, 10, usize::MAX).unwrap();
    assert_eq!(
        work.iter().map(|one| one.number).collect::<Vec<_>>(),
        [1, 2, 3, 4, 5]
    );
    assert_eq!(work[3].body, br#"{"model":"m","of":"3"}"#);
    let status = |work: &Work| if work.number == 2 { 400 } else { 200 };
    // Out of order, and one of them twice.
    for place in [4, 1, 1, 0, 3] {
        let work = &work[place];
        assert!(!keep(
            &store,
            &claim,
            &[done(&claim, work, status(work))],
            3
        ));
    }
    assert_eq!(store.waiting(&claim, 0, 10, usize::MAX).unwrap().len(), 1);
    assert!(keep(&store, &claim, &[done(&claim, &work[2], 200)], 9));
    let ended = object(&store, &batch);
    assert_eq!(ended["status"], "completed");
    assert_eq!(
        (&ended["completed_at"], &ended["failed_at"]),
        (&json!(9), &Value::Null)
    );
    assert_eq!(
        ended["request_counts"],
        json!({"total": 5, "completed": 4, "failed": 1})
    );
    assert_eq!(
        (
            &ended["usage"]["input_tokens"],
            &ended["usage"]["total_tokens"]
        ),
        (&json!(10), &json!(25))
    );
    let file = |name: &str| FileId::parse(ended[name].as_str().unwrap()).unwrap();
    assert_eq!(
        custom_ids(&read_all(&store, &ONE, file("output_file_id"))),
        ["0", "2", "3", "4"]
    );
    assert_eq!(
        custom_ids(&read_all(&store, &ONE, file("error_file_id"))),
        ["1"]
    );
    assert!(
        store.claim(8, 1, 10, 20).unwrap().is_empty(),
        "nothing is left to do"
    );
    assert!(matches!(
        store.record(&claim, &[], 10),
        Err(StoreError::LeaseLost)
    ));
}

fn a_file_that_is_not_all_requests_fails_its_batch_and_says_where(kept: &Kept) {
    let store = kept.open();
    let twice = format!("{}\n\n{}\nx\n{}", request("a"), request("b"), request("a"));
    let long = request(&"x".repeat(300_000));
    for (content, expected) in [
        (
            twice.as_bytes(),
            &[
                ("invalid_json_line", Some(3)),
                ("duplicate_custom_id", Some(4)),
            ][..],
        ),
        (b" \n\n", &[("empty_file", None)]),
        (b"", &[("empty_file", None)]),
        (long.as_bytes(), &[("request_too_large", Some(1))]),
    ] {
        let batch = create(&store, content);
        let claim = claim(&store, 7, 1);
        assert!(!store.import(&claim, 2).unwrap());
        let failed = object(&store, &batch);
        assert_eq!(
            (&failed["status"], &failed["failed_at"]),
            (&json!("failed"), &json!(2))
        );
        let errors = failed["errors"]["data"].as_array().unwrap();
        let found: Vec<_> = errors
            .iter()
            .map(|one| (one["code"].as_str().unwrap(), one["line"].as_i64()))
            .collect();
        assert_eq!(found, expected);
    }
    let many: Vec<u8> = (0..=MAX_LINES).flat_map(|_| *b"{}\n").collect();
    let batch = create(&store, &many);
    assert!(!store.import(&claim(&store, 7, 1), 2).unwrap());
    let errors = object(&store, &batch)["errors"]["data"].clone();
    assert_eq!(errors.as_array().unwrap().len(), 20, "more say nothing new");
}

fn what_was_not_run_says_so(kept: &Kept) {
    let store = kept.open();
    for (close, status, failures) in [
        (
            Close::Expired,
            "expired",
            Some(vec!["1".to_owned(), "2".to_owned()]),
        ),
        (Close::Cancelled, "cancelled", None),
    ] {
        let batch = create(&store, &requests(3));
        let claim = claim(&store, 7, 1);
        store.import(&claim, 2).unwrap();
        let work = store.waiting(&claim, 0, 1, usize::MAX).unwrap();
        store
            .record(&claim, &[done(&claim, &work[0], 200)], 3)
            .unwrap();
        if close == Close::Cancelled {
            let cancelled = store
                .cancel_batch(&ONE, Dialect::OpenAi, batch.id, 4)
                .unwrap();
            assert_eq!(
                (cancelled.status, cancelled.cancelling),
                (Status::Cancelling, Some(4))
            );
        }
        store.close(&claim, close, 5).unwrap();
        let ended = object(&store, &batch);
        assert_eq!(
            (&ended["status"], &ended["finalizing_at"]),
            (&json!(status), &Value::Null)
        );
        let output = FileId::parse(ended["output_file_id"].as_str().unwrap()).unwrap();
        assert_eq!(custom_ids(&read_all(&store, &ONE, output)), ["0"]);
        let ids = ended["error_file_id"].as_str().and_then(FileId::parse);
        assert_eq!(
            ids.map(|id| custom_ids(&read_all(&store, &ONE, id))),
            failures
        );
        let again = store.cancel_batch(&ONE, Dialect::OpenAi, batch.id, 6);
        assert!(matches!(again, Err(StoreError::Status(_))), "it has ended");
    }
}

fn anthropics_batches_have_all_results_in_one_place(kept: &Kept) {
    let store = kept.open();
    let new = new_batch(Dialect::Anthropic);
    let batch = store.create_batch_of(&new, &requests(3)).unwrap();
    let claim = claim(&store, 7, 1);
    store.import(&claim, 2).unwrap();
    let work = store.waiting(&claim, 0, 2, usize::MAX).unwrap();
    store
        .record(
            &claim,
            &[done(&claim, &work[0], 200), done(&claim, &work[1], 400)],
            3,
        )
        .unwrap();
    let show = |id| {
        let batch = store.batch(&ONE, Dialect::Anthropic, id).unwrap();
        serde_json::to_value(MessageBatch::new(&batch, |time| time.to_string())).unwrap()
    };
    let open = show(batch.id);
    assert_eq!(
        (&open["processing_status"], &open["results_url"]),
        (&json!("in_progress"), &Value::Null)
    );
    store.close(&claim, Close::Expired, 4).unwrap();
    let ended = show(batch.id);
    assert_eq!(
        (&ended["processing_status"], &ended["ended_at"]),
        (&json!("ended"), &json!("4"))
    );
    let counts =
        json!({"processing": 0, "succeeded": 1, "errored": 1, "canceled": 0, "expired": 1});
    assert_eq!(ended["request_counts"], counts);
    let results = store
        .read_results(&ONE, Dialect::Anthropic, batch.id, Position::default())
        .unwrap();
    let kinds: Vec<Value> = results
        .unwrap()
        .0
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice::<Value>(line).unwrap()["result"]["type"].clone())
        .collect();
    assert_eq!(kinds, ["succeeded", "errored", "expired"]);
    let page = Page {
        after: None,
        before: None,
        limit: 9,
        is_descending: true,
    };
    assert!(
        store.files(&ONE, None, &page, 0).unwrap().0.is_empty(),
        "its requests are no file"
    );
    assert!(matches!(
        store.batch(&ONE, Dialect::OpenAi, batch.id),
        Err(StoreError::NoBatch)
    ));
    store
        .delete_batch(&ONE, Dialect::Anthropic, batch.id)
        .unwrap();
    let gone = store.read_results(&ONE, Dialect::Anthropic, batch.id, Position::default());
    assert!(matches!(gone, Err(StoreError::NoBatch)));
    let rows = |table: &str| -> i64 {
        let sql = format!("SELECT COUNT(*) FROM {table}");
        store
            .read(|transaction| Ok(transaction.integer(&sql, &[])?))
            .unwrap()
    };
    for table in ["files", "pieces", "batches", "lines"] {
        assert_eq!(rows(table), 0, "{table}");
    }
}
