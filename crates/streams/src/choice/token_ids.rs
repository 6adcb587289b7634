//! The generated tokens of a choice, where the answer lists them. Owns which of them are reported.

/// The generated tokens of a choice that lists them.
#[derive(Debug, Default)]
pub(crate) struct TokenIds {
    pub(crate) all: Vec<i32>,
    /// How many are reported.
    reported: usize,
    /// Whether anything of the choice was reported.
    has_begun: bool,
}

impl TokenIds {
    /// The tokens up to `end` that are not reported yet.
    pub(crate) fn report(&mut self, end: usize) -> &[i32] {
        let from = self.reported;
        self.reported = end.min(self.all.len()).max(from);
        self.all.get(from..self.reported).unwrap_or_default()
    }

    /// Whether this is the first that is reported of the choice.
    pub(crate) fn begins(&mut self) -> bool {
        !std::mem::replace(&mut self.has_begun, true)
    }
}
