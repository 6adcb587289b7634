//! GPT-2's `vocab.json` and `merges.txt`, and Qwen 2's: byte pairs over bytes that are written as characters.

use serde_json::{Map, Value, json};

use super::{About, around, name_added, refused};
use crate::error::TextError;

/// How Qwen 2 and its successors take a text apart.
const QWEN2_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// # Errors
/// [`TextError::Convert`], [`TextError::InvalidFile`].
pub(super) fn convert(vocab: &[u8], merges: &[u8], about: &About) -> Result<Value, TextError> {
    let is_qwen = match about.class.as_str() {
        "" => about.model_type.starts_with("qwen"),
        "GPT2Tokenizer" => false,
        "Qwen2Tokenizer" => true,
        other => {
            let reason = format!(
                "its tokenizer is a `{other}`, and only GPT2Tokenizer and Qwen2Tokenizer can be converted"
            );
            return Err(refused("vocab.json", reason));
        }
    };
    let mut vocabulary: Map<String, Value> =
        serde_json::from_slice(vocab).map_err(|source| TextError::InvalidFile {
            name: "vocab.json",
            source,
        })?;
    let id_of = |content: &str| vocabulary.get(content).and_then(Value::as_u64);
    let added = about.added_tokens(id_of, &[]);
    let id_anywhere = |content: &str| {
        let mut found = added.iter().filter(|token| token["content"] == content);
        id_of(content).or_else(|| found.next()?["id"].as_u64())
    };
    let bos = about.special("bos_token");
    let bos = bos.filter(|_| about.flag("add_bos_token") == Some(true));
    let bos = bos.and_then(|token| Some((token, id_anywhere(token)?)));
    name_added(&mut vocabulary, &added);
    let prefix = about.flag("add_prefix_space").unwrap_or(false);
    let level = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": regex});
    let pre_tokenizer = match is_qwen {
        false => level(true),
        true => json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": QWEN2_PATTERN}, "behavior": "Isolated", "invert": false},
            level(false),
        ]}),
    };
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "normalizer": is_qwen.then(|| json!({"type": "NFC"})),
        "pre_tokenizer": pre_tokenizer,
        "post_processor": around(bos, None),
        "decoder": level(true),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "merges": rules(merges)?,
            "vocab": vocabulary,
        },
        "added_tokens": added,
    }))
}

fn rules(merges: &[u8]) -> Result<Vec<(&str, &str)>, TextError> {
    let text = std::str::from_utf8(merges)
        .map_err(|error| refused("merges.txt", format!("it is not UTF-8: {error}")))?;
    let lines = text.lines().zip(1..);
    let is_version = |(line, number): &(&str, i32)| *number == 1 && line.starts_with("#version");
    let lines = lines.filter(|one| !one.0.is_empty() && !is_version(one));
    lines
        .map(|(line, number)| {
            let rule = line.trim_end_matches('\r').split_once(' ');
            rule.ok_or_else(|| {
                refused(
                    "merges.txt",
                    format!("line {number} is not a pair of tokens"),
                )
            })
        })
        .collect()
}
