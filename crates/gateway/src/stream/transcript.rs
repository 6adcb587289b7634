//! What one choice has generated, and how far another worker has said the same. Owns that what is repeated reaches
//! the choice once; knows nothing of workers.

use inflight_upstream::inbox::DeltaDetails;

/// Another worker says something else than what was said already.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Differs;

/// What a row brings that is new.
#[derive(Debug)]
pub(super) struct New<'a> {
    pub(super) tokens: &'a [i32],
    /// `None`: those of the row hold for it as they are.
    pub(super) details: Option<DeltaDetails>,
    /// Whether all of the row was said before.
    pub(super) is_repeated: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    tokens: Vec<i32>,
    /// Where the model answers in text.
    text: String,
    /// Tokens that the text is, by the server's count.
    counted: u32,
    /// How much of each the worker that has the request has said.
    said: Said,
}

#[derive(Clone, Copy, Debug, Default)]
struct Said {
    tokens: usize,
    text: usize,
    counted: u32,
}

impl Transcript {
    /// The tokens so far.
    pub(super) fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    /// Whether there is nothing yet.
    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.text.is_empty()
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Another worker begins from the beginning.
    pub(super) fn replay(&mut self) {
        self.said = Said::default();
    }

    /// Takes a row. `is_last`: nothing follows.
    ///
    /// # Errors
    /// It is not what was said before, or ends before that.
    pub(super) fn take<'a>(
        &mut self,
        tokens: &'a [i32],
        details: Option<&DeltaDetails>,
        is_last: bool,
    ) -> Result<New<'a>, Differs> {
        let text = details.and_then(|details| details.text.as_deref());
        let text = text.unwrap_or_default();
        let old_tokens = repeated(&self.tokens[self.said.tokens..], tokens)?;
        let old_text = repeated(&self.text.as_bytes()[self.said.text..], text.as_bytes())?;
        let new_tokens = &tokens[old_tokens..];
        // What was said ends between characters, and so does what is new.
        let new_text = text.get(old_text..).ok_or(Differs)?;
        self.tokens.extend_from_slice(new_tokens);
        self.text.push_str(new_text);
        let count = details.map_or(0, |details| details.generated);
        self.said.tokens += tokens.len();
        self.said.text += text.len();
        self.said.counted += count;
        let new_count = self.said.counted.saturating_sub(self.counted);
        self.counted = self.counted.max(self.said.counted);
        if is_last && (self.said.tokens < self.tokens.len() || self.said.text < self.text.len()) {
            return Err(Differs);
        }
        let has_old = old_tokens > 0 || old_text > 0;
        let is_repeated = has_old && new_tokens.is_empty() && new_text.is_empty();
        let cut = |details: &DeltaDetails| DeltaDetails {
            log_probs: after(&details.log_probs, old_tokens),
            top_ids: after(&details.top_ids, old_tokens * details.top_width),
            top_values: after(&details.top_values, old_tokens * details.top_width),
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

/// How much of `row` repeats what is `known`.
fn repeated<T: PartialEq>(known: &[T], row: &[T]) -> Result<usize, Differs> {
    let old = known.len().min(row.len());
    match known[..old] == row[..old] {
        true => Ok(old),
        false => Err(Differs),
    }
}

fn after<T: Clone>(values: &[T], count: usize) -> Vec<T> {
    values.get(count..).unwrap_or_default().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str, generated: u32) -> DeltaDetails {
        DeltaDetails {
            text: Some(text.to_owned()),
            generated,
            ..DeltaDetails::default()
        }
    }

    #[test]
    fn what_is_repeated_comes_once_however_it_is_cut() {
        let whole: Vec<i32> = (0..7).collect();
        for cut in 0..=7 {
            for size in 1..=7 {
                let mut transcript = Transcript::default();
                let mut out = Vec::new();
                for row in whole[..cut].chunks(2) {
                    out.extend_from_slice(transcript.take(row, None, false).unwrap().tokens);
                }
                transcript.replay();
                let mut rest = whole.chunks(size).peekable();
                while let Some(row) = rest.next() {
                    let values: Vec<f32> = row.iter().map(|token| *token as f32).collect();
                    let details = DeltaDetails {
                        log_probs: values,
                        ..DeltaDetails::default()
                    };
                    let new = transcript
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
        let mut transcript = Transcript::default();
        transcript.take(&[], Some(&text("grün", 2)), false).unwrap();
        transcript.replay();
        let first = transcript.take(&[], Some(&text("gr", 1)), false).unwrap();
        assert!(first.is_repeated);
        let second = transcript
            .take(&[], Some(&text("ün ist", 3)), true)
            .unwrap();
        let details = second.details.unwrap();
        assert_eq!(
            (details.text.as_deref(), details.generated),
            (Some(" ist"), 2)
        );
    }

    #[test]
    fn another_answer_or_a_shorter_one_differs() {
        let begun = || {
            let mut transcript = Transcript::default();
            transcript.take(&[1, 2, 3], None, false).unwrap();
            transcript.replay();
            transcript
        };
        assert_eq!(begun().take(&[1, 9], None, false).unwrap_err(), Differs);
        assert_eq!(begun().take(&[1, 2], None, true).unwrap_err(), Differs);
        assert!(begun().take(&[1, 2, 3], None, true).unwrap().is_repeated);
        let mut transcript = Transcript::default();
        transcript.take(&[], Some(&text("ab", 1)), false).unwrap();
        transcript.replay();
        let other = transcript.take(&[], Some(&text("ax", 1)), false);
        assert_eq!(other.unwrap_err(), Differs);
    }
}
