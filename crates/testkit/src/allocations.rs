//! A global allocator that counts what threads take: each thread for itself, and all that ask for it together. Knows
//! nothing of what they do. A test's crate declares it: `#[global_allocator] static ALLOCATOR: Counting = Counting;`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// What a thread took since [`restart`].
#[derive(Clone, Copy)]
pub struct Taken {
    /// How often memory was taken, or more of it.
    pub allocations: u64,
    /// Bytes that were not given back.
    pub bytes: i64,
    /// The most that `bytes` was.
    pub most_bytes: i64,
}

const NOTHING: Taken = Taken {
    allocations: 0,
    bytes: 0,
    most_bytes: 0,
};

thread_local! {
    static TAKEN: Cell<Taken> = const { Cell::new(NOTHING) };
    static IS_SHARED: Cell<bool> = const { Cell::new(false) };
}

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicI64 = AtomicI64::new(0);

/// Begins this thread's count again.
pub fn restart() {
    TAKEN.set(NOTHING);
}

/// What this thread took since [`restart`], so that the test harness's own does not count.
pub fn taken() -> Taken {
    TAKEN.get()
}

/// Adds what this thread takes from now on to [`shared_allocations`] and [`shared_bytes`].
pub fn share() {
    IS_SHARED.set(true);
}

/// How often threads that [`share`] took memory, or more of it.
pub fn shared_allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// What threads that [`share`] took and have not given back.
pub fn shared_bytes() -> i64 {
    BYTES.load(Ordering::Relaxed)
}

fn count(allocations: u64, bytes: i64) {
    let mut taken = TAKEN.get();
    taken.allocations += allocations;
    taken.bytes += bytes;
    taken.most_bytes = taken.most_bytes.max(taken.bytes);
    TAKEN.set(taken);
    if IS_SHARED.get() {
        ALLOCATIONS.fetch_add(allocations, Ordering::Relaxed);
        BYTES.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The system's allocator, counted.
pub struct Counting;

// SAFETY: forwards to the system allocator; the counts are atomics, and plain thread-locals without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -(layout.size() as i64));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(1, size as i64 - layout.size() as i64);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
