//! What the model of the simulated fleet says: letters in their order, from one that the prompt decides, and where a
//! sequence ends by itself. The executor says it and the oracle expects it. Pure.

/// How many letters answers cycle through.
const CYCLE: u32 = 95;
/// The first of them.
const FIRST: u32 = 32;
/// A sequence that ends by itself has at least so many letters.
const SHORTEST: u32 = 3;
/// And so many more at most.
const SPREAD: u32 = 400;

/// Where in the cycle the answer to a prompt begins, as the simulated executor decides it.
pub(crate) fn first_of(prompt: impl Iterator<Item = u8>) -> u32 {
    prompt.fold(0, |hash: u32, byte| {
        hash.wrapping_mul(31).wrapping_add(byte.into())
    })
}

/// A letter of a sequence.
pub(crate) fn letter(first: u32, sequence: u32, index: u32) -> char {
    let place = first.wrapping_add(sequence).wrapping_add(index) % CYCLE;
    char::from((FIRST + place) as u8)
}

/// How many letters a sequence has before it ends by itself; `None`: only at its limit. Those of one prompt end apart
/// from each other.
pub(crate) fn own_end(first: u32, sequence: u32) -> Option<u32> {
    let mut mixed = first ^ sequence.wrapping_mul(0x9e37_79b9);
    mixed = (mixed ^ (mixed >> 16)).wrapping_mul(0x85eb_ca6b);
    mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35);
    mixed ^= mixed >> 16;
    (mixed & 1 == 1).then(|| SHORTEST + (mixed >> 1) % SPREAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_sequences_of_a_prompt_end_by_themselves_and_apart() {
        let firsts = 0..1_000;
        let ends: Vec<_> = firsts
            .map(|first| (own_end(first, 0), own_end(first, 1)))
            .collect();
        let both = ends.iter().filter_map(|(one, other)| one.zip(*other));
        assert!((200..300).contains(&both.clone().count()));
        assert!(both.filter(|(one, other)| one == other).count() < 10);
        assert_eq!(letter(0, 0, 0), ' ');
        assert_eq!(letter(94, 1, 0), ' ');
    }
}
