//! Where added tokens are in a text, such as those that begin and end a turn. Owns for which tokenizers and texts
//! they are found without copying the text. The text between added tokens belongs to `segments`.
//!
//! Before the library looks for anything, it makes a copy that records where each character came from. That costs
//! more than the search, and more than a segment whose ids are known.

use daachorse::{DoubleArrayAhoCorasick, DoubleArrayAhoCorasickBuilder, MatchKind};
use tokenizers::{NormalizerWrapper, Tokenizer};
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick};

type Finder = Option<DoubleArrayAhoCorasick<u32>>;

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    Text(&'a str),
    /// An added token's id.
    Token(u32),
}

/// See the module.
pub(super) struct AddedTokens {
    /// Those that are looked for first, in the text as it is.
    raw: Finder,
    /// Those that are looked for in what is left, normalized.
    normalized: Finder,
    kept: Kept,
}

/// Which texts the normalizer leaves as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    All,
    /// Composed ones, which most texts are.
    Composed,
    Ascii,
}

impl Kept {
    fn includes(self, text: &str) -> bool {
        match self {
            Self::All => true,
            Self::Composed => text.is_ascii() || is_composed(text),
            Self::Ascii => text.is_ascii(),
        }
    }
}

/// Whether a text certainly is in the form NFC.
fn is_composed(text: &str) -> bool {
    is_nfc_quick(text.chars()) == IsNormalized::Yes
}

impl AddedTokens {
    /// `None`: the tokenizer has tokens or a normalizer that only the library applies.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        use NormalizerWrapper::{NFC, NFD, NFKC, NFKD};
        let mut kept = match tokenizer.get_normalizer() {
            None => Kept::All,
            Some(NFC(_)) => Kept::Composed,
            // All four leave ASCII as it is.
            Some(NFD(_) | NFKC(_) | NFKD(_)) => Kept::Ascii,
            Some(_) => return None,
        };
        let tokens = tokenizer.get_added_tokens_decoder();
        let is_plain =
            |token: &tokenizers::AddedToken| !(token.single_word || token.lstrip || token.rstrip);
        if !tokens.values().all(is_plain) {
            return None;
        }
        // Another form of a token is what would be looked for, and not in ASCII; nor is the token itself.
        let mut normalized = tokens.values().filter(|token| token.normalized);
        if !normalized.all(|token| kept.includes(&token.content)) {
            kept = Kept::Ascii;
        }
        let finder = |is_normalized: bool| {
            let tokens = tokens.iter();
            let tokens = tokens.filter(|(_, token)| token.normalized == is_normalized);
            let patterns: Vec<(&str, u32)> = tokens
                .map(|(id, token)| (token.content.as_str(), *id))
                .collect();
            if patterns.is_empty() {
                return Some(None);
            }
            let builder = DoubleArrayAhoCorasickBuilder::new();
            let builder = builder.match_kind(MatchKind::LeftmostLongest);
            builder.build_with_values(patterns).ok().map(Some)
        };
        Some(Self {
            raw: finder(false)?,
            normalized: finder(true)?,
            kept,
        })
    }

    /// Whether a text can be split here.
    pub(super) fn takes(&self, text: &str) -> bool {
        self.kept.includes(text)
    }

    /// Hands out the parts of a text, in order. No text is empty.
    pub(super) fn split<'a, E>(
        &self,
        text: &'a str,
        mut part: impl FnMut(Part<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        each(&self.raw, text, &mut |raw| match raw {
            Part::Text(text) => each(&self.normalized, text, &mut part),
            token => part(token),
        })
    }
}

fn each<'a, E>(
    finder: &Finder,
    text: &'a str,
    part: &mut impl FnMut(Part<'a>) -> Result<(), E>,
) -> Result<(), E> {
    let mut start = 0;
    let found = finder
        .iter()
        .flat_map(|finder| finder.leftmost_find_iter(text));
    for token in found {
        if let Some(before) = text.get(start..token.start()).filter(|it| !it.is_empty()) {
            part(Part::Text(before))?;
        }
        part(Part::Token(token.value()))?;
        start = token.end();
    }
    match text.get(start..).filter(|rest| !rest.is_empty()) {
        Some(rest) => part(Part::Text(rest)),
        None => Ok(()),
    }
}
