//! The hot path allocates nothing per token: detokenizing and matching, in steady state.
#![allow(clippy::unwrap_used, reason = "helpers of tests may, like tests")]

use inflight_testkit::allocations::{Counting, taken};
use inflight_text::{Detokenizer, StopMatcher};

#[path = "support/fixtures.rs"]
mod fixtures;

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
        let before = taken().allocations;
        for _ in 0..100 {
            round(&ids);
        }
        assert_eq!(taken().allocations, before, "{name}");
        assert!(characters > 1000, "{name} streamed {characters} characters");
    }
}
