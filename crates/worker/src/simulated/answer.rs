//! What simulated sequences say: ids in a cycle, those of a given answer or the printable characters. The same prompt
//! always gets the same answer. Pure.

use super::SimulatedOptions;

/// The first printable ASCII character: byte-level vocabularies begin with ASCII.
const FIRST_PRINTABLE: u32 = 32;
/// The number of printable ASCII characters.
const PRINTABLE: u32 = 95;

/// See the module.
#[derive(Debug)]
pub(super) struct Answer {
    /// Never empty.
    ids: Vec<u32>,
    is_given: bool,
}

impl Answer {
    pub(super) fn new(options: &SimulatedOptions) -> Self {
        let is_given = !options.answer.is_empty();
        let ids = match is_given {
            true => options.answer.clone(),
            false => printable(options.vocab_size),
        };
        Self { ids, is_given }
    }

    /// Where in the cycle a sequence of a request begins, whose prompt begins at `first`. Sequences of one request
    /// differ, as samples do, unless the answer is given.
    pub(super) fn first_of(&self, first: u32, index: i32) -> u32 {
        match self.is_given {
            true => 0,
            false => first.wrapping_add(index as u32),
        }
    }

    /// The token at a place of a sequence that began at `first`.
    pub(super) fn token(&self, first: u32, place: u32) -> i32 {
        let place = first.wrapping_add(place) as usize % self.ids.len();
        self.ids.get(place).copied().unwrap_or_default() as i32
    }
}

fn printable(vocab_size: u32) -> Vec<u32> {
    let first_id = match vocab_size > FIRST_PRINTABLE {
        true => FIRST_PRINTABLE,
        false => 0,
    };
    let count = PRINTABLE.min(vocab_size - first_id).max(1);
    (first_id..first_id + count).collect()
}

/// Where in the cycle a prompt's answer begins.
pub(super) fn first_token(prompt: &[i32]) -> u32 {
    prompt.iter().fold(0_u32, |hash, id| {
        hash.wrapping_mul(31).wrapping_add(*id as u32)
    })
}
