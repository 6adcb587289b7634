//! The choice among servers by their load.

/// A server that may take a request.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<T> {
    pub server: T,
    /// Requests that it works on.
    pub load: usize,
    /// When it was last chosen, as a number that rises with each choice.
    pub last_turn: u64,
}

/// The least loaded server, and among equals the one whose last turn was the longest ago. Also returns the number of
/// that turn, for [`Turns::pick`](crate::Turns::pick).
pub fn least_loaded<T>(candidates: impl IntoIterator<Item = Candidate<T>>) -> Option<(T, u64)> {
    let candidates = candidates.into_iter();
    let least = candidates.min_by_key(|one| (one.load, one.last_turn));
    least.map(|one| (one.server, one.last_turn))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_counts_before_the_turn() {
        for (servers, expected) in [
            (&[][..], None),
            (&[(2, 1), (1, 9)][..], Some((1, 9))),
            (&[(1, 3), (1, 2), (1, 4)][..], Some((1, 2))),
            // One that was never picked is before all others.
            (&[(0, 1), (0, 0)][..], Some((1, 0))),
        ] {
            let candidates = servers.iter().enumerate();
            let candidates = candidates.map(|(server, (load, last_turn))| Candidate {
                server,
                load: *load,
                last_turn: *last_turn,
            });
            assert_eq!(least_loaded(candidates), expected, "{servers:?}");
        }
    }
}
