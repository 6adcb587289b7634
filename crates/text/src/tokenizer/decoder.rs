//! How a tokenizer's decoder turns tokens into text, as far as a stream must know. Owns the reading
//! of the library's decoder; the table of pieces and the detokenizer act on it.
//!
//! A decoder is a chain: stages that work on one token at a time, then something that joins. A token's
//! text may also depend on being the first token (Metaspace, WordPiece, no decoder at all) or the last
//! one (BPE suffixes), never on more. Chains of any other shape (CTC, or stages in an order that no
//! known tokenizer has) can change text long past, so their only exact stream is all text at the end.

use tokenizers::{Decoder, DecoderWrapper};

use super::total;

/// The decoder, taken apart.
#[derive(Clone, Debug)]
pub(crate) struct DecoderParts {
    /// Per-token stages, in order.
    stages: Vec<DecoderWrapper>,
    /// No decoder: the library joins tokens with spaces.
    spaced: bool,
    /// Whether the last token's text may differ, so that the stream runs one token behind.
    pub(crate) lags: bool,
    pub(crate) assembly: Assembly,
    /// Leading characters to drop from the whole text: which, and how many at most.
    pub(crate) strip: Option<(char, usize)>,
}

/// How the pieces of a text join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assembly {
    /// Bytes of UTF-8 with U+FFFD for what is invalid (ByteLevel).
    Bytes,
    /// Text, and runs of byte tokens: a run that is not UTF-8 as a whole becomes one U+FFFD per byte
    /// (ByteFallback).
    Runs,
    /// Text as it is.
    Plain,
    /// Indivisible.
    Whole,
}

impl DecoderParts {
    pub(crate) fn read(decoder: Option<&DecoderWrapper>) -> Self {
        let mut parts = Self {
            stages: Vec::new(),
            spaced: decoder.is_none(),
            lags: false,
            assembly: Assembly::Plain,
            strip: None,
        };
        let mut chain = Vec::new();
        if let Some(decoder) = decoder {
            flatten(decoder, &mut chain);
        }
        let mut chain = chain.into_iter().peekable();
        while let Some(stage) = chain.next_if(|stage| is_per_token(stage)) {
            parts.lags |= matches!(stage, DecoderWrapper::BPE(_));
            parts.stages.push(stage.clone());
        }
        let mut fused = false;
        if chain
            .next_if(|stage| matches!(stage, DecoderWrapper::ByteLevel(_)))
            .is_some()
        {
            parts.assembly = Assembly::Bytes;
            fused = true;
        } else if chain
            .next_if(|stage| matches!(stage, DecoderWrapper::ByteFallback(_)))
            .is_some()
        {
            parts.assembly = Assembly::Runs;
        }
        while chain
            .next_if(|stage| matches!(stage, DecoderWrapper::Fuse(_)))
            .is_some()
        {
            fused = true;
        }
        // Before the text is one, a Strip here would work on runs of bytes: no known tokenizer does.
        if fused
            && let Some(DecoderWrapper::Strip(strip)) =
                chain.next_if(|stage| matches!(stage, DecoderWrapper::Strip(s) if s.stop == 0))
        {
            parts.strip = Some((strip.content, strip.start));
        }
        if chain.next().is_some() {
            parts.give_up();
        }
        parts
    }

    /// Falls back to decoding everything at the end.
    pub(crate) fn give_up(&mut self) {
        *self = Self {
            stages: Vec::new(),
            spaced: false,
            lags: false,
            assembly: Assembly::Whole,
            strip: None,
        };
    }

    /// Whether the first token's text may differ from the same token's further on.
    pub(crate) fn first_differs(&self) -> bool {
        self.spaced || !self.stages.is_empty()
    }

    /// What the per-token stages make of each token in the middle of a text.
    pub(crate) fn middle(&self, tokens: Vec<String>) -> Option<Vec<String>> {
        let count = tokens.len();
        let mut padded = Vec::with_capacity(count + 2);
        padded.push(String::new());
        padded.extend(tokens);
        padded.push(String::new());
        let mut decoded = self.run(padded)?;
        if decoded.len() != count + 2 {
            return None;
        }
        decoded.pop();
        decoded.remove(0);
        Some(decoded)
    }

    /// What the per-token stages make of one token at an edge of the text.
    pub(crate) fn edge(&self, token: String, first: bool, last: bool) -> Option<String> {
        let mut tokens = Vec::with_capacity(3);
        if !first {
            tokens.push(String::new());
        }
        tokens.push(token);
        if !last {
            tokens.push(String::new());
        }
        self.run(tokens)?.into_iter().nth(usize::from(!first))
    }

    fn run(&self, mut tokens: Vec<String>) -> Option<Vec<String>> {
        if self.spaced {
            for token in tokens.iter_mut().skip(1) {
                token.insert(0, ' ');
            }
            return Some(tokens);
        }
        for stage in &self.stages {
            tokens = total(|| stage.decode_chain(tokens)).ok()?;
        }
        Some(tokens)
    }
}

fn flatten<'a>(decoder: &'a DecoderWrapper, chain: &mut Vec<&'a DecoderWrapper>) {
    match decoder {
        DecoderWrapper::Sequence(sequence) => {
            for decoder in sequence.get_decoders() {
                flatten(decoder, chain);
            }
        }
        decoder => chain.push(decoder),
    }
}

/// Stages that map tokens one to one and look at no neighbour. A Strip at the end of tokens panics on
/// short ones in the library, so it is left to the whole decoding, which survives that.
fn is_per_token(stage: &DecoderWrapper) -> bool {
    match stage {
        DecoderWrapper::Replace(_)
        | DecoderWrapper::Metaspace(_)
        | DecoderWrapper::WordPiece(_)
        | DecoderWrapper::BPE(_) => true,
        DecoderWrapper::Strip(strip) => strip.stop == 0,
        _ => false,
    }
}
