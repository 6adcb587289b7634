//! What variables become in a loop, from what one turn makes of them. Owns that step; knows nothing of templates.
//!
//! A variable may keep its value, take another, or get longer by what belongs to this turn alone: a part of the
//! item, or a text of the template. Whatever else one turn does, many turns may do without bound.

use std::collections::BTreeMap;

use super::size::{Part, Size, Sum};

/// One variable of a loop.
#[derive(Clone, Debug)]
pub(super) struct Carried {
    /// Its size before the loop.
    pub(super) before: Size,
    /// Its size after one turn, with [`Part::Before`] for what it and others were before that turn.
    pub(super) after: Size,
}

/// The sizes after any number of turns of the loop at `depth`, which runs over `iter`; variables have the numbers of
/// [`Part::Before`]. `None`: there may be no bound.
pub(super) fn close(
    variables: &BTreeMap<usize, Carried>,
    depth: usize,
    iter: &Size,
) -> Option<BTreeMap<usize, Size>> {
    let mut closed: BTreeMap<usize, Size> = BTreeMap::new();
    while closed.len() < variables.len() {
        let known = closed.len();
        for (number, variable) in variables {
            if !closed.contains_key(number) && depends_on(variable, *number, &closed) {
                let size = one(*number, variable, &closed, depth, iter)?;
                closed.insert(*number, size);
            }
        }
        // Those that are left depend on each other.
        if closed.len() == known {
            return None;
        }
    }
    Some(closed)
}

/// Whether a variable depends on itself and on what is known alone.
fn depends_on(variable: &Carried, number: usize, known: &BTreeMap<usize, Size>) -> bool {
    let sums = variable.after.sums().iter();
    sums.flat_map(|sum| sum.parts.keys())
        .all(|part| match part {
            Part::Before(other) => *other == number || known.contains_key(other),
            _ => true,
        })
}

fn one(
    number: usize,
    variable: &Carried,
    known: &BTreeMap<usize, Size>,
    depth: usize,
    iter: &Size,
) -> Option<Size> {
    let known = |part: Part| match part {
        Part::Before(other) if other != number => known.get(&other).cloned(),
        _ => None,
    };
    let after = variable.after.replaced(&known);
    // The largest value that it takes from elsewhere, and the most that turns add to any value.
    let mut taken = variable.before.clone();
    let mut added = Sum::default();
    for sum in after.sums() {
        let mut rest = sum.clone();
        match rest.parts.remove(&Part::Before(number)) {
            None => taken = taken.or(&in_any_turn(&rest, depth, iter)),
            // One turn may add the one, the next the other.
            Some(1) => added = added.over(rest),
            Some(_) => return None,
        }
    }
    let mut size = taken.plus(&in_all_turns(&added, depth, iter)?);
    size.depth = variable.before.depth.max(variable.after.depth);
    size.kind = variable.before.kind.max(variable.after.kind);
    Some(size)
}

/// The most that one turn has.
fn in_any_turn(sum: &Sum, depth: usize, iter: &Size) -> Size {
    Size::from(sum.clone()).replaced(&|part| match part {
        Part::Item(of) if of == depth => Some(iter.clone()),
        Part::Turns(of) if of == depth => Some(Size::part(Part::Turns(depth - 1))),
        _ => None,
    })
}

/// What all turns have together.
fn in_all_turns(sum: &Sum, depth: usize, iter: &Size) -> Option<Size> {
    let mut all = Size::none();
    // Turns within turns are counted once, since steps are.
    let mut turns = sum.bytes;
    for (part, times) in &sum.parts {
        match part {
            Part::Item(of) if *of == depth => all = all.plus(&iter.times(*times)),
            Part::Turns(of) if *of == depth => turns = turns.saturating_add(*times),
            // The same again in each turn.
            _ => return None,
        }
    }
    if turns > 0 {
        all = all.plus(&Size::part(Part::Turns(depth - 1)).times(turns));
    }
    Some(all)
}
