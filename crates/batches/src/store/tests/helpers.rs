//! Steps that many tests take: files, batches and results as clients and holders make them.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::kept::{ONE, PATH};
use crate::batch::{Batch, BatchObject, Dialect};
use crate::file::{File, Purpose};
use crate::id::{FileId, Owner};
use crate::lines::{Outcome, output_line};
use crate::store::{
    Claim, Close, Done, NewBatch, NewFile, Position, Receiving, Result, Store, Work,
};
use crate::usage::Usage;
use crate::window::Window;

pub(super) fn upload(store: &Store, owner: Owner, content: &[u8]) -> Result<File> {
    let mut file = store.begin_file(&new_file(owner))?;
    let sent = send(store, &mut file, content);
    if sent.is_err() {
        // What was begun counts until it is given up.
        store.abandon_file(&file)?;
    }
    sent
}

fn send(store: &Store, file: &mut Receiving, content: &[u8]) -> Result<File> {
    let mut pieces = content.chunks(store.piece_bytes()).peekable();
    while let Some(piece) = pieces.next() {
        if pieces.peek().is_none() {
            return store.finish_file(file, piece.to_vec(), "in.jsonl", Purpose::Batch, None);
        }
        store.append(file, piece.to_vec())?;
    }
    store.finish_file(file, Vec::new(), "in.jsonl", Purpose::Batch, None)
}

pub(super) fn new_file(owner: Owner) -> NewFile {
    NewFile {
        owner,
        name: "in.jsonl".to_owned(),
        purpose: Purpose::Batch,
        created: 0,
        age: None,
    }
}

/// Keeps results, and ends the batch if they were the last; returns whether they were.
pub(super) fn keep(store: &Store, claim: &Claim, done: &[Done], now: i64) -> bool {
    let are_all = store.record(claim, done, now).unwrap();
    if are_all {
        store.close(claim, Close::Completed, now).unwrap();
    }
    are_all
}

pub(super) fn read_all(store: &Store, owner: &Owner, id: FileId) -> Vec<u8> {
    let stored = store.file(owner, id, 0).unwrap();
    let (mut content, mut position) = (Vec::new(), Position::default());
    while let Some((piece, next)) = store.read_file(&stored, position).unwrap() {
        content.extend(piece);
        position = next;
    }
    assert_eq!(content.len() as i64, stored.file.bytes);
    content
}

pub(super) fn request(custom_id: &str) -> String {
    json!({"custom_id": custom_id, "method": "POST", "url": PATH, "body": {"model": "m", "of": custom_id}}).to_string()
}

pub(super) fn requests(count: usize) -> Vec<u8> {
    let lines = (0..count).map(|number| request(&number.to_string()) + "\n");
    lines.collect::<String>().into_bytes()
}

pub(super) fn new_batch(dialect: Dialect) -> NewBatch {
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

pub(super) fn create(store: &Store, lines: &[u8]) -> Batch {
    let input = upload(store, ONE, lines).unwrap();
    store
        .create_batch(&new_batch(Dialect::OpenAi), input.id)
        .unwrap()
}

pub(super) fn claim(store: &Store, holder: i64, now: i64) -> Claim {
    let mut claims = store.claim(holder, 1, now, now + 10).unwrap();
    assert_eq!(claims.len(), 1);
    claims.remove(0)
}

pub(super) fn done(claim: &Claim, work: &Work, status: u16) -> Done {
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

pub(super) fn object(store: &Store, batch: &Batch) -> Value {
    let batch = store.batch(&ONE, Dialect::OpenAi, batch.id).unwrap();
    serde_json::to_value(BatchObject::from(&batch)).unwrap()
}

pub(super) fn custom_ids(content: &[u8]) -> Vec<String> {
    let lines = content
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let read = lines.map(|line| serde_json::from_slice::<Value>(line).unwrap());
    read.map(|line| line["custom_id"].as_str().unwrap().to_owned())
        .collect()
}
