//! What a run came to. Owns the figures; prints nothing.

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub input_tokens: u64,
    pub cached_tokens: u64,
    /// Seconds to the first token, ascending.
    pub first_token_s: Vec<f64>,
    /// Seconds that each worker computed.
    pub busy_s: Vec<f64>,
    pub end_s: f64,
}

impl Figures {
    /// The share of prompt tokens that were cached.
    pub fn hits(&self) -> f64 {
        self.cached_tokens as f64 / (self.input_tokens as f64).max(1.0)
    }

    pub fn mean_s(&self) -> f64 {
        self.first_token_s.iter().sum::<f64>() / (self.first_token_s.len() as f64).max(1.0)
    }

    /// The nearest-rank percentile of the first token, in seconds.
    pub fn percentile_s(&self, percent: f64) -> f64 {
        let rank = (percent / 100.0 * self.first_token_s.len() as f64).ceil() as usize;
        self.first_token_s
            .get(rank.max(1) - 1)
            .copied()
            .unwrap_or(0.0)
    }

    /// The workers' busy time: its standard deviation over its mean; 0 is even.
    pub fn unevenness(&self) -> f64 {
        let count = (self.busy_s.len() as f64).max(1.0);
        let mean = self.busy_s.iter().sum::<f64>() / count;
        let variance = self
            .busy_s
            .iter()
            .map(|one| (one - mean).powi(2))
            .sum::<f64>()
            / count;
        if mean > 0.0 {
            variance.sqrt() / mean
        } else {
            0.0
        }
    }
}
