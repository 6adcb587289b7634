//! The sequence numbers of batches: which are taken, and where some are missing. Pure.

/// What to do with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Take,
    /// It was taken before.
    Skip,
    /// Those from here to this one are missing.
    Gap(u64),
    /// The server counts anew: it has started again.
    Restart,
}

/// What was taken so far, over all connections.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// The next number; `None`: any.
    next: Option<u64>,
    /// The last one that was published on this connection.
    live: Option<u64>,
    /// Whether this connection's past was asked for and had something new.
    caught_up: bool,
}

impl Order {
    /// A connection begins.
    pub(crate) fn connected(&mut self) {
        self.live = None;
        self.caught_up = false;
    }

    /// Where to ask for the past from.
    pub(crate) fn start(&self) -> u64 {
        self.next.unwrap_or(0)
    }

    /// A batch of the past, which is taken unless it was before: those that are missing are gone.
    pub(crate) fn replayed(&mut self, number: u64) -> Turn {
        let turn = match self.next {
            Some(next) if number < next => return Turn::Skip,
            Some(next) if number > next => Turn::Gap(next),
            _ => Turn::Take,
        };
        self.take(number);
        self.caught_up = true;
        turn
    }

    /// A batch was published. Only with [`Turn::Take`] does it count as taken.
    pub(crate) fn published(&mut self, number: u64) -> Turn {
        let before = self.live.replace(number);
        let Some(next) = self.next else {
            self.take(number);
            return Turn::Take;
        };
        // On one connection numbers only rise; on a new one, what was asked for may come again.
        let is_over = match before {
            Some(before) => number <= before,
            None => number < next && !self.caught_up,
        };
        if is_over {
            self.next = None;
            return Turn::Restart;
        }
        match number {
            number if number < next => Turn::Skip,
            number if number > next => Turn::Gap(next),
            number => {
                self.take(number);
                Turn::Take
            }
        }
    }

    /// A batch is taken, whatever is missing before it.
    pub(crate) fn take(&mut self, number: u64) {
        self.next = number.checked_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_its_turn() {
        let mut order = Order::default();
        order.connected();
        // It begins wherever the server is.
        for (number, turn) in [(7, Turn::Take), (8, Turn::Take), (11, Turn::Gap(9))] {
            assert_eq!(order.published(number), turn, "{number}");
        }
        // The past has all but the first of them.
        assert_eq!(order.start(), 9);
        for (number, turn) in [
            (8, Turn::Skip),
            (10, Turn::Gap(9)),
            (11, Turn::Take),
            (12, Turn::Take),
        ] {
            assert_eq!(order.replayed(number), turn, "{number}");
        }
        for (number, turn) in [
            (12, Turn::Skip),
            (13, Turn::Take),
            (13, Turn::Restart),
            (0, Turn::Take),
        ] {
            assert_eq!(order.published(number), turn, "{number}");
        }
    }

    #[test]
    fn on_a_new_connection_a_lower_number_is_a_new_server_unless_the_past_was_told() {
        for (is_told, turn) in [(false, Turn::Restart), (true, Turn::Skip)] {
            let mut order = Order::default();
            order.connected();
            assert_eq!(order.published(5), Turn::Take);
            order.connected();
            if is_told {
                assert_eq!([6, 7].map(|number| order.replayed(number)), [Turn::Take; 2]);
            }
            assert_eq!(order.published(if is_told { 7 } else { 3 }), turn);
        }
    }

    #[test]
    fn the_last_number_there_is_ends_nothing() {
        let mut order = Order::default();
        assert_eq!(order.published(u64::MAX), Turn::Take);
        assert_eq!(order.published(0), Turn::Take);
    }
}
