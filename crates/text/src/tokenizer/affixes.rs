//! The tokens that a post-processor puts around a text. Owns when they are the same for each text, so that the text
//! can be encoded without the library.

use tokenizers::Tokenizer;

/// The tokens before and after each text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Affixes {
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
}

impl Affixes {
    pub(super) const fn none() -> Self {
        Self {
            before: Vec::new(),
            after: Vec::new(),
        }
    }

    /// `None`: they are not known, or depend on the text.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let Some(processor) = tokenizer.get_post_processor() else {
            return Some(Self::none());
        };
        // What takes the text once, and writes fixed tokens around it.
        let steps = serde_json::to_value(processor).ok()?;
        is_fixed(&steps).then_some(())?;
        let found = ["a", "a b c"].map(|text| Self::around(tokenizer, text));
        let [Some(first), Some(second)] = found else {
            return None;
        };
        (first == second).then_some(first)
    }

    fn around(tokenizer: &Tokenizer, text: &str) -> Option<Self> {
        let ids = |special| {
            let encoding = tokenizer.encode_fast(text, special).ok()?;
            Some(encoding.get_ids().to_vec())
        };
        let (bare, whole) = (ids(false)?, ids(true)?);
        if bare.is_empty() {
            return None;
        }
        let at = whole.windows(bare.len()).position(|part| part == bare)?;
        let (before, rest) = whole.split_at(at);
        Some(Self {
            before: before.to_vec(),
            after: rest.get(bare.len()..)?.to_vec(),
        })
    }
}

/// Whether a post-processor takes a text once.
fn is_fixed(processor: &serde_json::Value) -> bool {
    match processor["type"].as_str() {
        Some("ByteLevel" | "BertProcessing" | "RobertaProcessing") => true,
        Some("TemplateProcessing") => {
            let parts = processor["single"].as_array();
            let texts = parts.into_iter().flatten();
            texts.filter(|part| part["Sequence"].is_object()).count() == 1
        }
        Some("Sequence") => processor["processors"]
            .as_array()
            .is_some_and(|parts| parts.iter().all(is_fixed)),
        _ => false,
    }
}
