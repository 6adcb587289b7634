//! One sequence's text as its ids arrive: whole characters, and nothing behind a stop word.

use std::sync::Arc;

use inflight_text::{Detokenizer, StopMatcher, Tokenizer};

/// A sequence of an answer.
#[derive(Debug)]
pub(super) struct SequenceText {
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    /// Everything so far, the prompt's text included where answers repeat it.
    pub(super) all: String,
    finished: bool,
}

impl SequenceText {
    /// `before`: text that the answer begins with, in which no stop word is looked for.
    pub(super) fn new(
        tokenizer: &Arc<Tokenizer>,
        skip_special_tokens: bool,
        stops: &[String],
        before: &str,
    ) -> Self {
        Self {
            detokenizer: Detokenizer::new(Arc::clone(tokenizer), skip_special_tokens),
            matcher: StopMatcher::new(stops),
            all: before.to_owned(),
            finished: false,
        }
    }

    /// Whether a stop word has ended it.
    pub(super) fn is_stopped(&self) -> bool {
        self.matcher.hit().is_some()
    }

    /// Which stop word has ended it, by its place.
    pub(super) fn stop(&self) -> Option<usize> {
        self.matcher.hit().map(|hit| hit.index)
    }

    /// Appends the text that these ids make certain; returns where it begins in `all`, and how many ids were
    /// taken before a stop word ended the sequence.
    pub(super) fn push(&mut self, ids: &[i32]) -> (usize, usize) {
        let start = self.all.len();
        let mut taken = 0;
        let mut certain = String::new();
        // Ids below 0 fill beams that ended earlier.
        for id in ids.iter().filter_map(|id| u32::try_from(*id).ok()) {
            if self.is_stopped() {
                break;
            }
            self.detokenizer.push(id, &mut certain);
            self.matcher.push(&certain, &mut self.all);
            certain.clear();
            taken += 1;
        }
        (start, taken)
    }

    /// Appends what was held back; nothing the second time.
    pub(super) fn finish(&mut self) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        let mut rest = String::new();
        self.detokenizer.finish(&mut rest);
        self.matcher.push(&rest, &mut self.all);
        if !self.is_stopped() {
            self.matcher.finish(&mut self.all);
        }
    }
}
