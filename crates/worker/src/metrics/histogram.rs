//! A histogram that is cumulative only when shown.

/// Observations by the bound that they are not above.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    pub(super) count: u64,
    pub(super) sum: f64,
}

impl Histogram {
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len()],
            count: 0,
            sum: 0.0,
        }
    }

    pub(super) fn observe(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        let bucket = self
            .bounds
            .iter()
            .zip(&mut self.counts)
            .find(|(bound, _)| value <= **bound);
        if let Some((_, count)) = bucket {
            *count += 1;
        }
    }

    /// Each bound, and how many observations are not above it.
    pub(super) fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let mut below = 0;
        self.bounds
            .iter()
            .zip(&self.counts)
            .map(move |(bound, count)| {
                below += count;
                (*bound, below)
            })
    }
}
