//! What one sequence has generated, and how far another server has said the same. Owns the comparison; knows nothing
//! of servers.

/// Another server says something else than what was said already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Differs;

/// How much of a piece was said before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Old {
    /// Tokens of it.
    pub tokens: usize,
    /// Bytes of its text.
    pub text: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Transcript {
    tokens: Vec<i32>,
    /// Where the model answers in text.
    text: Vec<u8>,
    /// How much of each the server that has the request has said.
    said: Old,
}

impl Transcript {
    /// The tokens so far.
    pub fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    /// Bytes of the text so far.
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// Whether there is nothing yet.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.text.is_empty()
    }

    /// Another server begins from the beginning.
    pub fn replay(&mut self) {
        self.said = Old::default();
    }

    /// Whether the server has yet to repeat something.
    pub fn is_behind(&self) -> bool {
        self.said.tokens < self.tokens.len() || self.said.text < self.text.len()
    }

    /// Takes tokens that cannot repeat anything: what nearly every piece is. Returns whether they are such.
    #[inline]
    pub fn append(&mut self, tokens: &[i32]) -> bool {
        if self.is_behind() {
            return false;
        }
        self.tokens.extend_from_slice(tokens);
        self.said.tokens += tokens.len();
        true
    }

    /// Takes a piece. `is_last`: nothing follows.
    ///
    /// # Errors
    /// It is not what was said before, or ends before that.
    pub fn take(&mut self, tokens: &[i32], text: &[u8], is_last: bool) -> Result<Old, Differs> {
        let old = Old {
            tokens: repeated(&self.tokens[self.said.tokens..], tokens)?,
            text: repeated(&self.text[self.said.text..], text)?,
        };
        self.tokens.extend_from_slice(&tokens[old.tokens..]);
        self.text.extend_from_slice(&text[old.text..]);
        self.said.tokens += tokens.len();
        self.said.text += text.len();
        if is_last && self.is_behind() {
            return Err(Differs);
        }
        Ok(old)
    }
}

/// How much of `piece` repeats what is `known`.
fn repeated<T: PartialEq>(known: &[T], piece: &[T]) -> Result<usize, Differs> {
    let old = known.len().min(piece.len());
    match known[..old] == piece[..old] {
        true => Ok(old),
        false => Err(Differs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_repeated_comes_once_however_it_is_cut() {
        let whole: Vec<i32> = (0..7).collect();
        let text = b"gr\xc3\xbcn !";
        for cut in 0..=7 {
            for size in 1..=7 {
                let mut transcript = Transcript::default();
                let mut out = (Vec::new(), Vec::new());
                let mut take = |transcript: &mut Transcript, places: &[usize], is_last| {
                    let tokens: Vec<i32> = places.iter().map(|place| whole[*place]).collect();
                    let bytes: Vec<u8> = places.iter().map(|place| text[*place]).collect();
                    let old = transcript.take(&tokens, &bytes, is_last).unwrap();
                    out.0.extend_from_slice(&tokens[old.tokens..]);
                    out.1.extend_from_slice(&bytes[old.text..]);
                };
                let places: Vec<usize> = (0..7).collect();
                for piece in places[..cut].chunks(2) {
                    take(&mut transcript, piece, false);
                }
                assert!(transcript.append(&[]));
                transcript.replay();
                assert_eq!(transcript.is_behind(), cut > 0);
                assert_eq!(transcript.append(&[]), cut == 0, "it may repeat something");
                let mut rest = places.chunks(size).peekable();
                while let Some(piece) = rest.next() {
                    take(&mut transcript, piece, rest.peek().is_none());
                }
                assert_eq!(out, (whole.clone(), text.to_vec()), "{cut} {size}");
            }
        }
    }

    #[test]
    fn another_answer_or_a_shorter_one_differs() {
        let begun = || {
            let mut transcript = Transcript::default();
            transcript.take(&[1, 2, 3], b"ab", false).unwrap();
            transcript.replay();
            transcript
        };
        assert_eq!(begun().take(&[1, 9], b"", false), Err(Differs));
        assert_eq!(begun().take(&[1], b"ax", false), Err(Differs));
        assert_eq!(begun().take(&[1, 2], b"ab", true), Err(Differs));
        assert_eq!(begun().take(&[1, 2, 3], b"a", true), Err(Differs));
        let old = begun().take(&[1, 2, 3], b"abc", true).unwrap();
        assert_eq!((old.tokens, old.text), (3, 2));
    }

    #[test]
    fn new_tokens_are_appended_unless_a_server_repeats() {
        let mut transcript = Transcript::default();
        assert!(transcript.is_empty() && !transcript.is_behind());
        assert!(transcript.append(&[1, 2]) && transcript.append(&[3]));
        assert_eq!(transcript.tokens(), [1, 2, 3]);
        assert!(!transcript.is_empty() && !transcript.is_behind());
        transcript.replay();
        assert!(transcript.is_behind() && !transcript.append(&[1]));
        assert_eq!(transcript.tokens(), [1, 2, 3]);
        let mut text = Transcript::default();
        text.take(&[], b"a", false).unwrap();
        assert!(!text.is_empty() && text.text_bytes() == 1);
    }
}
