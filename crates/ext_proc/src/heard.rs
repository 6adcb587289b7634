//! What the way of an answer through the proxy says of it: that it has begun, who gives it, and how much of its prompt was
//! cached. Owns how a body that only passes is searched; knows nothing of what follows from it.

use bytes::Bytes;
use memchr::memmem;

/// How usage names the prompt tokens that were cached, in answers of OpenAI's chat and completions, and of Responses.
const CACHED: &[u8] = b"\"cached_tokens\":";
/// Of a piece of the body, this much is kept: the name and a number may be in two pieces.
const TAIL: usize = CACHED.len() + 16;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// The first bytes of the answer have come; its head, where the proxy sends no more.
    pub has_begun: bool,
    /// Prompt tokens that the answer says were cached.
    pub cached_tokens: Option<u32>,
    /// The endpoint that the proxy says has answered.
    pub served: Option<String>,
    tail: Vec<u8>,
}

impl Heard {
    /// Takes a piece of the body.
    pub(crate) fn body(&mut self, piece: &Bytes, is_last: bool) {
        self.has_begun |= !piece.is_empty();
        let mut joined = std::mem::take(&mut self.tail);
        let before = joined.len();
        joined.extend_from_slice(&piece[..piece.len().min(TAIL)]);
        // First what lies across the border, then the piece itself: the last number counts.
        for text in [&joined[..], piece] {
            if let Some(tokens) = cached_tokens(text, is_last) {
                self.cached_tokens = Some(tokens);
            }
        }
        if piece.len() >= TAIL {
            self.tail = piece[piece.len() - TAIL..].to_vec();
        } else {
            joined.drain(..(before + piece.len()).saturating_sub(TAIL));
            self.tail = joined;
        }
    }
}

/// The last number of cached tokens that is whole in `text`.
fn cached_tokens(text: &[u8], is_last: bool) -> Option<u32> {
    let at = memmem::rfind(text, CACHED)?;
    let rest = text[at + CACHED.len()..].trim_ascii_start();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    // Where the text ends with a digit, more may follow.
    if digits == rest.len() && !is_last {
        return None;
    }
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn heard(pieces: &[&[u8]]) -> Heard {
        let mut heard = Heard::default();
        for (place, piece) in pieces.iter().enumerate() {
            heard.body(&Bytes::copy_from_slice(piece), place + 1 == pieces.len());
        }
        heard
    }

    #[test]
    fn cached_tokens_are_found() {
        for (body, expected) in [
            (
                r#"{"usage":{"prompt_tokens_details":{"cached_tokens":48}}}"#,
                Some(48),
            ),
            (r#"{"cached_tokens": 7, "x": 1}"#, Some(7)),
            (r#"{"cached_tokens":null}"#, None),
            (r#"{"cached_tokens":99999999999}"#, None),
            (r#"{"cached_tokens":1}{"cached_tokens":2}"#, Some(2)),
            (r#"{"cached":1}"#, None),
            ("", None),
        ] {
            assert_eq!(heard(&[body.as_bytes()]).cached_tokens, expected, "{body}");
        }
    }

    #[test]
    fn an_answer_begins_with_its_first_byte() {
        assert!(!heard(&[b"", b""]).has_begun);
        assert!(heard(&[b"", b"d"]).has_begun);
    }

    proptest! {
        /// However a body is cut, the same is found.
        #[test]
        fn pieces_do_not_matter(
            before in "[a-z\"{}:]{0,80}",
            tokens in 0u32..2_000_000,
            after in "[}\\], ][a-z\"{}:]{0,80}",
            cuts in proptest::collection::vec(0usize..250, 0..12),
        ) {
            let body = format!("{before}\"cached_tokens\":{tokens}{after}").into_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(body.len())).collect();
            cuts.extend([0, body.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &body[cut[0]..cut[1]]).collect();
            prop_assert_eq!(heard(&pieces).cached_tokens, Some(tokens));
        }
    }
}
