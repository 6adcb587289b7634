//! What a run came to. Owns the figures; prints nothing.

use crate::streams::Gaps;

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    pub first_token_s: f64,
    /// Until the last one.
    pub answered_s: f64,
    pub tokens: u32,
}

impl Answered {
    /// The mean time between its tokens; 0: it had one.
    pub fn between_s(&self) -> f64 {
        (self.answered_s - self.first_token_s) / f64::from(self.tokens.saturating_sub(1)).max(1.0)
    }
}

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
    /// Times between tokens, where they are modeled.
    pub gaps: Gaps,
    /// Each request, where its tokens are modeled.
    pub answered: Vec<Answered>,
    /// Requests of which one worker computed the prompt, and another one what followed.
    pub split: u64,
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

    /// The share of the requests whose first token, and whose tokens on average, came in these seconds.
    pub fn good_share(&self, first_token_s: f64, between_s: f64) -> f64 {
        let meets =
            |one: &&Answered| one.first_token_s <= first_token_s && one.between_s() <= between_s;
        self.answered.iter().filter(meets).count() as f64 / (self.answered.len() as f64).max(1.0)
    }

    /// The share of requests of which two workers did a part.
    pub fn split_share(&self) -> f64 {
        self.split as f64 / (self.answered.len() as f64).max(1.0)
    }

    /// The mean time until a request was answered, in seconds: each wait counts, for a first token and for a later one.
    pub fn whole_s(&self) -> f64 {
        let sum: f64 = self.answered.iter().map(|one| one.answered_s).sum();
        sum / (self.answered.len() as f64).max(1.0)
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
