use std::collections::BTreeSet;

use bytes::Bytes;
use proptest::prelude::*;

use super::super::cache::BlockCache;
use super::*;
use crate::executor::{NamedTensor, SamplingConfig};

fn request(client_id: u64, prompt: usize, max_tokens: u32, sequences: u32) -> Request {
    Request {
        client_id: ClientId(client_id),
        input_token_ids: vec![7; prompt],
        max_tokens,
        streaming: true,
        sampling_config: SamplingConfig {
            num_return_sequences: sequences,
            ..SamplingConfig::default()
        },
        ..Request::default()
    }
}

fn options(step_us: f64) -> SimulatedOptions {
    SimulatedOptions {
        prefill_us_per_token: 0.0,
        step_us,
        step_us_per_sequence: 0.0,
        ..SimulatedOptions::default()
    }
}

const MS: Duration = Duration::from_millis(1);

fn finals(rows: &StepBatch<ClientId>) -> Vec<u64> {
    let pairs = rows.ids.iter().zip(&rows.finals);
    pairs
        .filter(|(_, last)| **last == 1)
        .map(|(id, _)| id.0)
        .collect()
}

#[test]
fn tokens_come_when_their_iteration_ends() {
    let mut scheduler = Scheduler::new(SimulatedOptions {
        prefill_us_per_token: 10.0,
        ..options(1000.0)
    });
    scheduler.enqueue(request(1, 100, 3, 1), MS * 5);
    let mut rows = StepBatch::default();
    // One millisecond of prefill and one of step, from the request's arrival on.
    assert_eq!(scheduler.advance(MS * 6, &mut rows), Next::At(MS * 7));
    assert!(rows.ids.is_empty());
    assert_eq!(scheduler.advance(MS * 7, &mut rows), Next::At(MS * 8));
    assert_eq!(rows.token_ids.len(), 1);
    // A late await gets what is overdue, in order, and no more.
    assert_eq!(scheduler.advance(MS * 100, &mut rows), Next::Idle);
    assert_eq!(rows.token_ids.len(), 3);
    assert_eq!(rows.token_offsets, [0, 1, 2, 3]);
    assert_eq!(rows.finish_reasons, [0, 0, FinishReason::Length as u8]);
    assert_eq!(finals(&rows), [1]);
}

#[test]
fn the_same_prompt_gets_the_same_printable_tokens() {
    let answer = || {
        let mut scheduler = Scheduler::new(options(0.0));
        scheduler.enqueue(request(1, 4, 200, 1), MS);
        let mut rows = StepBatch::default();
        while scheduler.advance(MS, &mut rows) != Next::Idle {}
        rows.token_ids
    };
    let tokens = answer();
    assert_eq!(tokens.len(), 200);
    assert_eq!(tokens, answer());
    assert!(tokens.iter().all(|id| (32..127).contains(id)));
}

#[test]
fn a_request_waits_for_a_place_and_for_blocks() {
    for options in [
        SimulatedOptions {
            max_batch_size: 1,
            ..options(1000.0)
        },
        SimulatedOptions {
            num_blocks: 2,
            tokens_per_block: 8,
            ..options(1000.0)
        },
    ] {
        let mut scheduler = Scheduler::new(options);
        scheduler.enqueue(request(1, 8, 2, 1), MS);
        scheduler.enqueue(request(2, 8, 2, 1), MS);
        let mut rows = StepBatch::default();
        scheduler.advance(MS * 3, &mut rows);
        assert_eq!(rows.ids, [1, 1].map(ClientId));
        scheduler.advance(MS * 5, &mut rows);
        assert_eq!(rows.ids, [1, 1, 2, 2].map(ClientId));
    }
}

#[test]
fn a_long_prompt_takes_several_iterations() {
    let mut scheduler = Scheduler::new(SimulatedOptions {
        max_num_tokens: 10,
        ..options(1000.0)
    });
    scheduler.enqueue(request(1, 25, 1, 1), Duration::ZERO);
    let mut rows = StepBatch::default();
    assert_eq!(scheduler.advance(MS * 2, &mut rows), Next::At(MS * 3));
    assert!(rows.ids.is_empty());
    assert_eq!(scheduler.advance(MS * 3, &mut rows), Next::Idle);
    assert_eq!(finals(&rows), [1]);
}

#[test]
fn prompts_keep_streams_waiting_no_longer_than_they_may() {
    let mut scheduler = Scheduler::new(SimulatedOptions {
        prefill_us_per_token: 10.0,
        max_prompt_ms: 5,
        ..options(1000.0)
    });
    let mut rows = StepBatch::default();
    // Nobody waits: 1,000 tokens in one iteration.
    scheduler.enqueue(request(1, 1000, 100, 1), MS);
    assert_eq!(scheduler.advance(MS, &mut rows), Next::At(MS * 12));
    // Next to a stream, 500 of each, and 1,000 of all.
    for client_id in 2..5 {
        scheduler.enqueue(request(client_id, 700, 1, 1), MS * 12);
    }
    let ends = [23, 33, 36].map(|end| MS * end);
    for (before, end) in [12, 23, 33].into_iter().zip(ends) {
        assert_eq!(scheduler.advance(MS * before, &mut rows), Next::At(end));
    }
}

#[test]
fn every_request_has_exactly_one_final_row_however_it_ends() {
    let mut scheduler = Scheduler::new(SimulatedOptions {
        max_batch_size: 4,
        num_blocks: 100,
        ..options(1000.0)
    });
    scheduler.enqueue(request(1, 4, 3, 3), Duration::ZERO);
    scheduler.enqueue(request(2, 4, 9, 1), Duration::ZERO);
    scheduler.enqueue(request(3, 4, 9, 1), Duration::ZERO); // waits for a place
    scheduler.enqueue(request(4, 4, 1_000_000, 1), Duration::ZERO); // can never fit
    scheduler.enqueue(request(5, 4, 1, 5), Duration::ZERO); // more sequences than places
    let mut rows = StepBatch::default();
    scheduler.advance(MS, &mut rows);
    assert_eq!(rows.errors.len(), 2);
    scheduler.drain_stats();
    scheduler.cancel(ClientId(2));
    scheduler.cancel(ClientId(3));
    scheduler.cancel(ClientId(99));
    scheduler.advance(MS * 20, &mut rows);
    let mut ended = finals(&rows);
    ended.sort_unstable();
    assert_eq!(ended, [1, 2, 3, 4, 5]);
    assert_eq!(scheduler.advance(MS * 30, &mut rows), Next::Idle);
    assert_eq!(scheduler.blocks.free(), 100);
    assert_eq!(scheduler.places, 0);
    let stats = scheduler.drain_stats().pop().unwrap();
    assert_eq!(stats.num_active_requests, 0);
    assert_eq!(stats.kv_cache_stats.unwrap().used_num_blocks, 0);
}

#[test]
fn a_request_that_does_not_stream_comes_in_one_row() {
    let mut scheduler = Scheduler::new(options(1000.0));
    scheduler.enqueue(
        Request {
            streaming: false,
            ..request(1, 4, 5, 1)
        },
        Duration::ZERO,
    );
    let mut rows = StepBatch::default();
    scheduler.advance(MS * 4, &mut rows);
    assert!(rows.ids.is_empty());
    scheduler.advance(MS * 5, &mut rows);
    assert_eq!(rows.token_offsets, [0, 5]);
}

#[test]
fn a_given_answer_is_repeated_from_its_beginning() {
    let mut scheduler = Scheduler::new(SimulatedOptions {
        answer: vec![5, 6, 7],
        ..options(1000.0)
    });
    for (client_id, prompt) in [(1, 3), (2, 4)] {
        let request = Request {
            streaming: false,
            ..request(client_id, prompt, 4, 2)
        };
        scheduler.enqueue(request, Duration::ZERO);
    }
    let mut rows = StepBatch::default();
    scheduler.advance(MS * 9, &mut rows);
    assert_eq!(rows.token_ids, [5, 6, 7, 5].repeat(4));
}

#[test]
fn shutting_down_ends_what_runs_and_refuses_what_comes() {
    let mut scheduler = Scheduler::new(options(1000.0));
    scheduler.enqueue(request(1, 4, 5, 1), Duration::ZERO);
    scheduler.advance(MS, &mut StepBatch::default());
    scheduler.shut_down();
    scheduler.enqueue(request(2, 4, 5, 1), MS);
    let mut rows = StepBatch::default();
    scheduler.advance(MS * 2, &mut rows);
    assert_eq!(finals(&rows), [1, 2]);
    assert_eq!(rows.errors.len(), 1);
}

#[test]
fn a_resumed_request_goes_on_as_if_nothing_had_happened() {
    let run = |request: Request| {
        let mut scheduler = Scheduler::new(options(1000.0));
        scheduler.enqueue(request, Duration::ZERO);
        let mut rows = StepBatch::default();
        while scheduler.advance(MS * 100, &mut rows) != Next::Idle {}
        assert_eq!(finals(&rows), [1]);
        assert_eq!(scheduler.blocks.free(), scheduler.options.num_blocks);
        assert_eq!(scheduler.places, 0);
        let mut tokens = vec![Vec::new(); 3];
        for row in rows.rows() {
            tokens[row.sequence_index as usize].extend_from_slice(row.tokens);
        }
        tokens
    };
    for streaming in [true, false] {
        let whole = Request {
            streaming,
            ..request(1, 5, 6, 3)
        };
        let undisturbed = run(whole.clone());
        for cut in 0..6 {
            let resumed = Request {
                generated: vec![
                    Some(undisturbed[0][..cut].to_vec()),
                    None,
                    Some(undisturbed[2][..5 - cut].to_vec()),
                ],
                ..whole.clone()
            };
            let rest = run(resumed);
            assert_eq!(rest[0], undisturbed[0][cut..]);
            assert!(rest[1].is_empty());
            assert_eq!(rest[2], undisturbed[2][5 - cut..]);
        }
    }
}

fn reusing(num_blocks: u32) -> SimulatedOptions {
    SimulatedOptions {
        prefill_us_per_token: 1000.0,
        enable_kv_cache_reuse: true,
        num_blocks,
        tokens_per_block: 4,
        ..options(0.0)
    }
}

fn prompt(client_id: u64, tokens: &[i32], max_tokens: u32) -> Request {
    Request {
        input_token_ids: tokens.to_vec(),
        ..request(client_id, 0, max_tokens, 1)
    }
}

fn salted(request: Request, salt: &str) -> Request {
    let data = [&(salt.len() as u32).to_le_bytes()[..], salt.as_bytes()].concat();
    let tensor = NamedTensor {
        name: inflight_kserve::names::CACHE_SALT.to_owned(),
        datatype: "BYTES".to_owned(),
        shape: vec![1],
        data: Bytes::from(data),
    };
    Request {
        tensors: vec![tensor],
        ..request
    }
}

/// When a request's last row came, and how many of its prompt tokens were cached.
fn run_one(scheduler: &mut Scheduler, request: Request, now: Duration) -> (Duration, Option<u32>) {
    scheduler.enqueue(request, now);
    let mut rows = StepBatch::default();
    let mut now = now;
    while let Next::At(next) = scheduler.advance(now, &mut rows) {
        now = next;
    }
    let cached = rows.cached_tokens.first().map(|(_, cached)| *cached);
    (now, cached)
}

#[test]
fn a_prompt_costs_what_the_cache_lacks() {
    let mut scheduler = Scheduler::new(reusing(64));
    let tokens: Vec<i32> = (0..17).collect();
    let mut now = Duration::ZERO;
    let mut costs = |request| {
        let (ended, cached) = run_one(&mut scheduler, request, now);
        let cost = (ended - now).as_millis();
        now = ended;
        (cost, cached)
    };
    assert_eq!(costs(prompt(1, &tokens, 1)), (17, Some(0)));
    assert_eq!(costs(prompt(2, &tokens, 1)), (1, Some(16)));
    // The last token is computed in any case.
    assert_eq!(costs(prompt(3, &tokens[..16], 1)), (4, Some(12)));
    assert_eq!(costs(prompt(4, &tokens[..7], 1)), (3, Some(4)));
    // What was generated is found too, but for its last token.
    let (_, _) = costs(prompt(5, &tokens, 8));
    let mut longer = tokens.clone();
    let first = first_token(&tokens);
    let said = Answer::new(&reusing(64));
    let answer = (0..8).map(|place| said.token(first, place));
    longer.extend(answer);
    assert_eq!(costs(prompt(6, &longer, 1)), (1, Some(24)));
    // Salts share nothing.
    assert_eq!(costs(salted(prompt(7, &tokens, 1), "a")), (17, Some(0)));
    assert_eq!(costs(salted(prompt(8, &tokens, 1), "b")), (17, Some(0)));
    assert_eq!(costs(salted(prompt(9, &tokens, 1), "a")), (1, Some(16)));
}

#[test]
fn a_prompt_finds_what_the_one_before_it_computes() {
    let mut scheduler = Scheduler::new(SimulatedOptions {
        max_num_tokens: 8,
        ..reusing(64)
    });
    let tokens: Vec<i32> = (0..17).collect();
    scheduler.enqueue(prompt(1, &tokens, 1), Duration::ZERO);
    let (ended, cached) = run_one(&mut scheduler, prompt(2, &tokens, 1), Duration::ZERO);
    // Both ends are of one iteration: the last token of the first prompt, and that of the second.
    assert_eq!((ended.as_millis(), cached), (18, Some(0)));
    assert_eq!(scheduler.blocks.stats().reused_blocks, 4);
}

#[test]
fn a_prompt_waits_for_blocks_that_another_computes_and_lets_others_pass() {
    let mut scheduler = Scheduler::new(SimulatedOptions {
        max_prompt_ms: 4,
        ..reusing(100)
    });
    let (mut now, mut rows) = (MS, StepBatch::default());
    // Next to the first, an iteration has 4 tokens of a prompt. The third begins as the second does.
    let long: Vec<i32> = (0..16).collect();
    let alike: Vec<i32> = (0..17).collect();
    let prompts = [
        (0, &[80][..], 9),
        (1, &long, 1),
        (2, &alike, 1),
        (3, &[90, 91], 1),
    ];
    scheduler.enqueue(prompt(prompts[0].0, prompts[0].1, prompts[0].2), now);
    assert_eq!(scheduler.advance(now, &mut rows), Next::At(MS * 2));
    for (client_id, tokens, max_tokens) in &prompts[1..] {
        scheduler.enqueue(prompt(*client_id, tokens, *max_tokens), now);
    }
    let mut order = Vec::new();
    while let Next::At(next) = scheduler.advance(now, &mut rows) {
        order.extend(finals(&rows).into_iter().map(|client_id| (client_id, now)));
        rows = StepBatch::default();
        now = next;
        if order.len() == 3 {
            break;
        }
    }
    // From 2 ms on: 4 + 2, twice 4, and 4 with the last one of 17 tokens.
    assert_eq!(order, [(3, MS * 8), (1, MS * 21), (2, MS * 21)]);
}

#[test]
fn what_is_longest_unused_is_forgotten_from_its_end() {
    let mut scheduler = Scheduler::new(reusing(6));
    scheduler.report_cache(false);
    let one: Vec<i32> = (0..12).collect();
    let other: Vec<i32> = (100..108).collect();
    let (_, cached) = run_one(&mut scheduler, prompt(1, &one, 1), MS);
    assert_eq!(cached, Some(0));
    scheduler.take_cache_changes();
    // Needs three, and three are free.
    run_one(&mut scheduler, prompt(2, &other, 1), MS * 100);
    assert!(
        scheduler
            .take_cache_changes()
            .iter()
            .all(|change| matches!(change, CacheChange::Stored(..)))
    );
    // Needs four, and one of these was never full.
    run_one(&mut scheduler, prompt(3, &[7; 12], 1), MS * 200);
    let keys = inflight_blocks::keys(&one, 4, inflight_blocks::Seed::new(None, b""));
    let removed: Vec<u64> = scheduler
        .take_cache_changes()
        .into_iter()
        .filter_map(|change| match change {
            CacheChange::Removed(key) => Some(key),
            CacheChange::Stored(..) => None,
        })
        .collect();
    assert_eq!(removed, [keys[2], keys[1], keys[0]]);
    assert_eq!(scheduler.blocks.free(), 6);
}

#[test]
fn without_reuse_nothing_is_reported() {
    let mut scheduler = Scheduler::new(SimulatedOptions {
        enable_kv_cache_reuse: false,
        ..reusing(64)
    });
    scheduler.report_cache(false);
    for id in 1..3 {
        let now = scheduler.next_start;
        let (ended, cached) = run_one(&mut scheduler, prompt(id, &[7; 16], 1), now);
        assert_eq!((ended - now, cached), (MS * 16, None));
    }
    assert!(scheduler.take_cache_changes().is_empty());
}

proptest! {
    #[test]
    fn reported_changes_come_to_what_is_held(
        requests in proptest::collection::vec(
            // A beginning among few, an end, an answer's length, whether it is cancelled, and its salt.
            (0..3_i32, 0..24_usize, 0..20_usize, 1..9_u32, 1..3_u32, any::<bool>(), 0..2_usize),
            1..40,
        ),
        num_blocks in 16..40_u32,
    ) {
        let mut scheduler = Scheduler::new(SimulatedOptions { max_batch_size: 3, ..reusing(num_blocks) });
        scheduler.report_cache(false);
        let mut told = BTreeSet::new();
        let mut now = Duration::ZERO;
        let mut rows = StepBatch::default();
        let mut follow = |scheduler: &mut Scheduler| {
            for change in scheduler.take_cache_changes() {
                let is_new = match change {
                    CacheChange::Stored(key, _, _) => told.insert(key),
                    CacheChange::Removed(key) => told.remove(&key),
                };
                assert!(is_new, "{change:?} changes nothing");
            }
            assert_eq!(Some(&told), scheduler.blocks.cache().map(BlockCache::keys).as_ref());
        };
        for (id, (base, same, other, most, sequences, cancelled, salt)) in requests.iter().enumerate() {
            let mut tokens = vec![*base; *same + 1];
            tokens.extend((0..*other).map(|token| token as i32 + 10 * base));
            let id = id as u64;
            let plain = Request { input_token_ids: tokens, ..request(id, 0, *most, *sequences) };
            scheduler.enqueue(salted(plain, ["", "s"][*salt]), now);
            now += MS * 5;
            scheduler.advance(now, &mut rows);
            follow(&mut scheduler);
            if *cancelled {
                scheduler.cancel(ClientId(id));
                follow(&mut scheduler);
            }
        }
        while let Next::At(next) = scheduler.advance(now, &mut rows) {
            now = next;
            follow(&mut scheduler);
        }
        prop_assert_eq!(finals(&rows).len(), requests.len());
        prop_assert_eq!(scheduler.blocks.free(), num_blocks);
        prop_assert_eq!(scheduler.places, 0);
    }
}

fn phase(request: Request, kind: &str, params: Option<&Bytes>) -> Request {
    let length = (kind.len() as u32).to_le_bytes();
    let mut tensors = vec![NamedTensor {
        name: "request_type".to_owned(),
        datatype: "BYTES".to_owned(),
        shape: vec![1],
        data: Bytes::from([&length, kind.as_bytes()].concat()),
    }];
    tensors.extend(params.map(|params| NamedTensor {
        name: "context_phase_params".to_owned(),
        datatype: "UINT8".to_owned(),
        shape: vec![params.len() as i64],
        data: params.clone(),
    }));
    Request { tensors, ..request }
}

#[test]
fn a_context_is_computed_at_one_and_continued_at_another() {
    let options = SimulatedOptions {
        prefill_us_per_token: 100.0,
        transfer_us_per_token: 10.0,
        ..options(1000.0)
    };
    let whole = {
        let mut scheduler = Scheduler::new(options.clone());
        scheduler.enqueue(request(1, 1000, 4, 1), Duration::ZERO);
        let mut rows = StepBatch::default();
        scheduler.advance(MS * 1000, &mut rows);
        rows.token_ids
    };
    let mut context = Scheduler::new(options.clone());
    let asked = phase(request(1, 1000, 4, 1), "context_only", None);
    context.enqueue(asked, Duration::ZERO);
    let mut rows = StepBatch::default();
    assert_eq!(context.advance(MS * 101, &mut rows), Next::Idle);
    assert_eq!(rows.token_ids, whole[..1]);
    assert_eq!(rows.finish_reasons, [FinishReason::Length as u8]);
    let params = rows.context_phases[0].params.clone();

    // What was generated is the first sequence's; without it, the answer begins with it.
    for before in [0, 1] {
        let mut generation = Scheduler::new(options.clone());
        let running = request(7, 1, 100, 1);
        generation.enqueue(running, Duration::ZERO);
        let mut rows = StepBatch::default();
        generation.advance(MS, &mut rows);
        let asked = Request {
            generated: vec![Some(whole[..before].to_vec()); before],
            ..request(2, 1000, 4, 1)
        };
        generation.enqueue(phase(asked, "generation_only", Some(&params)), MS);
        let mut rows = StepBatch::default();
        // 10 ms on its way, and none of the running request's tokens late.
        generation.advance(MS * 11, &mut rows);
        assert_eq!(rows.ids, [7; 10].map(ClientId), "{before}");
        let mut rows = StepBatch::default();
        generation.advance(MS * 20, &mut rows);
        let own = rows.rows().filter(|row| row.id == ClientId(2));
        let tokens: Vec<i32> = own.flat_map(|row| row.tokens.to_vec()).collect();
        assert_eq!(tokens, whole[before..], "{before}");
    }
}

#[test]
fn a_context_on_its_way_is_alone_and_can_be_cancelled() {
    let mut scheduler = Scheduler::new(options(1000.0));
    let params = super::super::phase::left_by(&request(2, 1000, 4, 1));
    let asked = || phase(request(2, 1000, 4, 1), "generation_only", Some(&params));
    scheduler.enqueue(asked(), Duration::ZERO);
    let mut rows = StepBatch::default();
    assert_eq!(
        scheduler.advance(Duration::ZERO, &mut rows),
        Next::At(MS * 10)
    );
    assert_eq!(scheduler.advance(MS * 11, &mut rows), Next::At(MS * 12));
    assert_eq!(rows.token_ids.len(), 1);
    scheduler.cancel(ClientId(2));
    let mut rows = StepBatch::default();
    scheduler.enqueue(request(3, 1, 1, 1), MS * 12);
    scheduler.enqueue(asked(), MS * 12);
    scheduler.cancel(ClientId(2));
    scheduler.advance(MS * 50, &mut rows);
    assert_eq!(finals(&rows), [2, 2, 3]);
    assert_eq!(scheduler.blocks.stats().used_num_blocks, 0);
}

#[test]
fn phases_that_cannot_be_are_refused() {
    let params = Bytes::from_static(b"other");
    for (request, expected) in [
        (
            phase(request(1, 4, 4, 2), "context_only", None),
            "`num_return_sequences` is `2`",
        ),
        (
            phase(request(1, 4, 4, 1), "generation_only", None),
            "`context_phase_params` has `0` bytes",
        ),
        (
            phase(request(1, 4, 4, 1), "generation_only", Some(&params)),
            "`context_phase_params` has `5` bytes",
        ),
    ] {
        let mut scheduler = Scheduler::new(options(0.0));
        scheduler.enqueue(request, MS);
        let mut rows = StepBatch::default();
        scheduler.advance(MS, &mut rows);
        let error = &rows.errors[0];
        assert_eq!(error.code, Code::InvalidArgument);
        assert!(error.text.contains(expected), "{}", error.text);
    }
}
