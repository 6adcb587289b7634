//! Interleavings of our own pieces of concurrency, by loom. Owns what each of them promises; the pieces are the
//! product's files, included as they are.
//!
//! What those import is found here: this crate is `parking_lot`, whose locks are loom's, and stands in for the few types
//! of other crates that they carry and never look into.

#![allow(dead_code)]

extern crate self as bytes;
extern crate self as futures_util;
extern crate self as inflight_kserve;
extern crate self as parking_lot;
extern crate self as tokio;
extern crate self as tokio_stream;
extern crate self as tonic;

mod batch;
pub mod engine;
pub mod executor;
pub mod outbox;
mod respond;
mod stand_ins;
pub mod sync;
pub mod upstream;

pub use stand_ins::*;
pub use sync::{Condvar, Mutex, MutexGuard};

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Checks every interleaving of a model.
pub fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // Switches at moments that no thread waits at: a bound of 2 takes two seconds for all models, and 3 ten.
    builder.preemption_bound.get_or_insert(3);
    // A thousand refusals are many steps.
    builder.max_branches = 20_000;
    builder.check(model);
}

/// Polls until it is ready; waits to be woken in between. A wake that is lost is a deadlock, which loom reports.
pub fn wait<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    loom::future::block_on(std::future::poll_fn(move |context| poll(context)))
}

/// How often a task was woken.
#[derive(Debug, Default)]
pub struct Woken(AtomicUsize);

impl Woken {
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A waker that counts.
pub fn counting() -> (Arc<Woken>, Waker) {
    let woken = Arc::<Woken>::default();
    (Arc::clone(&woken), Waker::from(woken))
}
