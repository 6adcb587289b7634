//! The hot path allocates nothing per token: detokenizing and matching, in steady state.
#![allow(clippy::unwrap_used, reason = "helpers of tests may, like tests")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use inflight_text::{Detokenizer, StopMatcher};

#[path = "support/fixtures.rs"]
mod fixtures;

thread_local! {
    /// Allocations of this thread, so that the test harness's own do not count.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: forwards to the system allocator; the count is a plain thread-local without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_token_costs_no_allocation() {
    for name in [
        "byte_level",
        "byte_fallback_strip",
        "metaspace_unigram",
        "suffix_bpe",
    ] {
        let tokenizer = fixtures::tokenizer(name);
        let ids = tokenizer
            .encode(
                "the engine streams 🎉 naïve résumés, one token after another. ",
                true,
            )
            .unwrap();
        let mut detokenizer = Detokenizer::new(tokenizer, true);
        let mut stops = StopMatcher::new(&["one token too many".to_owned(), "\n\n".to_owned()]);
        let mut delta = String::with_capacity(1024);
        let mut shown = String::with_capacity(1024);
        let mut characters = 0;
        let mut round = |ids: &[u32]| {
            for id in ids {
                delta.clear();
                shown.clear();
                detokenizer.push(*id, &mut delta);
                assert_eq!(stops.push(&delta, &mut shown), None);
                characters += shown.chars().count();
            }
        };
        // The first rounds grow the buffers.
        round(&ids);
        round(&ids);
        let before = COUNT.with(Cell::get);
        for _ in 0..100 {
            round(&ids);
        }
        assert_eq!(COUNT.with(Cell::get), before, "{name}");
        assert!(characters > 1000, "{name} streamed {characters} characters");
    }
}
