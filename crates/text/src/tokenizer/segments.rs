//! Encoding a text by its segments, the parts between added tokens. A conversation repeats most of them: what its
//! template writes, its system prompt, its earlier turns. Owns which tokenizers may be used so, and what is kept.
//!
//! The library finds added tokens first and encodes what is between them each by itself, so a segment's ids do not
//! depend on its neighbors. Two things break that: a pre-tokenizer that treats the beginning of a text specially
//! (`Metaspace`), and dropout. Tokenizers with either are left to the library.

use std::fmt;
use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokenizers::tokenizer::pre_tokenizer::PreTokenizedString;
use tokenizers::{Model, ModelWrapper, OffsetReferential, OffsetType, PreTokenizer, Tokenizer};

use super::added::{AddedTokens, Part};

/// Bytes of segments and ids that are kept.
const KEPT_BYTES: u64 = 2 << 20;
/// Bytes of one segment that is kept. Longer ones seldom come again, and how long they take would show that they did.
const SEGMENT_BYTES: usize = 8 << 10;
/// What an entry takes besides.
const ENTRY_BYTES: u64 = 96;
/// Entries that are expected: the segments of some conversations.
const ENTRIES: usize = 1024;

/// The ids of segments that were seen; a burst of new ones does not push out those that come again and again.
pub(super) struct Segments {
    seen: Cache<Box<str>, Arc<[u32]>, ByBytes>,
    /// `None`: the library finds them.
    added: Option<AddedTokens>,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Box<str>, Arc<[u32]>> for ByBytes {
    fn weight(&self, segment: &Box<str>, ids: &Arc<[u32]>) -> u64 {
        ENTRY_BYTES + segment.len() as u64 + size_of_val::<[u32]>(ids) as u64
    }
}

impl Segments {
    /// `None`: segments of this tokenizer depend on each other.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let is_random =
            matches!(tokenizer.get_model(), ModelWrapper::BPE(model) if model.dropout.is_some());
        let splitter = serde_json::to_string(&tokenizer.get_pre_tokenizer()).ok()?;
        let is_apart = !is_random && !splitter.contains("\"Metaspace\"");
        is_apart.then(|| Self {
            seen: Cache::with_weighter(ENTRIES, KEPT_BYTES, ByBytes),
            added: AddedTokens::of(tokenizer),
        })
    }

    /// The ids of a text without the tokens that a post-processor adds.
    ///
    /// # Errors
    ///
    /// The library's.
    pub(super) fn encode(&self, tokenizer: &Tokenizer, text: &str) -> tokenizers::Result<Vec<u32>> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        if let Some(added) = self.added.as_ref().filter(|added| added.takes(text)) {
            added.split(text, |part| {
                match part {
                    Part::Token(id) => ids.push(id),
                    Part::Text(segment) => self.add(tokenizer, segment, &mut ids)?,
                }
                tokenizers::Result::Ok(())
            })?;
            return Ok(ids);
        }
        let added = tokenizer.get_added_vocabulary();
        let parts = added.extract_and_normalize(tokenizer.get_normalizer(), text);
        for (segment, _, tokens) in
            parts.get_splits(OffsetReferential::Normalized, OffsetType::None)
        {
            match tokens {
                Some(tokens) => ids.extend(tokens.iter().map(|token| token.id)),
                None => self.add(tokenizer, segment, &mut ids)?,
            }
        }
        Ok(ids)
    }

    /// Adds the ids of a normalized segment.
    fn add(
        &self,
        tokenizer: &Tokenizer,
        segment: &str,
        ids: &mut Vec<u32>,
    ) -> tokenizers::Result<()> {
        if let Some(known) = self.seen.get(segment) {
            ids.extend_from_slice(&known);
            return Ok(());
        }
        let start = ids.len();
        encode_one(tokenizer, segment, ids)?;
        if segment.len() <= SEGMENT_BYTES {
            let new = ids.get(start..).unwrap_or_default();
            self.seen.insert(segment.into(), new.into());
        }
        Ok(())
    }
}

fn encode_one(tokenizer: &Tokenizer, segment: &str, ids: &mut Vec<u32>) -> tokenizers::Result<()> {
    let mut words = PreTokenizedString::from(segment);
    if let Some(splitter) = tokenizer.get_pre_tokenizer() {
        splitter.pre_tokenize(&mut words)?;
    }
    tokenizer
        .get_model()
        .tokenize_in_pretokenized(&mut words, None)?;
    let words = words.get_splits(OffsetReferential::Normalized, OffsetType::None);
    for (_, _, tokens) in words {
        ids.extend(
            tokens
                .iter()
                .flat_map(|tokens| tokens.iter())
                .map(|token| token.id),
        );
    }
    Ok(())
}

impl fmt::Debug for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segments").finish_non_exhaustive()
    }
}
