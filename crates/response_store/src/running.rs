//! Responses in the background, while they run. Owns their state, their events, which clients may read again from any
//! place, and that a client can stop one. What is generated is the handlers'; the end is kept by the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use inflight_clients::client::Owner;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Keeper;

/// A response in the background.
#[derive(Debug)]
pub struct Running {
    pub(super) owner: Owner,
    /// Its object as it is now, in JSON.
    object: ArcSwap<Bytes>,
    /// `None`: it has no stream.
    pub events: Option<Arc<Events>>,
    pub keeper: Keeper,
    stop: CancellationToken,
    pub(super) ended: CancellationToken,
}

impl Running {
    pub(super) fn new(
        owner: Owner,
        object: Bytes,
        events: Option<Arc<Events>>,
        keeper: Keeper,
    ) -> Self {
        Self {
            owner,
            object: ArcSwap::from_pointee(object),
            events,
            keeper,
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
        }
    }

    /// Its object as it is now, in JSON.
    pub fn object(&self) -> Bytes {
        Bytes::clone(&self.object.load())
    }

    pub fn set_object(&self, object: Bytes) {
        self.object.store(Arc::new(object));
    }

    /// Stops it, and waits until its end is kept.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.ended.cancelled().await;
    }

    /// Resolves once it is to stop.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }
}

/// The events of a response, in the order of their numbers.
#[derive(Debug)]
pub struct Events {
    log: Mutex<Log>,
    changed: Notify,
    /// Bytes that it may have.
    most: usize,
    /// Bytes that all may have together, twice.
    most_of_all: usize,
    total: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Log {
    bytes: Vec<u8>,
    /// Where each event ends.
    ends: Vec<usize>,
    is_over: bool,
    /// Whether there were more than are kept.
    is_cut: bool,
}

/// What comes next of the events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Some of them, and the number of the first one after those.
    Events(Bytes, usize),
    /// There were more than are kept.
    Cut,
    End,
}

impl Events {
    pub(super) fn new(most: usize, most_of_all: usize, total: &Arc<AtomicUsize>) -> Arc<Self> {
        Arc::new(Self {
            log: Mutex::default(),
            changed: Notify::new(),
            most,
            most_of_all,
            total: Arc::clone(total),
        })
    }

    /// How many there are: the number of the next one.
    pub fn count(&self) -> usize {
        self.log.lock().ends.len()
    }

    /// Adds whole events as they are sent.
    pub fn append(&self, events: &[u8]) {
        let mut log = self.log.lock();
        let length = log.bytes.len() + events.len();
        let all = self.total.load(Ordering::Relaxed) + events.len();
        log.is_cut |= length > self.most || all / 2 > self.most_of_all;
        if !log.is_cut {
            let start = log.bytes.len();
            log.bytes.extend_from_slice(events);
            // JSON has no line breaks.
            let breaks = events.windows(2).enumerate();
            let breaks = breaks.filter(|(_, pair)| pair == b"\n\n");
            log.ends.extend(breaks.map(|(place, _)| start + place + 2));
            self.total.fetch_add(events.len(), Ordering::Relaxed);
        }
        drop(log);
        self.changed.notify_waiters();
    }

    /// Nothing more comes.
    pub fn end(&self) {
        self.log.lock().is_over = true;
        self.changed.notify_waiters();
    }

    /// The events from number `from` on, once there are any.
    pub async fn next(&self, from: usize) -> Next {
        loop {
            let changed = self.changed.notified();
            {
                let log = self.log.lock();
                let count = log.ends.len();
                if from < count {
                    let start = from.checked_sub(1).map_or(0, |before| log.ends[before]);
                    return Next::Events(Bytes::copy_from_slice(&log.bytes[start..]), count);
                }
                if log.is_cut {
                    return Next::Cut;
                }
                if log.is_over {
                    return Next::End;
                }
            }
            changed.await;
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let bytes = self.log.get_mut().bytes.len();
        self.total.fetch_sub(bytes, Ordering::Relaxed);
    }
}
