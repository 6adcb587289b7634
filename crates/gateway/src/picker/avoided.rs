//! Workers that did not take a request which a proxy sent there: it says that another one has answered. Owns for how long
//! others go before them; knows nothing of why, since proxies do not say.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How long the others go before it. Then one request finds out, and costs its client no more than a retry.
const FOR: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Avoided {
    /// Until when. As many as there are workers.
    until: Mutex<HashMap<Arc<str>, Instant>>,
}

impl Avoided {
    /// This worker did not take a request.
    pub(super) fn add(&self, worker: &Arc<str>) {
        let now = Instant::now();
        let mut until = self.until.lock();
        until.retain(|_, until| *until > now);
        until.insert(Arc::clone(worker), now + FOR);
    }

    /// Those that the others go before now.
    pub(super) fn now(&self) -> Vec<Arc<str>> {
        let mut until = self.until.lock();
        if until.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        until.retain(|_, until| *until > now);
        until.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_worker_is_avoided_for_a_while() {
        let avoided = Avoided::default();
        let (a, b): (Arc<str>, Arc<str>) = ("a:1".into(), "b:1".into());
        assert!(avoided.now().is_empty());
        avoided.add(&a);
        tokio::time::advance(FOR / 2).await;
        avoided.add(&b);
        assert_eq!(avoided.now().len(), 2);
        tokio::time::advance(FOR / 2).await;
        assert_eq!(avoided.now(), [Arc::clone(&b)]);
        // Once more counts from then on.
        avoided.add(&b);
        tokio::time::advance(FOR / 2).await;
        assert_eq!(avoided.now(), [b]);
        tokio::time::advance(FOR / 2).await;
        assert!(avoided.now().is_empty());
    }
}
