//! What one choice has generated, and what of a row is new. Owns how log probabilities, text and counts are cut where
//! another worker repeats what was said; the comparison is [`Transcript`]'s.

use inflight_upstream::inbox::OutputDetails;
use inflight_upstream::transcript::{Differs, Transcript};

/// What a row brings that is new.
#[derive(Debug)]
pub(super) struct New<'a> {
    pub(super) tokens: &'a [i32],
    /// `None`: those of the row hold for it as they are.
    pub(super) details: Option<OutputDetails>,
    /// Whether all of the row was said before.
    pub(super) is_repeated: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Generated {
    transcript: Transcript,
    /// Tokens that the text is, by the server's count.
    counted: u32,
    /// How many of them the worker that has the request has counted.
    said: u32,
    has_ended: bool,
}

impl Generated {
    /// The tokens so far; `None`: the choice has ended.
    pub(super) fn running(&self) -> Option<&[i32]> {
        (!self.has_ended).then(|| self.transcript.tokens())
    }

    /// Nothing follows.
    pub(super) fn end(&mut self) {
        self.has_ended = true;
    }

    /// Whether there is nothing yet.
    pub(super) fn is_empty(&self) -> bool {
        self.transcript.is_empty()
    }

    /// Another worker begins from the beginning.
    pub(super) fn replay(&mut self) {
        self.transcript.replay();
        self.said = 0;
    }

    /// Takes a row of tokens alone that cannot repeat anything, which nearly every row is. Returns whether it is such.
    #[inline]
    pub(super) fn append(&mut self, tokens: &[i32], details: Option<&OutputDetails>) -> bool {
        details.is_none() && self.transcript.append(tokens)
    }

    /// Takes a row. `is_last`: nothing follows.
    ///
    /// # Errors
    /// It is not what was said before, or ends before that.
    pub(super) fn take<'a>(
        &mut self,
        tokens: &'a [i32],
        details: Option<&OutputDetails>,
        is_last: bool,
    ) -> Result<New<'a>, Differs> {
        let text = details.and_then(|details| details.text.as_deref());
        let text = text.unwrap_or_default();
        let old = self.transcript.take(tokens, text.as_bytes(), is_last)?;
        let new_tokens = &tokens[old.tokens..];
        // What was said ends between characters, and so does what is new.
        let new_text = text.get(old.text..).ok_or(Differs)?;
        self.said += details.map_or(0, |details| details.generated);
        let new_count = self.said.saturating_sub(self.counted);
        self.counted = self.counted.max(self.said);
        let has_old = old.tokens > 0 || old.text > 0;
        let is_repeated = has_old && new_tokens.is_empty() && new_text.is_empty();
        let cut = |details: &OutputDetails| OutputDetails {
            log_probs: after(&details.log_probs, old.tokens),
            top_ids: after(&details.top_ids, old.tokens * details.top_width),
            top_values: after(&details.top_values, old.tokens * details.top_width),
            text: details.text.is_some().then(|| new_text.to_owned()),
            generated: new_count,
            ..details.clone()
        };
        Ok(New {
            tokens: new_tokens,
            details: details.filter(|_| has_old).map(cut),
            is_repeated,
        })
    }
}

fn after<T: Clone>(values: &[T], count: usize) -> Vec<T> {
    values.get(count..).unwrap_or_default().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str, generated: u32) -> OutputDetails {
        OutputDetails {
            text: Some(text.to_owned()),
            generated,
            ..OutputDetails::default()
        }
    }

    #[test]
    fn what_is_repeated_comes_once_however_it_is_cut() {
        let whole: Vec<i32> = (0..7).collect();
        for cut in 0..=7 {
            for size in 1..=7 {
                let mut generated = Generated::default();
                let mut out = Vec::new();
                for row in whole[..cut].chunks(2) {
                    if size > 3 {
                        out.extend_from_slice(generated.take(row, None, false).unwrap().tokens);
                        continue;
                    }
                    assert!(generated.append(row, None));
                    out.extend_from_slice(row);
                }
                generated.replay();
                let mut rest = whole.chunks(size).peekable();
                while let Some(row) = rest.next() {
                    let values: Vec<f32> = row.iter().map(|token| *token as f32).collect();
                    let details = OutputDetails {
                        log_probs: values,
                        ..OutputDetails::default()
                    };
                    let new = generated
                        .take(row, Some(&details), rest.peek().is_none())
                        .unwrap();
                    assert_eq!(new.is_repeated, new.tokens.is_empty());
                    let details = new.details.as_ref().unwrap_or(&details);
                    let shown: Vec<i32> = details
                        .log_probs
                        .iter()
                        .map(|value| *value as i32)
                        .collect();
                    assert_eq!(shown, new.tokens);
                    out.extend_from_slice(new.tokens);
                }
                assert_eq!(out, whole, "{cut} {size}");
            }
        }
    }

    #[test]
    fn text_is_cut_where_it_was_and_counted_once() {
        let mut generated = Generated::default();
        generated.take(&[], Some(&text("grün", 2)), false).unwrap();
        generated.replay();
        let first = generated.take(&[], Some(&text("gr", 1)), false).unwrap();
        assert!(first.is_repeated);
        let second = generated.take(&[], Some(&text("ün ist", 3)), true).unwrap();
        let details = second.details.unwrap();
        assert_eq!(
            (details.text.as_deref(), details.generated),
            (Some(" ist"), 2)
        );
    }

    #[test]
    fn another_answer_or_a_shorter_one_differs() {
        let begun = || {
            let mut generated = Generated::default();
            generated.take(&[1, 2, 3], None, false).unwrap();
            generated.replay();
            generated
        };
        assert_eq!(begun().take(&[1, 9], None, false).unwrap_err(), Differs);
        assert_eq!(begun().take(&[1, 2], None, true).unwrap_err(), Differs);
        assert!(begun().take(&[1, 2, 3], None, true).unwrap().is_repeated);
        let mut generated = Generated::default();
        generated.take(&[], Some(&text("ab", 1)), false).unwrap();
        generated.replay();
        let other = generated.take(&[], Some(&text("ax", 1)), false);
        assert_eq!(other.unwrap_err(), Differs);
    }
}
