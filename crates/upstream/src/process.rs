//! Whether a server that was lost had ended. Owns how the same process is known when it comes back; knows nothing of
//! connections or requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A server's process, over all its connections.
#[derive(Debug, Default)]
pub struct Process {
    /// When it loaded its model, in seconds since the epoch. `None`: it does not say, and each connection may be to
    /// another one.
    created: Option<i64>,
    /// How often it was connected anew.
    returns: AtomicU32,
    is_connected: AtomicBool,
}

/// A process at the time of one connection.
#[derive(Clone, Debug, Default)]
pub struct Life {
    process: Arc<Process>,
    returns: u32,
}

impl Life {
    /// The server is connected anew, and loaded its model then.
    #[must_use]
    pub fn next(&self, created: i64) -> Self {
        if self.process.created != Some(created) {
            let process = Process {
                created: Some(created),
                is_connected: AtomicBool::new(true),
                ..Process::default()
            };
            return Self {
                process: Arc::new(process),
                returns: 0,
            };
        }
        let before = self.process.returns.fetch_add(1, Ordering::Relaxed);
        self.process.is_connected.store(true, Ordering::Relaxed);
        Self {
            process: Arc::clone(&self.process),
            returns: before + 1,
        }
    }

    /// The server is lost.
    pub fn part(&self) {
        self.process.is_connected.store(false, Ordering::Relaxed);
    }

    /// Whether the server is connected, at this time or again.
    pub fn is_connected(&self) -> bool {
        self.process.is_connected.load(Ordering::Relaxed)
    }

    /// Whether `other` is of another process.
    pub fn is_over(&self, other: &Self) -> bool {
        !Arc::ptr_eq(&self.process, &other.process)
    }

    /// Whether the process has been connected anew since, so that it survived the loss of this connection.
    pub fn went_on(&self) -> bool {
        self.process.returns.load(Ordering::Relaxed) > self.returns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_comes_back_went_on_and_another_one_did_not() {
        let unknown = Life::default();
        let first = unknown.next(7);
        assert!(!unknown.went_on() && !first.went_on());
        let again = first.next(7);
        assert!(first.went_on() && !again.went_on());
        let other = again.next(8);
        assert!(!again.went_on() && !other.went_on());
        assert!(!other.next(9).next(8).went_on() && !other.went_on());
        assert!(first.is_over(&other) && !first.is_over(&again));
    }

    #[test]
    fn it_is_connected_from_one_meeting_to_its_loss() {
        let life = Life::default();
        assert!(!life.is_connected());
        let first = life.next(7);
        assert!(first.is_connected() && !life.is_connected());
        first.part();
        assert!(!first.is_connected());
        assert!(first.next(7).is_connected() && first.is_connected());
    }
}
