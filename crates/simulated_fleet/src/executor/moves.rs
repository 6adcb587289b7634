//! The way of one request over the fleet: which worker gets it first, and which one gets it then. Owns which request that
//! is; what happens to these workers is the plan's.

use std::time::Duration;

use inflight_worker::executor::Request;

use super::apart::{is_for_context, prompt_of};
use crate::determinism::elapsed;
use crate::plan::{Ambush, Event};

/// Tokens of the shortest prompt of a client: what workers ask themselves is shorter.
const SHORTEST: usize = 12;

/// See the module.
#[derive(Debug)]
pub(crate) struct Moves {
    /// The request is the first one from then on that asks for so many tokens.
    from: Duration,
    tokens: u32,
    /// Whether it is one that is split.
    is_split: bool,
    prompt: Option<Vec<u8>>,
    /// When it came to which worker; the second is another one.
    workers: Vec<(Duration, String)>,
    /// When its first worker left the context to another one.
    left: Option<Duration>,
}

impl Moves {
    /// Of the request that an ambush is about.
    pub(crate) fn new(ambush: &Ambush) -> Self {
        Self {
            from: ambush.from,
            tokens: ambush.tokens,
            is_split: ambush.step.is_some(),
            prompt: None,
            workers: Vec::new(),
            left: None,
        }
    }

    /// When that was.
    pub(crate) fn when(&self, event: Event) -> Option<Duration> {
        match event {
            Event::Came(place) => self.workers.get(place).map(|(at, _)| *at),
            Event::Left => self.left,
        }
    }

    /// The first worker that got it, or the one after that.
    pub(crate) fn worker(&self, place: usize) -> Option<&str> {
        self.workers.get(place).map(|(_, host)| host.as_str())
    }

    /// Notes that a worker got a request.
    pub(super) fn note(&mut self, host: &str, request: &Request) {
        let now = elapsed();
        let prompt = prompt_of(request);
        match &self.prompt {
            None => {
                let fits = now >= self.from
                    && request.streaming
                    && request.max_tokens >= self.tokens
                    && prompt.len() >= SHORTEST
                    && (!self.is_split || is_for_context(request));
                if fits {
                    self.prompt = Some(prompt);
                    self.workers.push((now, host.to_owned()));
                }
            }
            Some(own) => {
                let is_other = self.workers.last().is_some_and(|(_, last)| last != host);
                if is_other && *own == prompt {
                    self.workers.push((now, host.to_owned()));
                }
            }
        }
    }

    /// Notes that a worker has left the context of a prompt to another one.
    pub(super) fn note_left(&mut self, host: &str, prompt: &[u8]) {
        if self.worker(0) == Some(host) && self.prompt.as_deref() == Some(prompt) {
            self.left.get_or_insert(elapsed());
        }
    }
}
