//! The table from ids to decoded bytes: what each token is in the middle of a text, computed once at
//! load so that the hot path only copies. Owns the layout; `decoder` says what goes in.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::decoder::{Assembly, DecoderParts};
use crate::error::TextError;

/// Largest id a table is made for: far above any vocabulary, and about 100 MB at worst.
const ID_LIMIT: u32 = 1 << 24;

const KNOWN: u8 = 1;
const SPECIAL: u8 = 2;
const BYTE: u8 = 4;

/// Bytes by id: the bytes of all tokens one after another, where each ends, and what it is.
#[derive(Debug)]
pub(crate) struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    flags: Vec<u8>,
}

/// One token in the middle of a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) bytes: &'a [u8],
    /// One raw byte of a byte-fallback run.
    pub(crate) is_byte: bool,
    pub(crate) special: bool,
}

impl Pieces {
    /// Makes the table; where a stage fails on some token, `parts` gives up and tokens stay raw.
    pub(crate) fn build(
        inner: &tokenizers::Tokenizer,
        parts: &mut DecoderParts,
    ) -> Result<Self, TextError> {
        let largest = inner.get_vocab(true).into_values().max();
        if let Some(id) = largest.filter(|id| *id > ID_LIMIT) {
            return Err(TextError::SparseVocabulary {
                id,
                limit: ID_LIMIT,
            });
        }
        let count = largest.map_or(0, |id| id as usize + 1);
        let mut flags = vec![0u8; count];
        let mut tokens = vec![String::new(); count];
        let added = inner.get_added_vocabulary();
        for (id, (flag, slot)) in (0u32..).zip(flags.iter_mut().zip(tokens.iter_mut())) {
            if let Some(token) = inner.id_to_token(id) {
                *flag = KNOWN;
                if added.is_special_token(&token) {
                    *flag |= SPECIAL;
                }
                *slot = token;
            }
        }
        let tokens = match parts.middle(tokens.clone()) {
            Some(decoded) => decoded,
            None => {
                parts.give_up();
                tokens
            }
        };
        let mut pieces = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(count),
            flags,
        };
        for (token, flag) in tokens.iter().zip(pieces.flags.iter_mut()) {
            if append(parts.assembly, token, &mut pieces.bytes) {
                *flag |= BYTE;
            }
            let end = u32::try_from(pieces.bytes.len()).map_err(|_| TextError::Load {
                reason: "the vocabulary's text is larger than 4 GiB".to_owned(),
            })?;
            pieces.ends.push(end);
        }
        Ok(pieces)
    }

    /// One more than the largest id.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.ends.len()).unwrap_or(u32::MAX)
    }

    /// The token with this id.
    pub(crate) fn get(&self, id: u32) -> Option<Piece<'_>> {
        let index = id as usize;
        let flags = *self.flags.get(index)?;
        if flags & KNOWN == 0 {
            return None;
        }
        let end = *self.ends.get(index)? as usize;
        let start = match index.checked_sub(1) {
            Some(before) => *self.ends.get(before)? as usize,
            None => 0,
        };
        Some(Piece {
            bytes: self.bytes.get(start..end)?,
            is_byte: flags & BYTE != 0,
            special: flags & SPECIAL != 0,
        })
    }

    /// The token, unless decoding skips it.
    pub(crate) fn visible(&self, id: u32, skip_special_tokens: bool) -> Option<Piece<'_>> {
        self.get(id)
            .filter(|piece| !(skip_special_tokens && piece.special))
    }
}

/// Appends a decoded token's bytes; true where it is one raw byte of a run.
pub(crate) fn append(assembly: Assembly, token: &str, bytes: &mut Vec<u8>) -> bool {
    match assembly {
        Assembly::Bytes => {
            let start = bytes.len();
            for character in token.chars() {
                match BYTE_OF_CHAR.get(&character) {
                    Some(byte) => bytes.push(*byte),
                    None => {
                        // One foreign character, e.g. in an added token, makes all of it plain text.
                        bytes.truncate(start);
                        bytes.extend_from_slice(token.as_bytes());
                        break;
                    }
                }
            }
            false
        }
        Assembly::Runs => match fallback_byte(token) {
            Some(byte) => {
                bytes.push(byte);
                true
            }
            None => {
                bytes.extend_from_slice(token.as_bytes());
                false
            }
        },
        Assembly::Plain | Assembly::Whole => {
            bytes.extend_from_slice(token.as_bytes());
            false
        }
    }
}

/// `<0x61>` is the byte 0x61. What counts as hexadecimal is the library's choice: `from_str_radix`.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// GPT-2's printable stand-ins for bytes: printable Latin-1 is itself, the other bytes, in
/// order, for the characters from U+0100 on.
static BYTE_OF_CHAR: LazyLock<HashMap<char, u8>> = LazyLock::new(|| {
    let mut next = 0x100u32;
    (0..=u8::MAX)
        .map(|byte| {
            let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
            let character = if printable {
                char::from(byte)
            } else {
                let stand_in = char::from_u32(next).unwrap_or(char::REPLACEMENT_CHARACTER);
                next += 1;
                stand_in
            };
            (character, byte)
        })
        .collect()
});
