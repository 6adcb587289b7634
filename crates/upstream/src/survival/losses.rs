//! The servers that a request has lost. Owns when these are enough: a request that itself ends servers must not reach
//! all of them.

use std::time::Duration;

use tokio::time::Instant;

use crate::process::Life;

/// How many servers in a row may be lost without new output. One that is known to have survived the loss does not count.
const FRUITLESS: usize = 3;
/// A server that ends is missed earlier: all its connections end at the same time.
const MISSED_WITHIN: Duration = Duration::from_millis(500);
/// How long after it failed its requests it may take until a server is known to have ended: a plain Triton is looked at
/// once a second. One that is still there then has failed them for another reason, and waiting does not help.
const ENDING: Duration = Duration::from_millis(1500);

/// See the module.
#[derive(Debug)]
pub(super) struct Losses {
    /// How many there may be.
    most: u32,
    count: u32,
    /// Since the last new output.
    fruitless: Vec<Loss>,
}

/// A server that was lost without new output.
#[derive(Clone, Debug)]
struct Loss {
    life: Life,
    at: Instant,
}

impl Loss {
    fn of(life: &Life) -> Self {
        let (life, at) = (life.clone(), Instant::now());
        Self { life, at }
    }

    /// Whether the request may have ended the server, for all that is known.
    fn may_have_ended_it(&self) -> bool {
        let stayed = self.life.is_connected() && self.at.elapsed() >= MISSED_WITHIN;
        !stayed && !self.life.went_on()
    }
}

impl Losses {
    /// None yet, and so many at `most`.
    pub(super) fn new(most: u32) -> Self {
        Self {
            most,
            count: 0,
            fruitless: Vec::new(),
        }
    }

    /// One more.
    pub(super) fn add(&mut self, lost: &Life) {
        self.count += 1;
        self.fruitless.push(Loss::of(lost));
    }

    /// So many servers have failed the request before its first output, of which nothing is known any longer. They do not
    /// count among those that it may lose later.
    pub(super) fn begin_after(&mut self, failed: usize) {
        self.fruitless = vec![Loss::of(&Life::default()); failed];
    }

    /// New output came.
    pub(super) fn bear_fruit(&mut self) {
        self.fruitless.clear();
    }

    /// Whether the request may not be sent to yet another server.
    pub(super) fn are_enough(&self) -> bool {
        let ended = self
            .fruitless
            .iter()
            .filter(|loss| loss.may_have_ended_it());
        self.count > self.most || ended.count() >= FRUITLESS
    }

    /// Whether the last one is so long ago that a server which ended would be known to have. An earlier loss does not
    /// count, though nothing new has come since.
    pub(super) fn are_long_ago(&self) -> bool {
        let last = self.fruitless.last();
        last.is_none_or(|loss| loss.at.elapsed() >= ENDING)
    }
}
