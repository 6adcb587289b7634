//! A text encoded by its segments has the ids that the library gives the whole text, whatever was encoded before it.
#![allow(clippy::unwrap_used, reason = "helpers of tests may, like tests")]

use inflight_text::Scope;
use proptest::prelude::*;

#[path = "support/fixtures.rs"]
mod fixtures;

/// Texts of words, white space, other scripts and the added tokens of a vocabulary, which may touch anything.
fn texts(added: Vec<String>) -> impl Strategy<Value = Vec<String>> {
    let added = match added.is_empty() {
        true => vec!["<|none|>".to_owned()],
        false => added,
    };
    let part = prop_oneof![
        4 => prop::sample::select(vec![
            "hello", " hello", "Hello world", "\n\n", "  ", " \n", "naïve", "東京", "🎉", "123456", "it's", "\u{301}", "ﬁ", "<|", "▁",
        ])
        .prop_map(str::to_owned),
        3 => prop::sample::select(added),
        1 => "\\PC{0,12}",
    ];
    let text = prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat());
    prop::collection::vec(text, 1..6)
}

fn library(name: &str) -> (tokenizers::Tokenizer, Vec<String>) {
    let json = fixtures::bytes(&format!("tokenizers/{name}.json"));
    let mut library = tokenizers::Tokenizer::from_bytes(&json).unwrap();
    library.with_truncation(None).unwrap();
    library.with_padding(None);
    let added = library.get_added_tokens_decoder();
    let mut added: Vec<String> = added.into_values().map(|token| token.content).collect();
    added.sort_unstable();
    (library, added)
}

/// Long texts, of which many begin as others do, or have a part of another in their middle.
fn prompts(added: Vec<String>) -> impl Strategy<Value = Vec<String>> {
    let document = prop::collection::vec(texts(added), 40..80);
    let document = document.prop_map(|texts| texts.concat().join(" "));
    let places = prop::collection::vec(any::<[prop::sample::Index; 2]>(), 1..4);
    (document, places, "[a-z ]{0,9}").prop_map(|(document, places, more)| {
        let mut prompts = vec![document.clone()];
        for places in places {
            let mut ends = places.map(|place| place.index(document.chars().count() + 1));
            ends.sort_unstable();
            let characters: Vec<char> = document.chars().collect();
            let (head, rest) = characters.split_at(ends[0]);
            let (part, tail) = rest.split_at(ends[1] - ends[0]);
            let [head, part, tail] = [head, part, tail].map(String::from_iter);
            prompts.push(format!("{head}{more}{tail}"));
            prompts.push(format!("{more}{part}"));
        }
        prompts
    })
}

#[test]
fn prompts_that_have_parts_in_common_keep_their_ids() {
    for name in [
        "byte_level",
        "byte_level_split",
        "byte_fallback",
        "metaspace_unigram",
    ] {
        let (library, added) = library(name);
        let ours = fixtures::tokenizer(name);
        let mut config = ProptestConfig::default();
        if std::env::var_os("PROPTEST_CASES").is_none() {
            config.cases = 8;
        }
        proptest!(config, |(prompts in prompts(added))| {
            for prompt in &prompts {
                let Ok(expected) = library.encode_fast(prompt.as_str(), false) else {
                    continue;
                };
                for scope in ["one", "other"].map(Scope::of) {
                    let ids = ours.encode_for(scope, prompt, false).unwrap();
                    prop_assert_eq!(&ids, expected.get_ids(), "{} {:?}", name, prompt);
                }
            }
        });
    }
}

#[test]
fn segments_have_the_ids_of_the_whole_text() {
    for name in fixtures::TOKENIZERS {
        let (library, added) = library(name);
        let ours = fixtures::tokenizer(name);
        proptest!(ProptestConfig::with_cases(200), |(texts in texts(added))| {
            // The second time the segments are known.
            for text in texts.iter().chain(&texts) {
                for special in [false, true] {
                    let expected = library.encode_fast(text.as_str(), special).map(|whole| whole.get_ids().to_vec());
                    match (expected, ours.encode(text, special)) {
                        (Ok(expected), Ok(ids)) => prop_assert_eq!(ids, expected, "{} {:?}", name, text),
                        (Err(_), Err(_)) => {}
                        (expected, ids) => prop_assert!(false, "{name} {text:?}: {expected:?} {ids:?}"),
                    }
                }
            }
        });
    }
}
