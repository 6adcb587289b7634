//! JSON string escaping into a byte buffer, exactly as serde_json writes it. Owns nothing but bytes:
//! the one place on the hot path where every character of every answer passes.

use bytes::BufMut;

/// What a byte becomes inside a JSON string: 0 is for itself, `u` for `\u00XX`, any other for a
/// backslash and that byte.
const ESCAPE: [u8; 256] = {
    let mut table = [0u8; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = b'u';
        byte += 1;
    }
    table[0x08] = b'b';
    table[0x09] = b't';
    table[0x0a] = b'n';
    table[0x0c] = b'f';
    table[0x0d] = b'r';
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table
};

const HEX: &[u8; 16] = b"0123456789abcdef";

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Whether none of the eight bytes needs an escape; may say no where all are fine, never the reverse.
fn eight_are_plain(eight: u64) -> bool {
    let zero_byte = |word: u64| word.wrapping_sub(ONES) & !word & HIGHS;
    // Bytes under 0x20, by the borrow into the high bit; bytes over 0x7f are plain.
    let control = eight.wrapping_sub(ONES * 0x20) & !eight & HIGHS;
    let quote = zero_byte(eight ^ (ONES * b'"' as u64));
    let backslash = zero_byte(eight ^ (ONES * b'\\' as u64));
    control | quote | backslash == 0
}

/// Appends `text` to `out`, escaped for the inside of a JSON string, without the quotes.
pub fn write_escaped(out: &mut impl BufMut, text: &str) {
    let bytes = text.as_bytes();
    // Everything before `from` is written; everything before `at` is looked at.
    let (mut from, mut at) = (0, 0);
    loop {
        while let Some(eight) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
            if !eight_are_plain(u64::from_le_bytes(*eight)) {
                break;
            }
            at += 8;
        }
        // Up to eight bytes, one of them special or the text at its end.
        let Some((offset, escape, byte)) = bytes
            .iter()
            .enumerate()
            .skip(at)
            .map(|(offset, byte)| (offset, ESCAPE[usize::from(*byte)], *byte))
            .find(|(_, escape, _)| *escape != 0)
        else {
            out.put_slice(&bytes[from..]);
            return;
        };
        out.put_slice(&bytes[from..offset]);
        if escape == b'u' {
            out.put_slice(b"\\u00");
            out.put_u8(HEX[usize::from(byte >> 4)]);
            out.put_u8(HEX[usize::from(byte & 0xf)]);
        } else {
            out.put_slice(&[b'\\', escape]);
        }
        from = offset + 1;
        at = from;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn escaped(text: &str) -> String {
        let mut out = vec![b'"'];
        write_escaped(&mut out, text);
        out.push(b'"');
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_ascii_byte_at_every_offset_is_as_serde_json_writes_it() {
        for byte in 0..128u8 {
            for before in 0..20 {
                for after in [0, 1, 9] {
                    let text = format!(
                        "{}{}{}",
                        "x".repeat(before),
                        char::from(byte),
                        "é".repeat(after)
                    );
                    assert_eq!(escaped(&text), serde_json::to_string(&text).unwrap());
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_is_as_serde_json_writes_it(text in "[\\x00-\\x7f]{0,40}|.{0,40}|[\"\\\\a\u{2028}😀]{0,40}") {
            prop_assert_eq!(escaped(&text), serde_json::to_string(&text).unwrap());
        }
    }
}
