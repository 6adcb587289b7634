//! How much text one token can represent. Owns when that is known: for byte-level tokenizers that drop
//! nothing, which are those of Llama 3, Qwen, GPT-2 and their kin. A server can then refuse a prompt
//! that is far too long without tokenizing it, which takes seventy times its size in memory.

use serde_json::Value;

use super::pieces::Pieces;

/// Canonical composition writes at most three characters of three bytes as one of three; the rest of
/// the factor is margin.
const NFC_SHRINKS: usize = 4;

/// The most bytes of text that one token takes in, if no text at all can vanish.
pub(super) fn most_bytes_per_token(
    inner: &tokenizers::Tokenizer,
    pieces: &Pieces,
) -> Option<usize> {
    let shrinks = match serde_json::to_value(inner.get_normalizer()).ok()? {
        Value::Null => 1,
        normalizer if normalizer["type"] == "NFC" => NFC_SHRINKS,
        _ => return None,
    };
    let splitter = serde_json::to_value(inner.get_pre_tokenizer()).ok()?;
    let swallows = |token: &tokenizers::AddedToken| token.lstrip || token.rstrip;
    if !keeps_all_text(&splitter)
        || !writes_bytes(&splitter)
        || inner.get_added_tokens_decoder().values().any(swallows)
    {
        return None;
    }
    let mut single = [false; 256];
    let mut longest = 0;
    for id in 0..pieces.len() {
        let bytes = pieces.get(id).map_or(&[][..], |piece| piece.bytes);
        longest = longest.max(bytes.len());
        if let [byte] = bytes
            && let Some(slot) = single.get_mut(usize::from(*byte))
        {
            *slot = true;
        }
    }
    // A byte without its own token could be dropped. UTF-8 never has 0xc0, 0xc1 and 0xf5 up.
    let mut possible = (0u8..=0xf4).filter(|byte| !matches!(byte, 0xc0 | 0xc1));
    let complete = possible.all(|byte| single.get(usize::from(byte)) == Some(&true));
    (complete && longest > 0).then(|| longest * shrinks)
}

/// Only splitters that hand on every byte.
fn keeps_all_text(splitter: &Value) -> bool {
    match splitter["type"].as_str() {
        Some("ByteLevel" | "Digits") => true,
        Some("Split") => splitter["behavior"] != "Removed",
        Some("Sequence") => splitter["pretokenizers"]
            .as_array()
            .is_some_and(|parts| parts.iter().all(keeps_all_text)),
        _ => false,
    }
}

/// Whether text becomes bytes before the vocabulary sees it.
fn writes_bytes(splitter: &Value) -> bool {
    splitter["type"] == "ByteLevel"
        || splitter["pretokenizers"]
            .as_array()
            .is_some_and(|parts| parts.iter().any(writes_bytes))
}
