//! What [`Handles`] promises.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use loom::thread;

use super::handles::{Handles, Waiting};
use crate::{Mutex, Status, Woken};

/// Where a request's output waits: how often it was failed, and its client, who waits.
struct Client {
    failed: Arc<Mutex<u32>>,
    waker: Waker,
    unread_since: Option<Instant>,
}

impl Waiting for Client {
    fn unread_since(&self) -> Option<Instant> {
        self.unread_since
    }

    fn fail(&self, _: &Status, _: Instant) -> Option<Waker> {
        *self.failed.lock() += 1;
        Some(self.waker.clone())
    }
}

fn client() -> (Client, Arc<Mutex<u32>>, Arc<Woken>) {
    let (woken, waker) = crate::counting();
    let failed = Arc::new(Mutex::new(0));
    let client = Client {
        failed: Arc::clone(&failed),
        waker,
        unread_since: None,
    };
    (client, failed, woken)
}

fn gone() -> Status {
    Status::unavailable("gone")
}

/// A request that comes while its connection ends is refused or failed: it never waits for what cannot come.
pub fn nobody_waits_at_an_ended_connection() {
    let handles = Arc::new(Handles::default());
    let other = Arc::clone(&handles);
    let ends = thread::spawn(move || other.end(&gone(), Instant::now()));
    let (client, failed, woken) = client();
    let opened = handles.open(|_| client);
    ends.join().unwrap();
    let expected = u32::from(opened.is_ok());
    assert_eq!((*failed.lock(), woken.count() as u32), (expected, expected));
    assert!(handles.has_ended());
    assert_eq!(handles.active(), 0);
}

/// A request that ends while it is failed ends once: either its end is seen or its failure.
pub fn a_request_ends_once() {
    let handles = Arc::new(Handles::default());
    let (client, failed, woken) = client();
    let handle = handles.open(|_| client).unwrap();
    let other = Arc::clone(&handles);
    let fails = thread::spawn(move || other.fail(handle, &gone(), Instant::now()).is_some());
    let other = Arc::clone(&handles);
    let ends = thread::spawn(move || other.end(&gone(), Instant::now()));
    let was_removed = handles.remove(handle).is_some();
    let has_failed = fails.join().unwrap();
    ends.join().unwrap();
    assert!(!(was_removed && has_failed));
    assert_eq!(*failed.lock(), u32::from(!was_removed));
    assert_eq!(woken.count(), usize::from(!was_removed));
}

/// A client that is woken finds the lock free: it closes its handle at once, on the same thread.
pub fn who_is_woken_finds_the_lock_free() {
    struct Closes(Arc<Handles<Client>>);
    impl std::task::Wake for Closes {
        fn wake(self: Arc<Self>) {
            let _ = self.0.has_ended();
        }
    }
    let handles = Arc::new(Handles::default());
    let (mut client, failed, _) = client();
    client.waker = Waker::from(Arc::new(Closes(Arc::clone(&handles))));
    handles.open(|_| client).unwrap();
    let other = Arc::clone(&handles);
    let ends = thread::spawn(move || other.end(&gone(), Instant::now()));
    ends.join().unwrap();
    assert_eq!(*failed.lock(), 1);
}

/// How many are open is what is left, after any order of opening, closing and sweeping.
pub fn the_count_is_of_what_is_open() {
    let handles = Arc::new(Handles::default());
    let (mut stalled, failed, _) = client();
    let now = Instant::now();
    stalled.unread_since = Some(now);
    let first = handles.open(|_| stalled).unwrap();
    let other = Arc::clone(&handles);
    let later = now + Duration::from_secs(60);
    let sweeps = thread::spawn(move || other.sweep_stalled(later, Duration::from_secs(1)).len());
    let other = Arc::clone(&handles);
    let opens = thread::spawn(move || other.open(|_| client().0).unwrap());
    let was_removed = handles.remove(first).is_some();
    let swept = sweeps.join().unwrap();
    assert_eq!(usize::from(was_removed) + swept, 1);
    assert_eq!(*failed.lock() as usize, swept);
    let second = opens.join().unwrap();
    assert_eq!(handles.active(), 1);
    handles.remove(second);
    assert_eq!(handles.active(), 0);
}
