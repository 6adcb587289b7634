//! How many wrong keys a client address may send. Owns the counts; knows nothing of keys.
//!
//! Bounds the noise and the work that guessing costs. What keeps a key from being guessed is its length.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use inflight_clients::client::group;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Wrong keys at once: a client that is set up wrongly, with its retries.
const BURST: u32 = 20;
/// One more after each of these.
const EVERY: Duration = Duration::from_secs(1);
/// Addresses with wrong keys that are remembered.
const MAX_ADDRESSES: usize = 4096;

/// The wrong keys of each address, as the time at which all are forgotten.
#[derive(Debug, Default)]
pub(super) struct Throttle(Mutex<HashMap<IpAddr, Instant>>);

impl Throttle {
    /// Counts a wrong key of `peer`; false when there were too many.
    pub(super) fn allows(&self, peer: IpAddr) -> bool {
        self.allows_at(peer, Instant::now())
    }

    fn allows_at(&self, peer: IpAddr, now: Instant) -> bool {
        let mut addresses = self.0.lock();
        if addresses.len() >= MAX_ADDRESSES {
            addresses.retain(|_, forgotten| *forgotten > now);
            if addresses.len() >= MAX_ADDRESSES {
                addresses.clear();
            }
        }
        let forgotten = addresses.entry(group(peer)).or_insert(now);
        let next = (*forgotten).max(now) + EVERY;
        let is_allowed = next <= now + EVERY * BURST;
        if is_allowed {
            *forgotten = next;
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_keys_are_counted_by_address_and_forgotten() {
        let throttle = Throttle::default();
        let (one, other) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let now = Instant::now();
        for _ in 0..BURST {
            assert!(throttle.allows_at(one, now));
        }
        assert!(!throttle.allows_at(one, now));
        assert!(throttle.allows_at(other, now), "another address");
        let later = now + EVERY;
        assert!(throttle.allows_at(one, later) && !throttle.allows_at(one, later));
    }

    #[test]
    fn the_table_is_bounded() {
        let throttle = Throttle::default();
        let now = Instant::now();
        for number in 0..2 * MAX_ADDRESSES as u32 {
            throttle.allows_at(IpAddr::from(number.to_be_bytes()), now);
            assert!(throttle.0.lock().len() <= MAX_ADDRESSES);
        }
    }
}
