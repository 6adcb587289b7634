//! How large a value may become, as a sum of things whose sizes are known or not known yet. Owns the arithmetic of
//! such sums; knows nothing of templates.
//!
//! What grows in a loop cannot be bounded turn by turn: it depends on itself. A size therefore keeps what it depends
//! on. `x + item` says that each turn adds one item, and all items together are what the loop runs over.

use std::collections::BTreeMap;

/// Bytes of an input: of what a client may send to a template that is rendered here.
pub(super) const INPUT: u64 = super::super::INLINE_BYTES as u64;
/// Turns of all loops of one rendering together: what its steps are enough for, since a turn that does anything
/// takes four at least.
pub(super) const TURNS: u64 = super::super::inline::FUEL / 4;
/// How much longer the text of a list is than what is in it: escapes of characters that nobody can see.
pub(super) const PRINTED: u64 = 6;
/// Sums that a size is the largest of; more are joined to one that is at least as large.
const MAX_SUMS: usize = 6;

/// Something that a size depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// An input, or anything within one.
    Input,
    /// An item of the loop at this depth; those of all turns together are what the loop runs over.
    Item(usize),
    /// The number of turns that loops took within one turn of the loop at this depth.
    Turns(usize),
    /// What a variable was when the turn began, by its number.
    Before(usize),
}

/// A sum: so many bytes, and each part so many times.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sum {
    pub(super) bytes: u64,
    pub(super) parts: BTreeMap<Part, u64>,
}

impl Sum {
    fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        sum.bytes = sum.bytes.saturating_add(other.bytes);
        for (part, times) in &other.parts {
            let all = sum.parts.entry(*part).or_default();
            *all = all.saturating_add(*times);
        }
        sum
    }

    fn times(&self, factor: u64) -> Self {
        let mut sum = self.clone();
        sum.bytes = sum.bytes.saturating_mul(factor);
        for times in sum.parts.values_mut() {
            *times = times.saturating_mul(factor);
        }
        sum
    }

    /// At least as large as both.
    pub(super) fn over(mut self, other: Self) -> Self {
        self.bytes = self.bytes.max(other.bytes);
        for (part, times) in other.parts {
            let most = self.parts.entry(part).or_default();
            *most = times.max(*most);
        }
        self
    }

    fn is_within(&self, other: &Self) -> bool {
        let has = |(part, times): (&Part, &u64)| other.parts.get(part).is_some_and(|o| o >= times);
        self.bytes <= other.bytes && self.parts.iter().all(has)
    }
}

/// What is known of a value but its size; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Number,
    Text,
    /// An input, or something within one.
    Given,
    /// Perhaps a list that the template made.
    Any,
}

/// The largest of some sums, and what kind of value it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Size {
    sums: Vec<Sum>,
    /// Lists within lists that the template made.
    pub(super) depth: usize,
    pub(super) kind: Kind,
}

impl Size {
    pub(super) fn none() -> Self {
        Self::text(0)
    }

    /// A number that the engine made, or a truth.
    pub(super) fn number() -> Self {
        let mut size = Self::text(24);
        size.kind = Kind::Number;
        size
    }

    pub(super) fn text(bytes: u64) -> Self {
        let parts = BTreeMap::new();
        let mut size = Self::from(Sum { bytes, parts });
        size.kind = Kind::Text;
        size
    }

    pub(super) fn part(part: Part) -> Self {
        let parts = BTreeMap::from([(part, 1)]);
        let mut size = Self::from(Sum { bytes: 0, parts });
        size.kind = Kind::Given;
        size
    }

    pub(super) fn sums(&self) -> &[Sum] {
        &self.sums
    }

    /// The larger of two.
    pub(super) fn or(&self, other: &Self) -> Self {
        let mut sums = self.sums.clone();
        for sum in &other.sums {
            if !sums.iter().any(|known| sum.is_within(known)) {
                sums.retain(|known| !known.is_within(sum));
                sums.push(sum.clone());
            }
        }
        if sums.len() > MAX_SUMS {
            sums = sums.into_iter().reduce(Sum::over).into_iter().collect();
        }
        Self {
            sums,
            depth: self.depth.max(other.depth),
            kind: self.kind.max(other.kind),
        }
    }

    /// Both together.
    pub(super) fn plus(&self, other: &Self) -> Self {
        if (self.kind, other.kind) == (Kind::Number, Kind::Number) {
            return Self::number();
        }
        let mut all = Self {
            sums: Vec::new(),
            depth: self.depth.max(other.depth),
            kind: Kind::Number,
        };
        for one in &self.sums {
            for two in &other.sums {
                all = all.or(&Self::from(one.plus(two)));
            }
        }
        // What is added to a text is one, and what is added to a list is another list.
        all.kind = match self.kind.min(other.kind) {
            Kind::Number | Kind::Text => Kind::Text,
            Kind::Given | Kind::Any => Kind::Any,
        };
        all
    }

    /// The text that a value is written as.
    pub(super) fn printed(&self) -> Self {
        let mut text = match self.kind {
            Kind::Any | Kind::Given => self.times(PRINTED),
            Kind::Text | Kind::Number => self.clone(),
        };
        text.depth = 0;
        text.kind = Kind::Text;
        text
    }

    pub(super) fn times(&self, factor: u64) -> Self {
        Self {
            sums: self.sums.iter().map(|sum| sum.times(factor)).collect(),
            depth: self.depth,
            kind: self.kind,
        }
    }

    /// Every part replaced by what `size` says of it; parts of which it says nothing stay.
    pub(super) fn replaced(&self, size: &dyn Fn(Part) -> Option<Self>) -> Self {
        let sums = self.sums.iter().map(|sum| {
            let mut all = Self::text(sum.bytes);
            for (part, times) in &sum.parts {
                let part = size(*part).unwrap_or_else(|| Self::part(*part));
                all = all.plus(&part.times(*times));
            }
            all
        });
        let mut all = sums
            .reduce(|one, other| one.or(&other))
            .unwrap_or_else(Self::none);
        all.depth = self.depth;
        all.kind = self.kind;
        all
    }

    /// Whether it is as large whatever comes in.
    pub(super) fn is_known(&self) -> bool {
        self.sums.iter().all(|sum| sum.parts.is_empty())
    }

    /// Whether it depends on what some variable was when a turn began.
    pub(super) fn is_carried(&self) -> bool {
        let mut parts = self.sums.iter().flat_map(|sum| sum.parts.keys());
        parts.any(|part| matches!(part, Part::Before(_)))
    }

    /// At most so many bytes, where `most` bounds a part.
    pub(super) fn most(&self, most: &dyn Fn(Part) -> u64) -> u64 {
        let bytes = |sum: &Sum| {
            let parts = sum.parts.iter();
            let parts = parts.map(|(part, times)| most(*part).saturating_mul(*times));
            parts.fold(sum.bytes, u64::saturating_add)
        };
        self.sums.iter().map(bytes).max().unwrap_or(0)
    }
}

impl From<Sum> for Size {
    fn from(sum: Sum) -> Self {
        Self {
            sums: vec![sum],
            depth: 0,
            kind: Kind::Any,
        }
    }
}
