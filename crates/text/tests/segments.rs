//! A text encoded by its segments has the ids that the library gives the whole text, whatever was encoded before it.
#![allow(clippy::unwrap_used, reason = "helpers of tests may, like tests")]

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

#[test]
fn segments_have_the_ids_of_the_whole_text() {
    for name in fixtures::TOKENIZERS {
        let json = fixtures::bytes(&format!("tokenizers/{name}.json"));
        let mut library = tokenizers::Tokenizer::from_bytes(&json).unwrap();
        library.with_truncation(None).unwrap();
        library.with_padding(None);
        let ours = fixtures::tokenizer(name);
        let added = library.get_added_tokens_decoder();
        let mut added: Vec<String> = added.into_values().map(|token| token.content).collect();
        added.sort_unstable();
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
