//! What happens next in virtual time: a queue by time, and draws. Owns the order; the same input gives the same output.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Microseconds, so that times have one order.
type Time = u64;

/// Events by time; those of one moment in the order in which they were added.
#[derive(Debug)]
pub(crate) struct Events<E> {
    queue: BinaryHeap<Reverse<(Time, u64, E)>>,
    count: u64,
}

impl<E: Ord> Events<E> {
    pub(crate) fn new() -> Self {
        Self {
            queue: BinaryHeap::new(),
            count: 0,
        }
    }

    pub(crate) fn at(&mut self, seconds: f64, event: E) {
        self.count += 1;
        let time = (seconds * 1e6).ceil() as Time;
        self.queue.push(Reverse((time, self.count, event)));
    }

    /// The next one, and its time in seconds.
    pub(crate) fn next(&mut self) -> Option<(f64, E)> {
        let Reverse((time, _, event)) = self.queue.pop()?;
        Some((time as f64 / 1e6, event))
    }
}

/// SplitMix64: small, and the same everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// From 0 to below 1.
    pub(crate) fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}
