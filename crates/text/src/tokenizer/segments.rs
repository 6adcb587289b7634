//! Encoding a text by its segments, the parts between added tokens. A conversation repeats most of them: what its
//! template writes, its system prompt, its earlier turns. Long segments are taken apart, since prompts may begin alike
//! within one. Owns which tokenizers may be used so, and what is kept; where a segment is cut is `cuts`'.
//!
//! The library finds added tokens first and encodes what is between them each by itself, so a segment's ids do not
//! depend on its neighbors. Two things break that: a pre-tokenizer that treats the beginning of a text specially
//! (`Metaspace`), and dropout. Tokenizers with either are left to the library.

use std::fmt;
use std::sync::Arc;

use quick_cache::sync::Cache;
use quick_cache::{Equivalent, Weighter};
use tokenizers::tokenizer::pre_tokenizer::PreTokenizedString;
use tokenizers::{Model, ModelWrapper, OffsetReferential, OffsetType, PreTokenizer, Tokenizer};

use super::Scope;
use super::added::{AddedTokens, Part};
use super::cuts::Cuts;

/// Bytes of segments and ids that are kept: some eighty prompts of 48,000 tokens, or thousands of conversations.
const KEPT_BYTES: u64 = 32 << 20;
/// Bytes of one segment, or part of one, that is kept. What is longer seldom comes again.
const SEGMENT_BYTES: usize = 8 << 10;
/// What an entry takes besides.
const ENTRY_BYTES: u64 = 96;
/// Entries that are expected: the segments of some conversations.
const ENTRIES: usize = 1024;

/// The ids of segments that were seen; a burst of new ones does not push out those that come again and again.
pub(super) struct Segments {
    seen: Cache<Seen, Arc<[u32]>, ByBytes>,
    /// `None`: the library finds them.
    added: Option<AddedTokens>,
    /// `None`: segments are kept whole.
    cuts: Option<Cuts>,
}

/// A segment and whose it is.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Seen {
    scope: Scope,
    segment: Box<str>,
}

/// Hashes as [`Seen`] does.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Sought<'a> {
    scope: Scope,
    segment: &'a str,
}

impl Equivalent<Seen> for Sought<'_> {
    fn equivalent(&self, seen: &Seen) -> bool {
        self.scope == seen.scope && *self.segment == *seen.segment
    }
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Seen, Arc<[u32]>> for ByBytes {
    fn weight(&self, seen: &Seen, ids: &Arc<[u32]>) -> u64 {
        ENTRY_BYTES + seen.segment.len() as u64 + size_of_val::<[u32]>(ids) as u64
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
            cuts: Cuts::of(tokenizer),
        })
    }

    /// Adds the ids of a text, without the tokens that a post-processor adds. How long it takes shows what was encoded
    /// before for the same `scope`.
    ///
    /// # Errors
    ///
    /// The library's.
    pub(super) fn encode(
        &self,
        tokenizer: &Tokenizer,
        scope: Scope,
        text: &str,
        ids: &mut Vec<u32>,
    ) -> tokenizers::Result<()> {
        ids.reserve(text.len() / 3);
        if let Some(added) = self.added.as_ref().filter(|added| added.takes(text)) {
            added.split(text, |part| {
                match part {
                    Part::Token(id) => ids.push(id),
                    Part::Text(segment) => self.add(tokenizer, scope, segment, ids)?,
                }
                tokenizers::Result::Ok(())
            })?;
            return Ok(());
        }
        let added = tokenizer.get_added_vocabulary();
        let parts = added.extract_and_normalize(tokenizer.get_normalizer(), text);
        for (segment, _, tokens) in
            parts.get_splits(OffsetReferential::Normalized, OffsetType::None)
        {
            match tokens {
                Some(tokens) => ids.extend(tokens.iter().map(|token| token.id)),
                None => self.add(tokenizer, scope, segment, ids)?,
            }
        }
        Ok(())
    }

    /// Adds the ids of a normalized segment.
    fn add(
        &self,
        tokenizer: &Tokenizer,
        scope: Scope,
        segment: &str,
        ids: &mut Vec<u32>,
    ) -> tokenizers::Result<()> {
        match self.cuts {
            Some(cuts) => cuts
                .parts(segment)
                .try_for_each(|part| self.add_part(tokenizer, scope, part, ids)),
            None => self.add_part(tokenizer, scope, segment, ids),
        }
    }

    fn add_part(
        &self,
        tokenizer: &Tokenizer,
        scope: Scope,
        segment: &str,
        ids: &mut Vec<u32>,
    ) -> tokenizers::Result<()> {
        if let Some(known) = self.seen.get(&Sought { scope, segment }) {
            ids.extend_from_slice(&known);
            return Ok(());
        }
        let start = ids.len();
        encode_one(tokenizer, segment, ids)?;
        if segment.len() <= SEGMENT_BYTES {
            let new = ids.get(start..).unwrap_or_default();
            let segment = segment.into();
            self.seen.insert(Seen { scope, segment }, new.into());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_known_in_its_scope_alone() {
        let tokenizer = include_bytes!("../../tests/fixtures/tokenizers/byte_level_split.json");
        let tokenizer = Tokenizer::from_bytes(tokenizer).unwrap();
        let segments = Segments::of(&tokenizer).unwrap();
        let (one, other) = (Scope::of("one"), Scope::of("other"));
        let document = "hello world ".repeat(400);
        let mut ids = Vec::new();
        segments
            .encode(&tokenizer, one, &document, &mut ids)
            .unwrap();
        let parts = segments.seen.len();
        assert!(parts > 1, "a long text is kept in parts");
        let part = segments.cuts.unwrap().parts(&document).next().unwrap();
        let seen = |scope| {
            segments
                .seen
                .get(&Sought {
                    scope,
                    segment: part,
                })
                .is_some()
        };
        assert!(seen(one) && !seen(other) && !seen(Scope::default()));
        // Another end does not matter to what comes before.
        let longer = format!("{document} and more");
        segments.encode(&tokenizer, one, &longer, &mut ids).unwrap();
        assert!(segments.seen.len() <= parts + 2);
    }

    #[test]
    fn what_is_kept_is_counted_in_bytes() {
        let tokenizer = include_bytes!("../../tests/fixtures/tokenizers/byte_level_split.json");
        let tokenizer = Tokenizer::from_bytes(tokenizer).unwrap();
        let segments = Segments::of(&tokenizer).unwrap();
        let mut expected = 0;
        for text in ["hello", "hello world", "hello"] {
            let mut ids = Vec::new();
            let known = segments.seen.len();
            segments
                .encode(&tokenizer, Scope::default(), text, &mut ids)
                .unwrap();
            if segments.seen.len() > known {
                expected += 96 + text.len() as u64 + 4 * ids.len() as u64;
            }
            assert_eq!(segments.seen.weight(), expected, "{text}");
        }
        assert_eq!(segments.seen.capacity(), 32 << 20);
    }
}
