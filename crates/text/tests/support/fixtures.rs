//! Reading the committed fixtures. Knows where they lie, not what they prove.
#![allow(dead_code, reason = "each test crate uses its part")]

use std::path::PathBuf;
use std::sync::Arc;

use inflight_text::Tokenizer;
use serde_json::Value;

/// Every tokenizer fixture, by file name.
pub(crate) const TOKENIZERS: [&str; 9] = [
    "byte_level",
    "byte_level_split",
    "byte_fallback_strip",
    "byte_fallback",
    "metaspace_unigram",
    "wordpiece",
    "word_level",
    "suffix_bpe",
    "ctc",
];

pub(crate) fn bytes(path: &str) -> Vec<u8> {
    // Cargo runs a test in its package's folder.
    let full = PathBuf::from("tests/fixtures").join(path);
    std::fs::read(&full).unwrap_or_else(|error| panic!("{}: {error}", full.display()))
}

pub(crate) fn json(path: &str) -> Value {
    serde_json::from_slice(&bytes(path)).expect("a fixture is JSON")
}

pub(crate) fn tokenizer(name: &str) -> Arc<Tokenizer> {
    let json = bytes(&format!("tokenizers/{name}.json"));
    Arc::new(Tokenizer::from_bytes(&json).expect("a fixture loads"))
}

pub(crate) fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("a list of ids")
}
