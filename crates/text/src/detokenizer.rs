//! Incremental detokenization: ids in, complete text out. Owns what must be held back so that the
//! pieces of a stream, put together, equal the decoding of all its ids; knows nothing of stop strings.
//!
//! Held back is only what a later id could still change: up to three bytes of an unfinished character
//! (byte-level tokenizers); a run of byte-fallback tokens until a token of text ends it, because one
//! invalid byte turns the whole run into U+FFFD; one token where the last one decodes differently; and
//! everything where the tokenizer's decoder cannot be taken apart (see `decoder`).

use std::sync::Arc;

use crate::tokenizer::Tokenizer;
use crate::tokenizer::decoder::Assembly;
use crate::tokenizer::pieces::{Piece, append};

/// The text of one sequence, as its ids arrive.
///
/// For any ids, everything that `push` and then one `finish` appended equals
/// [`Tokenizer::decode`] of all of them. Nothing is allocated per token once the first is through
/// (beyond the growth of `out`), except where the decoder cannot be taken apart: there ids are kept
/// and all text comes at the end.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_special_tokens: bool,
    /// Special tokens that are text although others are skipped; mostly none.
    shown: Arc<[u32]>,
    /// Whether a visible token has been decoded.
    started: bool,
    /// The token that waits to know whether it is the last one.
    waiting: Option<u32>,
    assembler: Assembler,
    /// All ids, where the text can only be decoded whole.
    ids: Vec<u32>,
}

impl Detokenizer {
    /// A detokenizer for one sequence. `skip_special_tokens` as in [`Tokenizer::decode`].
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special_tokens: bool) -> Self {
        let parts = tokenizer.decoder();
        let assembler = Assembler {
            assembly: parts.assembly,
            pending: Vec::new(),
            strip: parts.strip.filter(|(_, count)| *count > 0),
        };
        Self {
            tokenizer,
            skip_special_tokens,
            shown: Arc::default(),
            started: false,
            waiting: None,
            assembler,
            ids: Vec::new(),
        }
    }

    /// Makes these special tokens a part of the text, whatever becomes of the others.
    #[must_use]
    pub fn showing(mut self, ids: Arc<[u32]>) -> Self {
        self.shown = ids;
        self
    }

    /// Takes the next id and appends to `out` the text that is now certain, which may be none. Ids
    /// outside the vocabulary are no text.
    pub fn push(&mut self, id: u32, out: &mut String) {
        let Some(piece) = visible(&self.tokenizer, self.skip_special_tokens, &self.shown, id)
        else {
            return;
        };
        let parts = self.tokenizer.decoder();
        if parts.assembly == Assembly::Whole {
            self.ids.push(id);
        } else if parts.lags {
            if let Some(previous) = self.waiting.replace(id) {
                self.decode(previous, false, out);
            }
        } else if self.started || !parts.first_differs() {
            self.started = true;
            self.assembler.push(piece.bytes, piece.is_byte, out);
        } else {
            self.decode(id, false, out);
        }
    }

    /// Ends the sequence: appends what was held back. An unfinished character becomes U+FFFD, as in
    /// the decoding of all ids.
    pub fn finish(&mut self, out: &mut String) {
        if let Some(last) = self.waiting.take() {
            self.decode(last, true, out);
        }
        self.assembler.finish(out);
        if !self.ids.is_empty() {
            let ids = std::mem::take(&mut self.ids);
            let skips_special = self.skip_special_tokens && self.shown.is_empty();
            // Where the whole decoding fails there is no text to equal.
            if let Ok(text) = self.tokenizer.decode(&ids, skips_special) {
                out.push_str(&text);
            }
        }
    }

    /// Decodes one token that may be the first or the last one.
    fn decode(&mut self, id: u32, last: bool, out: &mut String) {
        let first = !std::mem::replace(&mut self.started, true);
        if !first && !last {
            let piece = visible(&self.tokenizer, self.skip_special_tokens, &self.shown, id);
            if let Some(piece) = piece {
                self.assembler.push(piece.bytes, piece.is_byte, out);
            }
            return;
        }
        let parts = self.tokenizer.decoder();
        let token = self
            .tokenizer
            .raw_token(id)
            .and_then(|token| parts.edge(token, first, last));
        if let Some(token) = token {
            let mut bytes = Vec::new();
            let is_byte = append(parts.assembly, &token, &mut bytes);
            self.assembler.push(&bytes, is_byte, out);
        }
    }
}

/// The token's text, unless it is skipped.
fn visible<'a>(
    tokenizer: &'a Tokenizer,
    skips_special: bool,
    shown: &[u32],
    id: u32,
) -> Option<Piece<'a>> {
    let piece = tokenizer.piece(id, skips_special);
    piece.or_else(|| tokenizer.piece(id, false).filter(|_| shown.contains(&id)))
}

/// Joins pieces into text.
#[derive(Debug)]
struct Assembler {
    assembly: Assembly,
    /// An unfinished character, or a run of byte tokens.
    pending: Vec<u8>,
    /// Leading characters still to drop: which, and how many at most.
    strip: Option<(char, usize)>,
}

impl Assembler {
    fn push(&mut self, bytes: &[u8], is_byte: bool, out: &mut String) {
        match self.assembly {
            Assembly::Bytes => self.push_bytes(bytes, out),
            Assembly::Runs if is_byte => self.pending.extend_from_slice(bytes),
            _ => {
                self.end_run(out);
                // Text pieces come from strings, so this is always the valid case.
                if let Ok(text) = std::str::from_utf8(bytes) {
                    emit(text, &mut self.strip, out);
                }
            }
        }
    }

    fn push_bytes(&mut self, bytes: &[u8], out: &mut String) {
        if self.pending.is_empty() {
            let rest = emit_lossy(bytes, &mut self.strip, out);
            self.pending.extend_from_slice(rest);
            return;
        }
        self.pending.extend_from_slice(bytes);
        let rest = emit_lossy(&self.pending, &mut self.strip, out).len();
        let done = self.pending.len() - rest;
        self.pending.drain(..done);
    }

    /// A run is text if all of it is UTF-8, and else one U+FFFD per byte.
    fn end_run(&mut self, out: &mut String) {
        if self.pending.is_empty() {
            return;
        }
        match std::str::from_utf8(&self.pending) {
            Ok(text) => emit(text, &mut self.strip, out),
            Err(_) => {
                for _ in 0..self.pending.len() {
                    emit("\u{FFFD}", &mut self.strip, out);
                }
            }
        }
        self.pending.clear();
    }

    fn finish(&mut self, out: &mut String) {
        if self.assembly == Assembly::Bytes {
            if !self.pending.is_empty() {
                // At most three bytes, and a prefix of one character: one U+FFFD.
                emit("\u{FFFD}", &mut self.strip, out);
                self.pending.clear();
            }
        } else {
            self.end_run(out);
        }
    }
}

/// Appends the text of `bytes` with U+FFFD for what can never become UTF-8, exactly as
/// `String::from_utf8_lossy` would, and returns the unfinished character at the end.
fn emit_lossy<'a>(
    mut bytes: &'a [u8],
    strip: &mut Option<(char, usize)>,
    out: &mut String,
) -> &'a [u8] {
    loop {
        match std::str::from_utf8(bytes) {
            Ok(text) => {
                emit(text, strip, out);
                return &[];
            }
            Err(error) => {
                let (valid, rest) = bytes.split_at(error.valid_up_to());
                if let Ok(text) = std::str::from_utf8(valid) {
                    emit(text, strip, out);
                }
                let Some(length) = error.error_len() else {
                    return rest;
                };
                emit("\u{FFFD}", strip, out);
                bytes = rest.get(length..).unwrap_or_default();
            }
        }
    }
}

/// Appends text, less the leading characters that are still to be dropped.
fn emit(mut text: &str, strip: &mut Option<(char, usize)>, out: &mut String) {
    while let Some((character, count)) = *strip {
        if text.is_empty() {
            return;
        }
        match text.strip_prefix(character) {
            Some(rest) => {
                text = rest;
                *strip = (count > 1).then(|| (character, count - 1));
            }
            None => *strip = None,
        }
    }
    out.push_str(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_at_the_beginning_are_dropped_however_they_come() {
        for (count, text, left) in [
            (1, "  a b", " a b"),
            (2, "  a b", "a b"),
            (2, "    a b", "  a b"),
            (3, "  a b", "a b"),
            (2, " a b", "a b"),
            (2, "a  b", "a  b"),
            (2, "  ", ""),
        ] {
            for cut in 0..=text.len() {
                let (mut strip, mut out) = (Some((' ', count)), String::new());
                for piece in [&text[..cut], "", &text[cut..]] {
                    emit(piece, &mut strip, &mut out);
                }
                assert_eq!(out, left, "{count} of {text:?}, cut at {cut}");
            }
        }
    }
}
