//! How fields of protobuf's messages are written. Which message has which field is its writer's.

use bytes::BufMut;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};

/// The key of a field of `length` bytes, and its length. Keys of fields up to 15 have one byte.
pub(crate) fn put_head(field: u32, length: usize, out: &mut impl BufMut) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(length as u64, out);
}

pub(crate) fn put_text(field: u32, text: &str, out: &mut impl BufMut) {
    put_head(field, text.len(), out);
    out.put_slice(text.as_bytes());
}

/// The bytes of a text with its key and length.
pub(crate) fn text_len(text: &str) -> usize {
    1 + encoded_len_varint(text.len() as u64) + text.len()
}
