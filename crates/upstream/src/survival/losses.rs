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

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    fn lost(most: u32, lives: &[&Life]) -> Losses {
        let mut losses = Losses::new(most);
        for life in lives {
            losses.add(life);
        }
        losses
    }

    #[tokio::test(start_paused = true)]
    async fn three_in_a_row_without_output_are_enough() {
        let gone = Life::default();
        assert!(!lost(16, &[&gone; 2]).are_enough());
        assert!(lost(16, &[&gone; 3]).are_enough());
        let mut losses = lost(16, &[&gone; 2]);
        losses.bear_fruit();
        losses.add(&gone);
        assert!(!losses.are_enough());
        // Those before the first output count as well.
        let mut losses = Losses::new(16);
        losses.begin_after(2);
        assert!(!losses.are_enough());
        losses.add(&gone);
        assert!(losses.are_enough());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_moves_so_often_and_no_more() {
        let gone = Life::default();
        let mut losses = Losses::new(4);
        for _ in 0..4 {
            losses.add(&gone);
            losses.bear_fruit();
            assert!(!losses.are_enough());
        }
        losses.add(&gone);
        assert!(losses.are_enough());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_survives_the_loss_does_not_count() {
        let alive = Life::default().next(7);
        let losses = lost(16, &[&alive; 3]);
        assert!(losses.are_enough(), "it may be ending");
        sleep(MISSED_WITHIN).await;
        assert!(!losses.are_enough(), "it is still connected");
        alive.part();
        assert!(losses.are_enough(), "it was missed later");
        // It is back, the same process as before.
        let again = alive.next(7);
        assert!(!losses.are_enough());
        again.part();
        assert!(!losses.are_enough());
    }

    #[tokio::test(start_paused = true)]
    async fn a_loss_is_long_ago_once_a_server_would_be_missed() {
        let mut losses = Losses::new(16);
        assert!(losses.are_long_ago());
        losses.add(&Life::default());
        sleep(ENDING / 2).await;
        assert!(!losses.are_long_ago());
        sleep(ENDING / 2).await;
        assert!(losses.are_long_ago());
    }
}
