//! tiktoken's ranks: a token in base64 and its rank on each line. What takes a text apart is in no file; it follows
//! from the tokenizer's class.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::merges::rules;
use super::{About, added_token, name_added, refused};
use crate::error::TextError;

/// Llama 3's, and that of OpenAI's `cl100k_base`.
const LLAMA3_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 1's.
const QWEN_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Whether a file has lines of base64 and a number rather than a message of protobuf.
pub(super) fn looks_like(bytes: &[u8]) -> bool {
    let first = bytes.split(|byte| *byte == b'\n').next();
    first.and_then(line).is_some()
}

fn line(line: &[u8]) -> Option<(Vec<u8>, u64)> {
    let text = std::str::from_utf8(line).ok()?.trim_end();
    let (token, rank) = text.split_once(' ')?;
    Some((STANDARD.decode(token).ok()?, rank.parse().ok()?))
}

/// # Errors
/// [`TextError::Convert`].
pub(super) fn convert(name: &'static str, bytes: &[u8], about: &About) -> Result<Value, TextError> {
    let is_qwen = about.class == "QWenTokenizer" || name == "qwen.tiktoken";
    if about.class == "TikTokenTokenizer" && about.model_type.starts_with("kimi") {
        return Err(refused(name, "Kimi's way to split text is not supported"));
    }
    let mut ranks: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for (number, text) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        if text.is_empty() {
            continue;
        }
        let (token, rank) = line(text).ok_or_else(|| {
            refused(
                name,
                format!("line {number} is not a token in base64 with a rank"),
            )
        })?;
        ranks.insert(rank, token);
    }
    let pieces: Vec<&[u8]> = ranks.values().map(Vec::as_slice).collect();
    let merges = rules(&pieces, |piece: &[u8]| {
        (1..piece.len()).map(|at| piece.split_at(at)).collect()
    });
    let characters = byte_characters();
    let written = |piece: &[u8]| -> String {
        piece
            .iter()
            .filter_map(|byte| characters.get(usize::from(*byte)))
            .collect()
    };
    let merges: Vec<(String, String)> = merges
        .into_iter()
        .map(|(left, right)| (written(left), written(right)))
        .collect();
    let mut vocabulary: Map<String, Value> = ranks
        .iter()
        .map(|(rank, piece)| (written(piece), (*rank).into()))
        .collect();
    let next = ranks.keys().next_back().map_or(0, |last| last + 1);
    let own: Vec<Value> = match is_qwen {
        true => (next..)
            .zip(qwen_specials())
            .map(|(id, content)| added_token(id, &content, true))
            .collect(),
        false => Vec::new(),
    };
    let id_of = |content: &str| vocabulary.get(content).and_then(Value::as_u64);
    let added = about.added_tokens(id_of, &own);
    name_added(&mut vocabulary, &added);
    let pattern = if is_qwen {
        QWEN_PATTERN
    } else {
        LLAMA3_PATTERN
    };
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added,
        "normalizer": is_qwen.then(|| json!({"type": "NFC"})),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            level,
        ]},
        "post_processor": null,
        "decoder": level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
            "vocab": vocabulary, "merges": merges,
        },
    }))
}

/// Behind Qwen 1's vocabulary, in this order.
fn qwen_specials() -> impl Iterator<Item = String> {
    let named = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned);
    named
        .into_iter()
        .chain((0..205).map(|number| format!("<|extra_{number}|>")))
}

/// GPT-2's visible stand-in for each byte.
fn byte_characters() -> Vec<char> {
    let is_visible = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256_u32;
    (0..=255_u8)
        .map(|byte| {
            if is_visible(&byte) {
                return char::from(byte);
            }
            next += 1;
            char::from_u32(next - 1).unwrap_or_default()
        })
        .collect()
}
