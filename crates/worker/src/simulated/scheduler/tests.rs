use super::*;
use crate::executor::SamplingConfig;

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
    assert_eq!(scheduler.free_blocks, 100);
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
        assert_eq!(scheduler.free_blocks, scheduler.options.num_blocks);
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
