//! Gives every target its corpus, each entry cut at many places: what the fuzzer once found stays mended.
#![allow(clippy::unwrap_used, reason = "helpers of tests may, like tests")]

use std::fs;
use std::path::PathBuf;

use inflight_fuzz::TARGETS;

/// Cuts of an entry that are tried as well.
const CUTS: usize = 64;

#[test]
fn every_corpus_passes_its_target() {
    // Cargo runs a test in its package's folder.
    let corpora = PathBuf::from("../../fuzz/corpus");
    for (name, target) in TARGETS {
        let entries: Vec<PathBuf> = fs::read_dir(corpora.join(name))
            .unwrap_or_else(|error| panic!("the corpus of `{name}`: {error}"))
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(!entries.is_empty(), "the corpus of `{name}` is empty");
        for entry in entries {
            let bytes = fs::read(&entry).unwrap();
            target(&bytes);
            for cut in 0..CUTS.min(bytes.len()) {
                target(bytes.get(..bytes.len() * cut / CUTS).unwrap());
            }
        }
    }
}

#[test]
fn every_target_has_its_binary() {
    let manifest = fs::read_to_string("../../fuzz/Cargo.toml").unwrap();
    for (name, _) in TARGETS {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
        let source = fs::read_to_string(format!("../../fuzz/fuzz_targets/{name}.rs")).unwrap();
        assert!(
            source.contains(&format!("inflight_fuzz::{name}(data)")),
            "{name}"
        );
    }
}
