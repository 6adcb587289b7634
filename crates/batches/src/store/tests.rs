use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::files::Position;
use super::*;
use crate::batch::{Batch, BatchObject, Counts, Dialect, Status};
use crate::file::{File, Purpose};
use crate::id::{FileId, Owner};
use crate::lines::{Outcome, output_line};
use crate::message_batch::MessageBatch;
use crate::usage::Usage;
use crate::window::Window;

const ONE: Owner = Owner([1; 16]);
const TWO: Owner = Owner([2; 16]);
const PATH: &str = "/v1/chat/completions";
const HOUR: i64 = 3600;

const BOUNDS: Bounds = Bounds {
    bytes: 4 << 20,
    owner_bytes: 3 << 20,
    file_bytes: 2 << 20,
    line_bytes: 300_000,
    age: 30 * 24 * HOUR,
};

/// A store that goes with it: in a directory, or in a schema of the database that the environment names.
enum Kept {
    Directory(PathBuf),
    Schema { url: String, name: String },
}

/// Where a PostgreSQL is that tests may use.
const SERVER: &str = "INFLIGHT_TEST_POSTGRES";

impl Kept {
    fn sqlite(name: &str) -> Self {
        let name = format!("inflight-batches-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&directory);
        Self::Directory(directory)
    }

    /// `None`: there is no server.
    fn postgres(name: &str) -> Option<Self> {
        let url = std::env::var(SERVER).ok()?;
        let name = format!("t{}_{}", std::process::id(), &name[..name.len().min(40)]);
        let kept = Self::Schema { url, name };
        kept.recreate("");
        Some(kept)
    }

    fn recreate(&self, then: &str) {
        if let Self::Schema { url, name } = self {
            let sql = format!("DROP SCHEMA IF EXISTS {name} CASCADE; CREATE SCHEMA {name}; {then}");
            postgres::run_once(&DataUrl::new(url).read().unwrap().0, &sql);
        }
    }

    fn url(&self) -> DataUrl {
        let Self::Schema { url, name } = self else {
            unreachable!("only a server has a URL")
        };
        DataUrl::new(format!("{url}?options=-c%20search_path%3D{name}"))
    }

    fn open(&self) -> Store {
        match self {
            Self::Directory(directory) => Store::open(directory, BOUNDS).unwrap(),
            Self::Schema { .. } => Store::connect_by(&self.url(), BOUNDS, Clock::Caller).unwrap(),
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        match &*self {
            Self::Directory(directory) => drop(std::fs::remove_dir_all(directory)),
            Self::Schema { name, .. } => self.recreate(&format!("DROP SCHEMA {name}")),
        }
    }
}

/// Each of these is true of both engines.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[test] fn $name() { super::$name(&super::Kept::sqlite(stringify!($name))); })*
        }
        mod on_postgres {
            $(#[test] fn $name() {
                if let Some(kept) = super::Kept::postgres(stringify!($name)) {
                    super::$name(&kept);
                }
            })*
        }
    };
}

on_both!(
    a_batch_runs_from_its_file_to_its_results,
    a_file_that_is_not_all_requests_fails_its_batch_and_says_where,
    only_the_holder_of_a_lease_changes_anything,
    what_was_not_run_says_so,
    anthropics_batches_have_all_results_in_one_place,
    each_owner_sees_only_its_own,
    lists_are_cut_into_pages_without_gaps,
    nothing_grows_beyond_its_bounds,
    what_is_deleted_or_too_old_goes_and_what_is_needed_stays,
    deleted_results_are_gone_and_their_batch_is_not,
    any_text_is_kept,
);

fn upload(store: &Store, owner: Owner, content: &[u8]) -> Result<File> {
    let new = NewFile {
        owner,
        name: "in.jsonl".to_owned(),
        purpose: Purpose::Batch,
        created: 0,
        age: None,
    };
    let key = store.begin_file(&new)?;
    for (number, piece) in (0_i64..).zip(content.chunks(Store::piece_bytes())) {
        store.append(key, number, piece)?;
    }
    store.finish_file(key, "in.jsonl", Purpose::Batch, None)
}

fn read_all(store: &Store, owner: &Owner, id: FileId) -> Vec<u8> {
    let stored = store.file(owner, id, 0).unwrap();
    let (mut content, mut position) = (Vec::new(), Position::default());
    while let Some((piece, next)) = store.read_file(&stored, position).unwrap() {
        content.extend(piece);
        position = next;
    }
    assert_eq!(content.len() as i64, stored.file.bytes);
    content
}

fn request(custom_id: &str) -> String {
    json!({"custom_id": custom_id, "method": "POST", "url": PATH, "body": {"model": "m", "of": custom_id}}).to_string()
}

fn requests(count: usize) -> Vec<u8> {
    let lines = (0..count).map(|number| request(&number.to_string()) + "\n");
    lines.collect::<String>().into_bytes()
}

fn new_batch(dialect: Dialect) -> NewBatch {
    NewBatch {
        owner: ONE,
        dialect,
        endpoint: PATH.to_owned(),
        window: Window::DAY,
        metadata: serde_json::from_str(r#"{"a": "b"}"#).ok(),
        results_age: None,
        created: 0,
    }
}

fn create(store: &Store, lines: &[u8]) -> Batch {
    let input = upload(store, ONE, lines).unwrap();
    store
        .create_batch(&new_batch(Dialect::OpenAi), input.id)
        .unwrap()
}

fn claim(store: &Store, holder: i64, now: i64) -> Claim {
    let mut claims = store.claim(holder, 1, now, now + 10).unwrap();
    assert_eq!(claims.len(), 1);
    claims.remove(0)
}

fn done(claim: &Claim, work: &Work, status: u16) -> Done {
    let body: Box<RawValue> = serde_json::from_slice(&work.body).unwrap();
    let outcome = Outcome {
        status,
        request_id: "r",
        body: &body,
    };
    Done {
        number: work.number,
        succeeded: outcome.is_success(),
        result: output_line(claim.batch.dialect, &work.custom_id, &outcome),
        usage: Usage {
            input: 2,
            output: 3,
            ..Usage::default()
        },
    }
}

fn object(store: &Store, batch: &Batch) -> Value {
    let batch = store.batch(&ONE, Dialect::OpenAi, batch.id).unwrap();
    serde_json::to_value(BatchObject::from(&batch)).unwrap()
}

fn custom_ids(content: &[u8]) -> Vec<String> {
    let lines = content
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let read = lines.map(|line| serde_json::from_slice::<Value>(line).unwrap());
    read.map(|line| line["custom_id"].as_str().unwrap().to_owned())
        .collect()
}

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
        assert!(
            !store
                .record(&claim, &[done(&claim, work, status(work))], 3)
                .unwrap()
        );
    }
    assert_eq!(store.waiting(&claim, 0, 10, usize::MAX).unwrap().len(), 1);
    assert!(
        store
            .record(&claim, &[done(&claim, &work[2], 200)], 9)
            .unwrap()
    );
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
        assert_eq!(ended["status"], status);
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

fn nothing_grows_beyond_its_bounds(kept: &Kept) {
    let store = kept.open();
    let megabyte = vec![b'x'; 1 << 20];
    let large = vec![b'x'; (2 << 20) + 1];
    assert!(matches!(
        upload(&store, ONE, &large),
        Err(StoreError::FileTooLarge(_))
    ));
    // What was begun counts until it is given up.
    let begun: Vec<i64> = store
        .read(|transaction| {
            Ok(transaction.query("SELECT key FROM files", &[], |row| row.integer(0))?)
        })
        .unwrap();
    for key in begun {
        store.abandon_file(key).unwrap();
    }
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
        store
            .record(&claim, &[done(&claim, &work, 200)], 2)
            .unwrap();
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
    store
        .record(
            &claim,
            &[done(&claim, &work[0], 200), done(&claim, &work[1], 500)],
            2,
        )
        .unwrap();
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

#[test]
fn a_store_of_a_newer_version_is_left_alone() {
    let kept = Kept::sqlite("newer");
    drop(kept.open());
    let Kept::Directory(directory) = &kept else {
        unreachable!("it was just made")
    };
    let connection = rusqlite::Connection::open(directory.join(FILE)).unwrap();
    connection
        .pragma_update(None, "user_version", schema::VERSION + 1)
        .unwrap();
    let refused = Store::open(directory, BOUNDS).unwrap_err();
    assert!(matches!(refused, StoreError::Newer { .. }), "{refused}");
    let beside = directory.join("file");
    std::fs::write(&beside, b"x").unwrap();
    assert!(matches!(
        Store::open(&beside, BOUNDS),
        Err(StoreError::Directory { .. })
    ));
}

#[test]
fn a_database_of_a_newer_version_is_left_alone() {
    let Some(kept) = Kept::postgres("newer") else {
        return;
    };
    drop(kept.open());
    let (config, _) = kept.url().read().unwrap();
    postgres::run_once(&config, "UPDATE inflight_layout SET version = version + 1");
    let refused = Store::connect(&kept.url(), BOUNDS).unwrap_err();
    assert!(matches!(refused, StoreError::Newer { .. }), "{refused}");
}

#[test]
fn leases_have_the_databases_time_whatever_the_gateways_clocks_say() {
    let Some(kept) = Kept::postgres("clock") else {
        return;
    };
    let open = || Store::connect(&kept.url(), BOUNDS).unwrap();
    let (one, two) = (open(), open());
    create(&one, &requests(1));
    claim(&one, 7, 0);
    let far = 1 << 40;
    assert!(two.claim(8, 1, far, far + 10).unwrap().is_empty(), "held");
    assert_eq!(one.claim(7, 1, -far, -far + 1).unwrap().len(), 1, "renewed");
    std::thread::sleep(std::time::Duration::from_millis(2100));
    claim(&two, 8, 0);
}

#[test]
fn a_lost_connection_is_made_again_and_what_was_begun_is_undone() {
    let Some(kept) = Kept::postgres("lost") else {
        return;
    };
    let DataUrl(url) = kept.url();
    let named = DataUrl(format!("{url}&application_name=lost"));
    let store = Store::connect(&named, BOUNDS).unwrap();
    let file = upload(&store, ONE, b"x").unwrap();
    let cut = || {
        let sql = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'lost'";
        postgres::run_once(&kept.url().read().unwrap().0, sql);
    };
    // Between two calls nobody notices.
    cut();
    assert_eq!(read_all(&store, &ONE, file.id), b"x");
    upload(&store, ONE, b"y").unwrap();
    let failed = store.change(|transaction| {
        transaction.execute("DELETE FROM files", &[])?;
        cut();
        Ok(transaction.execute("DELETE FROM pieces", &[])?)
    });
    assert!(matches!(failed, Err(StoreError::Database(_))));
    assert_eq!(read_all(&store, &ONE, file.id), b"x");
    upload(&store, ONE, b"z").unwrap();
}

fn any_text_is_kept(kept: &Kept) {
    let store = kept.open();
    let names = ["a\0b", "\u{10FFFF}0", "é"];
    let lines: Vec<String> = names.iter().map(|name| request(name)).collect();
    create(&store, lines.join("\n").as_bytes());
    let claim = claim(&store, 7, 1);
    assert!(store.import(&claim, 2).unwrap());
    let work = store.waiting(&claim, 0, 10, usize::MAX).unwrap();
    let found: Vec<&str> = work.iter().map(|work| work.custom_id.as_str()).collect();
    assert_eq!(found, names);
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
                if store.record(claim, &done, now).is_ok() {
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
        assert!(stores[0].record(&claim, &done, now).unwrap());
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
