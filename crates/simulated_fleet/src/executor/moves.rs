//! The way of one request over the fleet: which worker gets it first, and which one gets it then. Owns which request that
//! is; what happens to these workers is the plan's.

use std::time::Duration;

use inflight_worker::executor::Request;

use crate::determinism::elapsed;

/// Tokens of the shortest prompt of a client: what workers ask themselves is shorter.
const SHORTEST: usize = 12;

/// See the module.
#[derive(Debug)]
pub(crate) struct Moves {
    /// The request is the first one from then on that asks for so many tokens.
    from: Duration,
    tokens: u32,
    prompt: Option<Vec<i32>>,
    /// When it came to which worker; the second is another one.
    workers: Vec<(Duration, String)>,
}

impl Moves {
    /// Of the first request from then on that asks for so many tokens.
    pub(crate) fn new(from: Duration, tokens: u32) -> Self {
        Self {
            from,
            tokens,
            prompt: None,
            workers: Vec::new(),
        }
    }

    /// When it came to which worker: the first, or the one after that.
    pub(crate) fn at(&self, place: usize) -> Option<(Duration, &str)> {
        let (at, host) = self.workers.get(place)?;
        Some((*at, host))
    }

    /// Notes that a worker got a request.
    pub(super) fn note(&mut self, host: &str, request: &Request) {
        let now = elapsed();
        let prompt = &request.input_token_ids;
        match &self.prompt {
            None => {
                let fits = now >= self.from
                    && request.streaming
                    && request.max_tokens >= self.tokens
                    && prompt.len() >= SHORTEST;
                if fits {
                    self.prompt = Some(prompt.clone());
                    self.workers.push((now, host.to_owned()));
                }
            }
            Some(own) => {
                let is_other = self.workers.last().is_some_and(|(_, last)| last != host);
                if is_other && own == prompt {
                    self.workers.push((now, host.to_owned()));
                }
            }
        }
    }
}
