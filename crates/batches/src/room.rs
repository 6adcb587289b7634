//! How many lines of batches may run: what online requests leave. A pure choice.

/// What the servers have to do, as it is now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Servers that take requests.
    pub servers: usize,
    /// Requests of clients that wait for their answers.
    pub online: usize,
    /// Whether there was one lately: the next one will come soon.
    pub is_visited: bool,
}

/// How much of a server batches may have.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Lines of one server at once, while it has nothing else to do.
    pub lines: usize,
}

/// While clients wait, batches have this part of their lines: each takes time from the client's answer, and with
/// none, one steady client would stop all batches.
const BUSY_PART: usize = 8;

/// The lines that may be open at all servers together.
pub fn room(load: Load, share: Share) -> usize {
    let all = load.servers.saturating_mul(share.lines);
    if all == 0 || (load.online == 0 && !load.is_visited) {
        return all;
    }
    // Places that clients' requests have are no longer free.
    let free = all.saturating_sub(load.online);
    free.min(all / BUSY_PART).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_what_clients_leave() {
        for (servers, online, lines, expected) in [
            (0, 0, 16, 0),
            (1, 0, 16, 16),
            (2, 0, 16, 32),
            (1, 0, 0, 0),
            // Clients wait: a low share, but never nothing.
            (1, 1, 16, 2),
            (1, 15, 16, 1),
            (1, 400, 16, 1),
            (4, 1, 16, 8),
            (4, 62, 16, 2),
            (1, 1, 4, 1),
            (0, 1, 16, 0),
        ] {
            let load = Load {
                servers,
                online,
                is_visited: false,
            };
            assert_eq!(room(load, Share { lines }), expected, "{load:?} {lines}");
        }
        let load = Load {
            servers: 2,
            online: 0,
            is_visited: true,
        };
        let share = Share { lines: 16 };
        assert_eq!(room(load, share), 4, "a client has just been here");
    }
}
