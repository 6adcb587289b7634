//! Merge rules for a vocabulary that has ranks and no rules. Pure.

use std::collections::HashMap;

/// The rules of byte pair encoding that lead to `pieces`, the first to be applied first: every split of a piece
/// into two others. `pieces` come in the order in which they are preferred; `cuts` says where one may be split.
pub(super) fn rules<'a, T: ?Sized + std::hash::Hash + Eq>(
    pieces: &[&'a T],
    cuts: impl Fn(&'a T) -> Vec<(&'a T, &'a T)>,
) -> Vec<(&'a T, &'a T)> {
    let ranks: HashMap<&T, usize> = pieces.iter().copied().zip(0..).collect();
    let mut rules = Vec::new();
    for piece in pieces {
        let known = cuts(piece)
            .into_iter()
            .filter_map(|(left, right)| Some((*ranks.get(left)?, *ranks.get(right)?, left, right)));
        let mut known: Vec<_> = known.collect();
        known.sort_unstable_by_key(|(left, right, ..)| (*left, *right));
        rules.extend(known.into_iter().map(|(_, _, left, right)| (left, right)));
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_split_into_known_pieces_is_a_rule_in_the_order_of_the_pieces() {
        let cuts = |piece: &'static str| (1..piece.len()).map(|at| piece.split_at(at)).collect();
        let found = rules(&["a", "b", "c", "bc", "abc", "ab"], cuts);
        assert_eq!(found, [("b", "c"), ("a", "bc"), ("ab", "c"), ("a", "b")]);
    }
}
