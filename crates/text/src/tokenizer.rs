//! A Hugging Face tokenizer and the text of each id. Owns exactness and totality: ids
//! and text equal those of the `tokenizers` package, and no input panics. Knows nothing of streams
//! (the detokenizer does) or of which prompts take special tokens (callers do).

use std::borrow::Cow;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;

use crate::error::TextError;

mod added;
mod affixes;
mod bound;
mod cuts;
pub(crate) mod decoder;
pub(crate) mod pieces;
mod segments;

use affixes::Affixes;
use decoder::DecoderParts;
use pieces::{Piece, Pieces};
use segments::Segments;

/// A tokenizer, loaded from `tokenizer.json`.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    decoder: DecoderParts,
    pieces: Pieces,
    segments: Option<Segments>,
    /// `None`: only the library knows them.
    affixes: Option<Affixes>,
    vocab_size: usize,
    /// See [`bound`].
    most_bytes_per_token: Option<usize>,
}

/// Whose texts share what is remembered of them: how long a text takes shows others of the scope that it was seen.
/// Never changes ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scope(u64);

impl Scope {
    /// That of a salt; without one, all share it. A salt's scope is another one in each process.
    pub fn of(salt: &str) -> Self {
        /// No client can choose two salts of one scope.
        static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        match salt {
            "" => Self::default(),
            _ => Self(KEYS.hash_one(salt)),
        }
    }
}

/// One token by itself, as log probabilities show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenText<'a> {
    bytes: &'a [u8],
    special: bool,
}

impl<'a> TokenText<'a> {
    /// The token's bytes in the middle of a text; may be a part of a character.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes as text, with U+FFFD for what is not a whole character.
    pub fn text(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.bytes)
    }

    /// Whether decoding may skip the token as special.
    pub fn is_special(&self) -> bool {
        self.special
    }
}

impl Tokenizer {
    /// Loads `tokenizer.json`. Its truncation and padding are switched off: a server refuses a prompt
    /// that is too long, and never cuts or fills one.
    ///
    /// # Errors
    ///
    /// [`TextError::Load`] with the library's reason, [`TextError::SparseVocabulary`] for ids that
    /// are out of all proportion.
    pub fn from_bytes(json: &[u8]) -> Result<Self, TextError> {
        let mut inner = total(|| tokenizers::Tokenizer::from_bytes(json))
            .map_err(|reason| TextError::Load { reason })?;
        inner
            .with_truncation(None)
            .map_err(|error| TextError::Load {
                reason: error.to_string(),
            })?;
        inner.with_padding(None);
        let mut parts = DecoderParts::read(inner.get_decoder());
        let pieces = Pieces::build(&inner, &mut parts)?;
        let vocab_size = inner.get_vocab_size(true);
        let most_bytes_per_token = bound::most_bytes_per_token(&inner, &pieces);
        let segments = Segments::of(&inner);
        let affixes = Affixes::of(&inner);
        Ok(Self {
            inner,
            decoder: parts,
            pieces,
            segments,
            affixes,
            vocab_size,
            most_bytes_per_token,
        })
    }

    /// Text to ids. `add_special_tokens` runs the post-processor (BOS and the like): completions take
    /// it; chat prompts do not, their template has written what it wants. Takes time in proportion to
    /// the part of the text that was not seen before.
    ///
    /// # Errors
    ///
    /// [`TextError::Encode`], e.g. a character outside a vocabulary that has no unknown token.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TextError> {
        self.encode_for(Scope::default(), text, add_special_tokens)
    }

    /// As [`Self::encode`], with a memory that only the same scope has.
    ///
    /// # Errors
    ///
    /// See [`Self::encode`].
    pub fn encode_for(
        &self,
        scope: Scope,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, TextError> {
        const NONE: &Affixes = &Affixes::none();
        let affixes = match add_special_tokens {
            true => self.affixes.as_ref(),
            false => Some(NONE),
        };
        let ids = total(|| match (&self.segments, affixes) {
            (Some(segments), Some(affixes)) => {
                let mut ids = affixes.before.clone();
                segments.encode(&self.inner, scope, text, &mut ids)?;
                ids.extend_from_slice(&affixes.after);
                Ok(ids)
            }
            _ => {
                let encoding = self.inner.encode_fast(text, add_special_tokens)?;
                Ok(encoding.get_ids().to_vec())
            }
        });
        ids.map_err(|reason| TextError::Encode { reason })
    }

    /// How many tokens a text of so many bytes has at least, without looking at it; 0 where the
    /// tokenizer could drop text. Detects texts that are far too long before they cost anything.
    pub fn fewest_tokens(&self, text_bytes: usize) -> usize {
        self.most_bytes_per_token
            .map_or(0, |most| text_bytes.div_ceil(most))
    }

    /// Ids to text, all at once. Ids outside the vocabulary decode to nothing, as in the package.
    ///
    /// # Errors
    ///
    /// [`TextError::Decode`] where the tokenizer's decoder fails.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TextError> {
        // Some decoders of the library count tokens minus one; no token is empty text in all of them.
        if ids
            .iter()
            .all(|id| self.pieces.visible(*id, skip_special_tokens).is_none())
        {
            return Ok(String::new());
        }
        total(|| self.inner.decode(ids, skip_special_tokens))
            .map_err(|reason| TextError::Decode { reason })
    }

    /// Number of tokens, added ones included. Ids may be sparse: see [`Self::contains`].
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Whether the id names a token.
    pub fn contains(&self, id: u32) -> bool {
        self.pieces.get(id).is_some()
    }

    /// The id of exactly this token, added tokens included.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// One token's text and raw bytes; `None` outside the vocabulary. Costs no allocation.
    pub fn token_text(&self, id: u32) -> Option<TokenText<'_>> {
        self.pieces.get(id).map(|piece| TokenText {
            bytes: piece.bytes,
            special: piece.special,
        })
    }

    pub(crate) fn decoder(&self) -> &DecoderParts {
        &self.decoder
    }

    pub(crate) fn piece(&self, id: u32, skip_special_tokens: bool) -> Option<Piece<'_>> {
        self.pieces.visible(id, skip_special_tokens)
    }

    /// The token as the vocabulary writes it, before any decoder.
    pub fn raw_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size)
            .field("decoder", &self.decoder)
            .finish_non_exhaustive()
    }
}

/// Runs library code that may panic on unusual files or ids, and turns every failure into a reason. The
/// library keeps no state that a panic could leave half-written (its caches are all-or-nothing).
pub(crate) fn total<T>(run: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(payload) => Err(payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "the tokenizer failed".to_owned())),
    }
}

#[cfg(test)]
mod tests;
