//! Ids and texts equal those of the PyPI package `tokenizers` (see make_fixtures.py), and a stream's
//! text equals the decoding of its ids, for every shape of decoder.
#![allow(clippy::unwrap_used, reason = "helpers of tests may, like tests")]

use std::sync::Arc;

use inflight_text::{Detokenizer, TextError, Tokenizer};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

#[path = "support/fixtures.rs"]
mod fixtures;

use fixtures::{TOKENIZERS, ids, json, tokenizer};

#[test]
fn ids_equal_the_python_packages() {
    let cases = json("tokens.json");
    for name in TOKENIZERS {
        let tokenizer = tokenizer(name);
        let cases = &cases[name];
        assert_eq!(
            tokenizer.vocab_size() as u64,
            cases["size"].as_u64().unwrap()
        );
        for case in cases["texts"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let plain = tokenizer.encode(text, false).unwrap();
            assert_eq!(plain, ids(&case["ids"]), "{name}: {text:?}");
            let special = tokenizer.encode(text, true).unwrap();
            assert_eq!(special, ids(&case["special"]), "{name}: {text:?}");
        }
    }
}

#[test]
fn no_text_has_fewer_tokens_than_the_bound_says() {
    let cases = json("tokens.json");
    let mut bounded = 0;
    for name in TOKENIZERS {
        let tokenizer = tokenizer(name);
        bounded += usize::from(tokenizer.fewest_tokens(1) > 0);
        let texts = cases[name]["texts"].as_array().unwrap();
        let texts = texts.iter().map(|case| case["text"].as_str().unwrap());
        let composed = "\u{1112}\u{1161}\u{11ab}".repeat(50);
        for text in texts.chain([" ".repeat(500).as_str(), &composed]) {
            let Ok(ids) = tokenizer.encode(text, false) else {
                continue;
            };
            let fewest = tokenizer.fewest_tokens(text.len());
            assert!(fewest <= ids.len(), "{name}: {text:?}");
        }
    }
    assert!(bounded > 0, "some tokenizer of the fixtures is byte-level");
}

#[test]
fn texts_equal_the_python_packages() {
    let cases = json("tokens.json");
    for name in TOKENIZERS {
        let tokenizer = tokenizer(name);
        for case in cases[name]["decodes"].as_array().unwrap() {
            let ids = ids(&case["ids"]);
            for (skip, key) in [(false, "kept"), (true, "skipped")] {
                let text = tokenizer.decode(&ids, skip).unwrap();
                assert_eq!(text, case[key].as_str().unwrap(), "{name}: {ids:?}");
            }
        }
    }
}

/// Streams ids and checks after each that what came so far starts the whole text.
fn stream(tokenizer: &Arc<Tokenizer>, ids: &[u32], skip: bool) -> Result<(), TestCaseError> {
    let whole = tokenizer.decode(ids, skip).unwrap();
    let mut detokenizer = Detokenizer::new(tokenizer.clone(), skip);
    let mut text = String::new();
    for id in ids {
        detokenizer.push(*id, &mut text);
        prop_assert!(
            whole.starts_with(&text),
            "{text:?} does not start {whole:?} ({ids:?})"
        );
    }
    detokenizer.finish(&mut text);
    prop_assert_eq!(text, whole, "{:?}", ids);
    Ok(())
}

/// Ids of a vocabulary and a few outside of it, with runs from one end so that byte tokens, special
/// tokens and their neighbours meet often.
fn any_ids(size: u32) -> impl Strategy<Value = Vec<u32>> {
    let id = prop_oneof![
        4 => 0..size,
        3 => 0..size.min(262),
        2 => size.saturating_sub(8)..size + 3,
        1 => any::<u32>(),
    ];
    prop::collection::vec(id, 0..40)
}

#[test]
fn any_stream_equals_the_whole_decoding() {
    for name in TOKENIZERS {
        let tokenizer = tokenizer(name);
        let size = u32::try_from(tokenizer.vocab_size()).unwrap();
        let mut runner = TestRunner::new(Config::with_cases(600));
        runner
            .run(&(any_ids(size), any::<bool>()), |(ids, skip)| {
                stream(&tokenizer, &ids, skip)
            })
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn any_encoded_text_streams_back() {
    for name in TOKENIZERS {
        let tokenizer = tokenizer(name);
        let mut runner = TestRunner::new(Config::with_cases(150));
        runner
            .run(&"(\\PC|[ 日本語🎉👩é<>|])*", |text| {
                let ids = tokenizer.encode(&text, true).unwrap();
                stream(&tokenizer, &ids, true)
            })
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn a_character_of_several_tokens_comes_whole() {
    let tokenizer = tokenizer("byte_level");
    let ids = tokenizer.encode("a🎉b", false).unwrap();
    assert!(ids.len() > 3, "the emoji takes several tokens: {ids:?}");
    let mut detokenizer = Detokenizer::new(tokenizer, true);
    let mut deltas = Vec::new();
    for id in ids {
        let mut delta = String::new();
        detokenizer.push(id, &mut delta);
        if !delta.is_empty() {
            deltas.push(delta);
        }
    }
    assert_eq!(deltas, ["a", "🎉", "b"]);
}

/// (fixture, pieces that hold text back, what each shows)
#[test]
fn only_what_may_change_is_held_back() {
    let cases: [(&str, &[&str], &[&str]); 4] = [
        // A run of byte tokens waits for the text that ends it; the leading space is dropped.
        (
            "byte_fallback_strip",
            &["▁a", "<0xC3>", "<0xA9>", "b", "<0xFF>", "▁a"],
            &["a", "", "", "éb", "", "\u{FFFD} a"],
        ),
        (
            "word_level",
            &["the", "token", "one"],
            &["the", " token", " one"],
        ),
        ("suffix_bpe", &["t", "t</w>", "t"], &["", "t", "t "]),
        ("wordpiece", &["the", "##e", "a"], &["the", "e", " a"]),
    ];
    for (name, tokens, deltas) in cases {
        let tokenizer = tokenizer(name);
        let mut detokenizer = Detokenizer::new(tokenizer.clone(), true);
        for (token, expected) in tokens.iter().zip(deltas) {
            let id = tokenizer
                .token_id(token)
                .unwrap_or_else(|| panic!("{name} has {token}"));
            let mut delta = String::new();
            detokenizer.push(id, &mut delta);
            assert_eq!(delta, *expected, "{name}: {token}");
        }
    }
}

#[test]
fn a_token_shows_its_bytes() {
    let tokenizer = tokenizer("byte_level");
    let ids = tokenizer.encode("🎉", false).unwrap();
    let bytes: Vec<u8> = ids
        .iter()
        .flat_map(|id| tokenizer.token_text(*id).unwrap().bytes().to_vec())
        .collect();
    assert_eq!(bytes, "🎉".as_bytes());
    let special = tokenizer.token_id("<|end|>").unwrap();
    let shown = tokenizer.token_text(special).unwrap();
    assert_eq!(
        (shown.text().as_ref(), shown.is_special()),
        ("<|end|>", true)
    );
    let beyond = u32::try_from(tokenizer.vocab_size()).unwrap();
    assert_eq!(tokenizer.token_text(beyond), None);
    assert!(!tokenizer.contains(u32::MAX));
}

#[test]
fn truncation_and_padding_of_the_file_are_off() {
    let mut file = json("tokenizers/byte_level.json");
    file["truncation"] = serde_json::json!({
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0
    });
    file["padding"] = serde_json::json!({
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!"
    });
    let cut = Tokenizer::from_bytes(&serde_json::to_vec(&file).unwrap()).unwrap();
    let text = "the engine streams the text";
    let whole = tokenizer("byte_level").encode(text, true).unwrap();
    assert_eq!(cut.encode(text, true).unwrap(), whole);
}

#[test]
fn files_that_are_no_tokenizer_are_errors() {
    let mut broken_decoder = json("tokenizers/byte_level.json");
    // The library panics on this one.
    broken_decoder["decoder"] = serde_json::json!({"type": "Sequence", "decoders": [7]});
    let cases = [
        b"".to_vec(),
        b"null".to_vec(),
        b"{}".to_vec(),
        b"\xff\xfe".to_vec(),
        br#"{"model":{"type":"BPE","vocab":{"a":0},"merges":["x y"]}}"#.to_vec(),
        serde_json::to_vec(&broken_decoder).unwrap(),
    ];
    for case in cases {
        let result = Tokenizer::from_bytes(&case);
        assert!(matches!(result, Err(TextError::Load { .. })), "{result:?}");
    }
    let sparse = br#"{"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":null,
        "post_processor":null,"decoder":null,
        "model":{"type":"WordLevel","vocab":{"a":0,"b":4000000000},"unk_token":"a"}}"#;
    assert!(matches!(
        Tokenizer::from_bytes(sparse),
        Err(TextError::SparseVocabulary {
            id: 4_000_000_000,
            ..
        })
    ));
}

/// Decoders on which the library itself panics or whose chains no known tokenizer has: nothing
/// panics, and the stream still equals the decoding, where there is one.
#[test]
fn odd_decoders_are_survived() {
    let decoders = serde_json::json!([
        {"type": "Strip", "content": "a", "start": 0, "stop": 9},
        {"type": "Strip", "content": "t", "start": 2, "stop": 0},
        {"type": "Sequence", "decoders": []},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "BPEDecoder", "suffix": "e"}]},
        {"type": "Sequence", "decoders": [
            {"type": "ByteFallback"},
            {"type": "Metaspace", "replacement": "t", "prepend_scheme": "always", "split": true}]},
        {"type": "Sequence", "decoders": [
            {"type": "BPEDecoder", "suffix": "e"},
            {"type": "WordPiece", "prefix": "t", "cleanup": true},
            {"type": "Fuse"},
            {"type": "Strip", "content": "t", "start": 3, "stop": 0}]},
        {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"Regex": "(?i)[aeo]+"}, "content": "🎉"},
            {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}]},
        {"type": "Sequence", "decoders": [
            {"type": "Metaspace", "replacement": "Ġ", "prepend_scheme": "first", "split": true},
            {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            {"type": "Strip", "content": "t", "start": 2, "stop": 0}]},
    ]);
    for decoder in decoders.as_array().unwrap() {
        let mut file = json("tokenizers/word_level.json");
        file["decoder"] = decoder.clone();
        let tokenizer =
            Arc::new(Tokenizer::from_bytes(&serde_json::to_vec(&file).unwrap()).unwrap());
        let size = u32::try_from(tokenizer.vocab_size()).unwrap();
        let mut runner = TestRunner::new(Config::with_cases(200));
        runner
            .run(&any_ids(size), |ids| match tokenizer.decode(&ids, false) {
                Ok(_) => stream(&tokenizer, &ids, false),
                Err(TextError::Decode { .. }) => {
                    let mut text = String::new();
                    let mut detokenizer = Detokenizer::new(tokenizer.clone(), false);
                    for id in ids {
                        detokenizer.push(id, &mut text);
                    }
                    detokenizer.finish(&mut text);
                    Ok(())
                }
                Err(error) => panic!("{error}"),
            })
            .unwrap_or_else(|error| panic!("{decoder}: {error}"));
    }
}
