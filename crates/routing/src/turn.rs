//! Whose turn it is among servers with the same load. Owns that picks at one moment are spread as if they came one
//! after another; knows nothing of servers.

use std::sync::atomic::{AtomicU64, Ordering};

/// When a server was last picked, as the number of the pick; 0: never.
#[derive(Debug, Default)]
pub struct LastTurn(AtomicU64);

impl LastTurn {
    /// The number of the last pick.
    pub fn number(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Numbers the picks.
#[derive(Debug, Default)]
pub struct Turns(AtomicU64);

impl Turns {
    /// What `choose` returns, with its turn taken. `choose` also returns the number of the turn that it saw. If
    /// another pick took that server meanwhile, it chooses again: a load counts only once the request is sent, so
    /// picks at one moment see the same loads, and would all go to the same server.
    pub fn pick<T>(
        &self,
        choose: impl Fn() -> Option<(T, u64)>,
        last_turn: impl Fn(&T) -> &LastTurn,
    ) -> Option<T> {
        loop {
            let (chosen, seen) = choose()?;
            // The first number is 1: one that never had a turn is before all others.
            let turn = self.0.fetch_add(1, Ordering::Relaxed) + 1;
            let last = &last_turn(&chosen).0;
            if last
                .compare_exchange(seen, turn, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                return Some(chosen);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn picks_at_one_moment_are_spread() {
        const ROUNDS: usize = 20_000;
        let turns = Turns::default();
        let servers = [LastTurn::default(), LastTurn::default()];
        let start = Barrier::new(servers.len());
        let choose = || {
            let seen = servers.iter().enumerate();
            let seen = seen.map(|server| (server, server.1.number()));
            seen.min_by_key(|(_, number)| *number)
        };
        let picks = || -> Vec<usize> {
            let pick = |_| {
                start.wait();
                turns.pick(choose, |(_, server)| server).unwrap().0
            };
            (0..ROUNDS).map(pick).collect()
        };
        let (one, other) = std::thread::scope(|scope| {
            let one = scope.spawn(picks);
            (picks(), one.join().unwrap())
        });
        let together = one.iter().zip(&other).filter(|(one, other)| one == other);
        assert_eq!(together.count(), 0);
    }
}
