#![allow(clippy::unwrap_used, reason = "helpers of tests may, like tests")]

use std::cell::Cell;

use proptest::prelude::*;
use serde_json::json;
use tokenizers::tokenizer::pre_tokenizer::PreTokenizedString;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizer};

use super::*;

const LLAMA: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const POSSESSIVE: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const DEEPSEEK: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn byte_level(uses_regex: bool, adds_space: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": adds_space, "trim_offsets": true, "use_regex": uses_regex})
}

fn steps(steps: &[Value]) -> Value {
    json!({"type": "Sequence", "pretokenizers": steps})
}

fn digits() -> Value {
    json!({"type": "Digits", "individual_digits": true})
}

/// A tokenizer of bytes with this splitter.
fn tokenizer(splitter: &Value) -> Tokenizer {
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": splitter, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
    });
    Tokenizer::from_bytes(json.to_string()).unwrap()
}

/// The words that a splitter makes of a text.
fn words(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
    let mut words = PreTokenizedString::from(text);
    let splitter = tokenizer.get_pre_tokenizer().unwrap();
    splitter.pre_tokenize(&mut words).unwrap();
    let words = words.get_splits(OffsetReferential::Normalized, OffsetType::None);
    words
        .into_iter()
        .map(|(word, ..)| word.to_owned())
        .collect()
}

fn known() -> Vec<Value> {
    let mut all: Vec<Value> = [LLAMA, QWEN3, O200K, TEKKEN, POSSESSIVE]
        .map(|pattern| steps(&[split(pattern), byte_level(false, false)]))
        .to_vec();
    all.push(byte_level(true, false));
    all.push(steps(&[digits(), byte_level(true, false)]));
    let deepseek = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK].map(split);
    all.push(steps(
        &[&deepseek[..], &[byte_level(false, false)]].concat(),
    ));
    let mut kept = split(LLAMA);
    kept["behavior"] = "Removed".into();
    kept["invert"] = true.into();
    all.push(steps(&[kept, byte_level(false, false)]));
    all
}

#[test]
fn no_cut_is_known_for_other_splitters() {
    for splitter in known() {
        assert_eq!(
            Cuts::of(&tokenizer(&splitter)),
            Some(Cuts::Words),
            "{splitter}"
        );
    }
    let mut merged = split(LLAMA);
    merged["behavior"] = "MergedWithNext".into();
    let mut gaps = split(LLAMA);
    gaps["behavior"] = "Removed".into();
    for splitter in [
        json!({"type": "Whitespace"}),
        json!({"type": "BertPreTokenizer"}),
        json!({"type": "Punctuation", "behavior": "Isolated"}),
        byte_level(true, true),
        byte_level(false, false),
        digits(),
        split(r"\p{N}{1,3}"),
        split(r"\p{L}+ \p{L}+|\s+"),
        split(&format!(r"{LLAMA}|(?<= )\p{{L}}")),
        split(r" ?[^\s\p{L}\p{N}]+| ?\p{L}+"),
        merged,
        gaps,
    ] {
        assert_eq!(Cuts::of(&tokenizer(&splitter)), None, "{splitter}");
    }
}

/// Whatever the patterns look at, most often what can be near a cut.
fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => prop::sample::select(vec![
            " ", " ", "  ", "\n", "\r\n", "\t", "\u{a0}", "\u{3000}", "\u{85}", "\u{200b}", "a", "bc", "'s", "'S",
            "'ll", "'", "’", "1", "1234", ",", ".", "...", "!", "/", "<", ")", "\"", "(", ":", ";", "_", "-", "é",
            "e\u{301}", "\u{301}", "ſ", "ǅ", "ß", "Ab", "好", "中文", "，", "。", "、", "の", "カ", "ー", "🎉", "१", "क्ष", "½",
        ])
        .prop_map(str::to_owned),
        3 => prop::sample::select(vec![
            "a ", "It's ", "! ", "é ", "\u{301} ", "\u{200b} ", "1 ", "🎉 ", "、 ", "好，", "中文。", "ab\n", "ab\"", "ab)", "ab.",
        ])
        .prop_map(str::to_owned),
        1 => "\\PC{0,4}",
        1 => "[ -~]{0,6}",
    ];
    prop::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}

#[test]
fn no_word_is_changed_by_a_cut() {
    for splitter in known() {
        let tokenizer = tokenizer(&splitter);
        let places = Cell::new(0);
        let mut config = ProptestConfig::default();
        if std::env::var_os("PROPTEST_CASES").is_none() {
            config.cases = 200;
        }
        proptest!(config, |(text in text())| {
            let whole = words(&tokenizer, &text);
            for (at, _) in text.char_indices().skip(1) {
                if Cuts::Words.is_place(&text, at) {
                    let (left, right) = text.split_at(at);
                    let parts = [words(&tokenizer, left), words(&tokenizer, right)].concat();
                    prop_assert_eq!(&parts, &whole, "{:?} at {}", text, at);
                    places.set(places.get() + 1);
                }
            }
        });
        let places = places.get();
        assert!(places > 100, "{places} cuts were tried with {splitter}");
    }
}

fn sentencepiece(tokens: &[&str], more: Value) -> Tokenizer {
    let vocabulary: serde_json::Map<String, Value> = (0..)
        .zip(tokens)
        .map(|(id, token)| ((*token).to_owned(), id.into()))
        .collect();
    let mut model = json!({"type": "BPE", "vocab": vocabulary, "merges": []});
    model
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "post_processor": null,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, "decoder": null,
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false},
        "model": model,
    });
    Tokenizer::from_bytes(json.to_string()).unwrap()
}

#[test]
fn words_of_sentencepiece_are_apart_where_no_token_spans_them() {
    let cases: [(&[&str], Value, bool); 6] = [
        (&["▁", "a", "▁a", "▁▁", "\n"], json!({}), true),
        (&["▁", "a", "a▁"], json!({}), false),
        (&["▁", "▁a▁b"], json!({}), false),
        (&["a", "b"], json!({}), false),
        (&["▁", "a"], json!({"ignore_merges": true}), false),
        (&["▁", "a"], json!({"end_of_word_suffix": "</w>"}), false),
    ];
    for (tokens, more, expected) in cases {
        let found = Cuts::of(&sentencepiece(tokens, more.clone()));
        assert_eq!(
            found,
            expected.then_some(Cuts::VisibleSpaces),
            "{tokens:?} {more}"
        );
    }
}

#[test]
fn sentencepiece_has_its_splitter_or_none() {
    let mut file: Value = serde_json::from_str(
        &sentencepiece(&["▁", "a"], json!({}))
            .to_string(false)
            .unwrap(),
    )
    .unwrap();
    for (splitter, expected) in [
        (Value::Null, Some(Cuts::VisibleSpaces)),
        (steps(&[]), Some(Cuts::VisibleSpaces)),
        (
            json!({"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated", "invert": false}),
            None,
        ),
        (json!({"type": "Whitespace"}), None),
    ] {
        file["pre_tokenizer"] = splitter.clone();
        let tokenizer = Tokenizer::from_bytes(file.to_string()).unwrap();
        assert_eq!(Cuts::of(&tokenizer), expected, "{splitter}");
    }
}

#[test]
fn places_are_behind_words() {
    // `|` is a place.
    for (cuts, text) in [
        (Cuts::Words, "a| b"),
        (Cuts::Words, "1| b"),
        (Cuts::Words, "é| b"),
        (Cuts::Words, "a|\n"),
        (Cuts::Words, "a|\""),
        (Cuts::Words, "a|,"),
        (Cuts::Words, "a|."),
        (Cuts::Words, "a|:"),
        (Cuts::Words, "a|;"),
        (Cuts::Words, "a|)"),
        (Cuts::Words, "a|<"),
        (Cuts::Words, "1,"),
        (Cuts::Words, "é,"),
        (Cuts::Words, "a|  b"),
        (Cuts::Words, "\n b"),
        (Cuts::Words, "\u{3000} b"),
        (Cuts::Words, "好|，"),
        (Cuts::Words, "好|。"),
        (Cuts::Words, "好|、"),
        (Cuts::Words, "好の"),
        (Cuts::Words, "a，"),
        (Cuts::VisibleSpaces, "a|▁b"),
        (Cuts::VisibleSpaces, "a|▁▁b"),
        (Cuts::VisibleSpaces, "a–b"),
        (Cuts::VisibleSpaces, "a b"),
    ] {
        let place = text.find('|');
        let plain = text.replace('|', "");
        let mut found = (1..plain.len()).filter(|at| cuts.is_place(&plain, *at));
        let (first, second) = (found.next(), found.next());
        assert_eq!((first, second), (place, None), "{text:?}");
    }
}

#[test]
fn parts_are_of_the_sizes_that_are_kept_and_the_same_in_other_surroundings() {
    let words: Vec<String> = (0..6000u64)
        .map(|n| format!("w{}", (n * n * 7919) % 10_007))
        .collect();
    let document = words.join(" ");
    let parts: Vec<&str> = Cuts::Words.parts(&document).collect();
    assert_eq!(parts.concat(), document);
    let (last, others) = parts.split_last().unwrap();
    assert!(last.len() <= MOST && others.len() > 15);
    assert!(
        others
            .iter()
            .all(|part| (LEAST..MOST + 10).contains(&part.len()))
    );
    let behind = format!("A question about the following text. {document}");
    let same = Cuts::Words
        .parts(&behind)
        .filter(|part| parts.contains(part))
        .count();
    assert!(same + 3 >= parts.len(), "{same} of {}", parts.len());
    // A text without a place for a cut remains whole.
    let solid = "x".repeat(20_000);
    assert_eq!(
        Cuts::Words.parts(&solid).collect::<Vec<_>>(),
        [solid.as_str()]
    );
    assert_eq!(Cuts::Words.parts("").count(), 0);
}
