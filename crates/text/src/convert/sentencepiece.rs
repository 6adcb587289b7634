//! SentencePiece's models: byte pair encoding and unigram. Owns what of `sentencepiece_model.proto` matters here, and
//! how its normalization is said in `tokenizer.json`.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde_json::{Map, Value, json};

use super::merges::rules;
use super::{About, added_token, around, name_added, refused};
use crate::error::TextError;

/// `sentencepiece.ModelProto`; numbers and defaults are the proto's.
#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<Trainer>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<Normalizer>,
}

#[derive(Clone, PartialEq, Message)]
struct Piece {
    #[prost(string, optional, tag = "1")]
    piece: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    #[prost(int32, optional, tag = "3", default = "1")]
    kind: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Trainer {
    #[prost(int32, optional, tag = "3")]
    model_type: Option<i32>,
    #[prost(bool, optional, tag = "24")]
    whitespace_as_suffix: Option<bool>,
    #[prost(bool, optional, tag = "35")]
    byte_fallback: Option<bool>,
    #[prost(string, optional, tag = "46")]
    bos_piece: Option<String>,
    #[prost(string, optional, tag = "47")]
    eos_piece: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Normalizer {
    #[prost(bytes = "vec", optional, tag = "2")]
    charsmap: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3")]
    dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    remove_extra_whitespaces: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    escape_whitespaces: Option<bool>,
}

const UNIGRAM: i32 = 1;
const BPE: i32 = 2;

/// Of [`Piece::kind`]; 1 is a normal one.
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// What replaces a space.
const SPACE: &str = "\u{2581}";
/// Below the worst normal piece, so that a text never uses a piece that is only a name: `<0x41>`. Where `<` is not a
/// piece, the library prefers the name to an unknown character, and SentencePiece does not.
const NAME_PENALTY: f64 = 1000.0;
/// Classes that put the first token before a text by default.
const WITH_BOS: [&str; 3] = ["LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer"];
/// Classes that put the last token behind a text, and have a hundred sentinels behind the vocabulary.
const T5: [&str; 3] = ["T5Tokenizer", "MT5Tokenizer", "UMT5Tokenizer"];

impl Piece {
    fn text(&self) -> &str {
        self.piece.as_deref().unwrap_or_default()
    }

    fn is_normal(&self) -> bool {
        self.kind() == 1
    }

    fn weight(&self) -> f64 {
        f64::from(self.score())
    }
}

/// # Errors
/// [`TextError::Convert`].
pub(super) fn convert(name: &'static str, bytes: &[u8], about: &About) -> Result<Value, TextError> {
    let model = Model::decode(bytes)
        .map_err(|error| refused(name, format!("it is not a SentencePiece model: {error}")))?;
    let trainer = model.trainer.clone().unwrap_or_default();
    if model.pieces.is_empty() {
        return Err(refused(
            name,
            "it is not a SentencePiece model: it has no pieces",
        ));
    }
    if trainer.whitespace_as_suffix == Some(true) {
        return Err(refused(
            name,
            "its spaces follow the words (`treat_whitespace_as_suffix`)",
        ));
    }
    let normalizer = model.normalizer.clone().unwrap_or_default();
    if normalizer.escape_whitespaces == Some(false) {
        return Err(refused(
            name,
            "its spaces are not escaped (`escape_whitespaces`)",
        ));
    }
    let mut pieces = model.pieces;
    let is_t5 = T5.contains(&about.class.as_str()) || about.model_type.ends_with("t5");
    let own = own_tokens(&mut pieces, about, is_t5);
    let unknown = pieces.iter().position(|piece| piece.kind() == UNKNOWN);
    let fallback = trainer.byte_fallback.unwrap_or(false);
    let mut vocabulary = match trainer.model_type.unwrap_or(UNIGRAM) {
        UNIGRAM => unigram(&pieces, unknown, fallback),
        BPE => byte_pairs(&pieces, unknown, fallback),
        other => {
            let reason =
                format!("its kind is {other}, and only unigram and byte pairs can be converted");
            return Err(refused(name, reason));
        }
    };
    let ids: HashMap<&str, u64> = pieces.iter().map(Piece::text).zip(0..).collect();
    let id_of = |content: &str| ids.get(content).copied();
    let added = about.added_tokens(id_of, &own);
    if let Some(vocabulary) = vocabulary["vocab"].as_object_mut() {
        name_added(vocabulary, &added);
    }
    let bos = trainer.bos_piece.as_deref().unwrap_or("<s>");
    let bos = control(&pieces, about.special("bos_token").unwrap_or(bos));
    let eos = trainer.eos_piece.as_deref().unwrap_or("</s>");
    let eos = control(&pieces, about.special("eos_token").unwrap_or(eos));
    let has_bos = match about.class.as_str() {
        "" => !is_t5,
        class => WITH_BOS.contains(&class),
    };
    let adds_bos = about.flag("add_bos_token").unwrap_or(has_bos);
    let adds_eos = about.flag("add_eos_token").unwrap_or(is_t5);
    let prefix = normalizer.dummy_prefix.unwrap_or(true);
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added,
        "normalizer": normalizers(&normalizer),
        "pre_tokenizer": null,
        "post_processor": around(bos.filter(|_| adds_bos), eos.filter(|_| adds_eos)),
        "decoder": decoder(prefix),
        "model": vocabulary,
    }))
}

/// The tokens that are found in a text before it is taken apart. Appends T5's sentinels to the pieces.
fn own_tokens(pieces: &mut Vec<Piece>, about: &About, is_t5: bool) -> Vec<Value> {
    if is_t5 {
        let count = about.config.get("extra_ids").and_then(Value::as_u64);
        // Each is a token; more would be a mistake.
        let count = count.unwrap_or(100).min(1000);
        let missing = (0..count).rev().map(|number| Piece {
            piece: Some(format!("<extra_id_{number}>")),
            score: Some(0.0),
            kind: Some(CONTROL),
        });
        pieces.extend(missing);
    }
    let numbered = pieces.iter().zip(0_u64..);
    let own =
        numbered.filter(|(piece, _)| matches!(piece.kind(), UNKNOWN | CONTROL | USER_DEFINED));
    own.map(|(piece, id)| added_token(id, piece.text(), piece.kind() != USER_DEFINED))
        .collect()
}

/// A token that is not text, and its id.
fn control<'a>(pieces: &'a [Piece], wanted: &str) -> Option<(&'a str, u64)> {
    let mut numbered = pieces.iter().zip(0_u64..);
    let found = numbered.find(|(piece, _)| piece.text() == wanted);
    found.map(|(piece, id)| (piece.text(), id))
}

fn unigram(pieces: &[Piece], unknown: Option<usize>, fallback: bool) -> Value {
    let normal = pieces.iter().filter(|piece| piece.is_normal());
    let worst = normal.map(Piece::weight).fold(0.0, f64::min);
    let scored = pieces.iter().map(|piece| {
        let score = match piece.is_normal() {
            true => piece.weight(),
            false => worst - NAME_PENALTY,
        };
        json!([piece.text(), score])
    });
    let scored: Vec<Value> = scored.collect();
    json!({"type": "Unigram", "unk_id": unknown, "vocab": scored, "byte_fallback": fallback})
}

fn byte_pairs(pieces: &[Piece], unknown: Option<usize>, fallback: bool) -> Value {
    let mut preferred: Vec<&Piece> = pieces.iter().filter(|piece| piece.is_normal()).collect();
    // Stable: equal ones stay in the order of their ids.
    preferred.sort_by(|one, other| other.weight().total_cmp(&one.weight()));
    let preferred: Vec<&str> = preferred.into_iter().map(Piece::text).collect();
    let merges = rules(&preferred, |piece: &str| {
        let cuts = piece.char_indices().skip(1);
        cuts.map(|(at, _)| piece.split_at(at)).collect()
    });
    let vocabulary: Map<String, Value> = pieces
        .iter()
        .zip(0_u64..)
        .map(|(piece, id)| (piece.text().to_owned(), id.into()))
        .collect();
    json!({
        "type": "BPE", "dropout": null, "unk_token": unknown.and_then(|id| pieces.get(id)).map(Piece::text),
        "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
        "byte_fallback": fallback, "ignore_merges": false, "vocab": vocabulary, "merges": merges,
    })
}

fn normalizers(normalizer: &Normalizer) -> Value {
    let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
    let mut steps = Vec::new();
    if let Some(charsmap) = normalizer.charsmap.as_deref().filter(|map| !map.is_empty()) {
        let text = STANDARD.encode(charsmap);
        steps.push(json!({"type": "Precompiled", "precompiled_charsmap": text}));
    }
    if normalizer.remove_extra_whitespaces.unwrap_or(true) {
        steps.push(replace(json!({"Regex": "^ +| +$"}), ""));
        steps.push(replace(json!({"Regex": " {2,}"}), " "));
    }
    if normalizer.dummy_prefix.unwrap_or(true) {
        steps.push(json!({"type": "Prepend", "prepend": SPACE}));
    }
    steps.push(replace(json!({"String": " "}), SPACE));
    json!({"type": "Sequence", "normalizers": steps})
}

fn decoder(prefix: bool) -> Value {
    let mut steps = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}
