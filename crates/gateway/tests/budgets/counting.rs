//! An allocator that counts what some threads take. Knows nothing of what they do.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

thread_local! {
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicI64 = AtomicI64::new(0);

/// Counts what this thread takes from now on.
pub(crate) fn count_this_thread() {
    IS_COUNTED.with(|is_counted| is_counted.set(true));
}

/// How often memory was taken, or more of it.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// What counted threads took and have not given back.
pub(crate) fn bytes() -> i64 {
    BYTES.load(Ordering::Relaxed)
}

fn count(taken: bool, bytes: i64) {
    if IS_COUNTED.with(Cell::get) {
        ALLOCATIONS.fetch_add(u64::from(taken), Ordering::Relaxed);
        BYTES.fetch_add(bytes, Ordering::Relaxed);
    }
}

struct Counting;

// SAFETY: forwards to the system allocator; the counts are atomics, and a plain thread-local without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(true, layout.size() as i64);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(false, -(layout.size() as i64));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(true, size as i64 - layout.size() as i64);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
