//! What is known of a tokenizer by its file: which shortcuts it may take, and which are left to the library.
#![allow(clippy::unwrap_used, reason = "helpers of tests may, like tests")]

use serde_json::{Map, Value, json};
use tokenizers::Tokenizer as Library;

use super::added::{AddedTokens, Part};
use super::affixes::Affixes;
use super::bound::most_bytes_per_token;
use super::decoder::{Assembly, DecoderParts};
use super::pieces::Pieces;
use super::segments::Segments;
use super::*;

/// GPT-2's stand-ins for bytes, but for those that `without` has, and a word of five bytes.
fn vocabulary(without: &[u8]) -> Map<String, Value> {
    let mut other = 0x100u32;
    let mut tokens = vec!["hello".to_owned()];
    for byte in 0..=u8::MAX {
        let character = if matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) {
            char::from(byte)
        } else {
            other += 1;
            char::from_u32(other - 1).unwrap()
        };
        if !without.contains(&byte) {
            tokens.push(character.to_string());
        }
    }
    (0u32..)
        .zip(tokens)
        .map(|(id, token)| (token, id.into()))
        .collect()
}

/// A tokenizer of bytes that differs by these parts from the plainest one.
fn file(parts: &Value) -> Value {
    let mut file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": byte_level(), "post_processor": null, "decoder": byte_level(),
        "model": {"type": "BPE", "vocab": vocabulary(&[]), "merges": []},
    });
    let all = file.as_object_mut().unwrap();
    all.extend(parts.as_object().unwrap().clone());
    file
}

fn library(parts: &Value) -> Library {
    Library::from_bytes(file(parts).to_string()).unwrap()
}

fn byte_level() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
}

fn split(behavior: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": " "}, "behavior": behavior, "invert": false})
}

fn sequence(splitters: &[Value]) -> Value {
    json!({"type": "Sequence", "pretokenizers": splitters})
}

fn added(id: u32, content: &str, more: &Value) -> Value {
    let mut token = json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    });
    let all = token.as_object_mut().unwrap();
    all.extend(more.as_object().unwrap().clone());
    token
}

#[test]
fn the_longest_token_bounds_a_text_where_no_text_can_vanish() {
    let digits = json!({"type": "Digits", "individual_digits": true});
    let without = |bytes: &[u8]| {
        let vocabulary = vocabulary(bytes);
        json!({"model": {"type": "BPE", "vocab": vocabulary, "merges": []}})
    };
    let end = |more: Value| json!({"added_tokens": [added(257, "<|end|>", &more)]});
    for (parts, expected) in [
        (json!({}), Some(5)),
        (json!({"normalizer": {"type": "NFC"}}), Some(20)),
        (json!({"normalizer": {"type": "NFD"}}), None),
        (json!({"normalizer": {"type": "Lowercase"}}), None),
        (json!({"pre_tokenizer": null}), None),
        (json!({"pre_tokenizer": digits}), None),
        (json!({"pre_tokenizer": {"type": "Whitespace"}}), None),
        (
            json!({"pre_tokenizer": sequence(&[digits, byte_level()])}),
            Some(5),
        ),
        (
            json!({"pre_tokenizer": sequence(&[split("Isolated"), byte_level()])}),
            Some(5),
        ),
        (
            json!({"pre_tokenizer": sequence(&[split("Removed"), byte_level()])}),
            None,
        ),
        (
            json!({"pre_tokenizer": sequence(&[json!({"type": "Whitespace"}), byte_level()])}),
            None,
        ),
        (
            json!({"pre_tokenizer": sequence(&[sequence(&[byte_level()])])}),
            Some(5),
        ),
        (end(json!({})), Some(7)),
        (end(json!({"lstrip": true})), None),
        (end(json!({"rstrip": true})), None),
        (without(b"a"), None),
        (without(&[0]), None),
        (without(&[0xf4]), None),
        // No text has these bytes.
        (without(&[0xc0, 0xc1, 0xf5, 0xff]), Some(5)),
    ] {
        let library = library(&parts);
        let mut decoder = DecoderParts::read(library.get_decoder());
        let pieces = Pieces::build(&library, &mut decoder).unwrap();
        let most = most_bytes_per_token(&library, &pieces);
        assert_eq!(most, expected, "{parts}");
    }
}

#[test]
fn tokens_around_a_text_are_known_where_the_text_comes_once() {
    let special = |name: &str| json!({"SpecialToken": {"id": name, "type_id": 0}});
    let text = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
    let template = |single: &[Value]| {
        json!({
            "type": "TemplateProcessing", "single": single, "pair": [text("A"), text("B")],
            "special_tokens": {
                "a": {"id": "a", "ids": [7], "tokens": ["a"]}, "b": {"id": "b", "ids": [8, 9], "tokens": ["b", "c"]},
            },
        })
    };
    let all = |processors: &[Value]| json!({"type": "Sequence", "processors": processors});
    let pair = |kind: &str| json!({"type": kind, "sep": ["a", 7], "cls": ["b", 8], "trim_offsets": true, "add_prefix_space": false});
    let around = |before: &[u32], after: &[u32]| {
        let (before, after) = (before.to_vec(), after.to_vec());
        Some(Affixes { before, after })
    };
    let once = template(&[special("a"), text("A"), special("b")]);
    let twice = template(&[special("a"), text("A"), text("A")]);
    for (processor, expected) in [
        (Value::Null, around(&[], &[])),
        (byte_level(), around(&[], &[])),
        (pair("BertProcessing"), around(&[8], &[7])),
        (pair("RobertaProcessing"), around(&[8], &[7])),
        (once.clone(), around(&[7], &[8, 9])),
        (twice.clone(), None),
        (template(&[special("a")]), None),
        (all(&[byte_level(), once]), around(&[7], &[8, 9])),
        (all(&[byte_level(), twice]), None),
    ] {
        let library = library(&json!({"post_processor": processor}));
        assert_eq!(Affixes::of(&library), expected, "{processor}");
    }
    // A text that becomes nothing shows no tokens around it.
    let nothing = json!({"type": "BPE", "vocab": {"x": 0}, "merges": []});
    let parts = json!({"model": nothing, "post_processor": pair("BertProcessing")});
    assert_eq!(Affixes::of(&library(&parts)), None);
}

#[test]
fn added_tokens_are_found_where_the_text_is_looked_at_as_it_is() {
    let (composed, apart) = ("é", "e\u{301}");
    let end = added(257, "<|end|>", &json!({}));
    let normalized = |content| added(258, content, &json!({"normalized": true}));
    for (normalizer, tokens, takes_composed, takes_apart) in [
        (Value::Null, vec![end.clone()], true, true),
        (json!({"type": "NFC"}), vec![end.clone()], true, false),
        (json!({"type": "NFD"}), vec![end.clone()], false, false),
        (json!({"type": "NFKC"}), vec![end.clone()], false, false),
        (json!({"type": "NFC"}), vec![normalized("<é>")], true, false),
        (
            json!({"type": "NFC"}),
            vec![normalized("<e\u{301}>")],
            false,
            false,
        ),
    ] {
        let parts = json!({"normalizer": normalizer, "added_tokens": tokens});
        let tokens = AddedTokens::of(&library(&parts)).unwrap();
        assert!(tokens.takes("plain"), "{parts}");
        assert_eq!(tokens.takes(composed), takes_composed, "{parts}");
        assert_eq!(tokens.takes(apart), takes_apart, "{parts}");
    }
    for parts in [
        json!({"normalizer": {"type": "Lowercase"}}),
        json!({"added_tokens": [added(257, "<|end|>", &json!({"lstrip": true}))]}),
        json!({"added_tokens": [added(257, "<|end|>", &json!({"rstrip": true}))]}),
        json!({"added_tokens": [end.clone(), added(258, "<|x|>", &json!({"single_word": true}))]}),
    ] {
        assert!(AddedTokens::of(&library(&parts)).is_none(), "{parts}");
    }
}

#[test]
fn a_text_is_split_at_added_tokens() {
    let parts = json!({"added_tokens": [
        added(257, "<|a|>", &json!({})), added(258, "<|a|>b", &json!({})),
        added(259, "word", &json!({"normalized": true, "special": false})),
        added(260, "ordy", &json!({})),
    ]});
    let tokens = AddedTokens::of(&library(&parts)).unwrap();
    let (text, token) = (Part::Text, Part::Token);
    for (given, expected) in [
        ("", vec![]),
        ("plain", vec![text("plain")]),
        ("<|a|>", vec![token(257)]),
        ("<|a|>bc", vec![token(258), text("c")]),
        (
            "a word <|a|><|a|>",
            vec![text("a "), token(259), text(" "), token(257), token(257)],
        ),
        ("word", vec![token(259)]),
        // Those that are looked for in the text as it is come first.
        ("swordy", vec![text("sw"), token(260)]),
    ] {
        let mut found = Vec::new();
        let all = tokens.split(given, |part| {
            found.push(part);
            Ok::<(), ()>(())
        });
        assert_eq!((all, found), (Ok(()), expected), "{given:?}");
    }
    // A part that fails ends it.
    assert_eq!(tokens.split("a<|a|>b", |_| Err(())), Err(()));
}

#[test]
fn a_token_says_what_it_is() {
    let end = added(257, "<|end|>", &json!({}));
    let plain = added(258, "plain", &json!({"special": false}));
    let parts = json!({"added_tokens": [end, plain]});
    let tokenizer = Tokenizer::from_bytes(file(&parts).to_string().as_bytes()).unwrap();
    let special = [0, 257, 258].map(|id| tokenizer.token_text(id).unwrap().is_special());
    assert_eq!(special, [false, true, false]);
    let known = [0, 256, 257, 258, 259, u32::MAX].map(|id| tokenizer.contains(id));
    assert_eq!(known, [true, true, true, true, false, false]);
    assert!(format!("{tokenizer:?}").contains("vocab_size: 259"));
    let sparse = json!({"model": {"type": "BPE", "vocab": {"a": 0, "b": 2}, "merges": []}});
    let sparse = Tokenizer::from_bytes(file(&sparse).to_string().as_bytes()).unwrap();
    assert_eq!(
        [0, 1, 2, 3].map(|id| sparse.contains(id)),
        [true, false, true, false]
    );
    assert_eq!(Scope::of(""), Scope::default());
    assert_ne!(Scope::of("a"), Scope::default());
}

#[test]
fn a_decoder_is_taken_apart_where_a_token_by_itself_says_its_text() {
    let strip = |start: usize, stop: usize| json!({"type": "Strip", "content": " ", "start": start, "stop": stop});
    let all = |decoders: &[Value]| json!({"type": "Sequence", "decoders": decoders});
    let fallback = json!({"type": "ByteFallback"});
    let fuse = json!({"type": "Fuse"});
    for (decoder, assembly, stripped, differs) in [
        (Value::Null, Assembly::Plain, None, true),
        (byte_level(), Assembly::Bytes, None, false),
        (strip(1, 0), Assembly::Plain, None, true),
        (strip(0, 1), Assembly::Whole, None, false),
        (
            all(&[fallback.clone(), fuse.clone()]),
            Assembly::Runs,
            None,
            false,
        ),
        (
            all(&[fallback.clone(), fuse.clone(), strip(1, 0)]),
            Assembly::Runs,
            Some((' ', 1)),
            false,
        ),
        (
            all(&[fallback.clone(), fuse, strip(1, 1)]),
            Assembly::Whole,
            None,
            false,
        ),
        (all(&[fallback, strip(1, 0)]), Assembly::Whole, None, false),
    ] {
        let library = library(&json!({"decoder": decoder}));
        let parts = DecoderParts::read(library.get_decoder());
        let found = (parts.assembly, parts.strip, parts.first_differs());
        assert_eq!(found, (assembly, stripped, differs), "{decoder}");
    }
}

#[test]
fn segments_are_kept_where_they_do_not_depend_on_each_other() {
    let bytes = |more: Value| {
        let mut model = json!({"type": "BPE", "vocab": vocabulary(&[]), "merges": []});
        let all = model.as_object_mut().unwrap();
        all.extend(more.as_object().unwrap().clone());
        json!({"model": model})
    };
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    for (parts, expected) in [
        (json!({}), true),
        (json!({"pre_tokenizer": null}), true),
        (bytes(json!({"dropout": 0.1})), false),
        (
            json!({"pre_tokenizer": sequence(std::slice::from_ref(&metaspace))}),
            false,
        ),
        (json!({"pre_tokenizer": metaspace}), false),
    ] {
        let segments = Segments::of(&library(&parts));
        assert_eq!(segments.is_some(), expected, "{parts}");
        let shown = segments.map(|segments| format!("{segments:?}"));
        assert!(shown.is_none_or(|shown| shown.contains("Segments")));
    }
}
