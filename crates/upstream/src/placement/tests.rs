//! Workers of one model as their reports say, without a socket.

use std::time::Duration;

use inflight_blocks::{Seed, keys};
use inflight_kserve::cache_state::{
    BlockChanges, CacheShape, CacheUpdate, WaitingPrompt, WorkerLoad,
};
use inflight_models::sampling_params::SamplingParams;

use super::seat::Next;
use super::*;
use crate::phases::Phases;
use crate::prompt_request::PromptRequest;

const BLOCK: u32 = 4;

fn ask(tokens: &[i32]) -> CacheQuery {
    CacheQuery::of_one(tokens, Some(Seed::new(None, b"")), false, BLOCK)
}

/// The keys of a prompt's blocks, as a worker's message stores them.
fn stored(tokens: &[i32]) -> BlockChanges {
    let stored = keys(tokens, BLOCK as usize, Seed::new(None, b""));
    let mut after = vec![0];
    after.extend_from_slice(&stored[..stored.len() - 1]);
    BlockChanges {
        stored,
        after,
        removed: Vec::new(),
    }
}

fn first(device: BlockChanges) -> CacheUpdate {
    CacheUpdate {
        sequence: 1,
        snapshot_begin: true,
        snapshot_end: true,
        device: Some(device),
        shape: Some(CacheShape {
            tokens_per_block: BLOCK,
            device_blocks: 1000,
            reports_blocks: true,
            ..CacheShape::default()
        }),
        load: Some(WorkerLoad::default()),
        ..CacheUpdate::default()
    }
}

/// Two workers that are heard, of which the second holds a prompt of 64 tokens.
fn pair() -> (Arc<Placement>, Vec<Arc<Seat>>, Vec<i32>) {
    let placement = Arc::new(Placement::new(Placements::default()));
    let seats: Vec<_> = (0..2).map(|_| placement.join().unwrap()).collect();
    let prompt: Vec<i32> = (0..64).collect();
    seats[0].take(&first(BlockChanges::default())).unwrap();
    seats[1].take(&first(stored(&prompt))).unwrap();
    (placement, seats, prompt)
}

#[test]
fn a_prompt_is_hashed_once_for_all_its_phases() {
    let (tokens, params) = ((0..64).collect::<Vec<i32>>(), SamplingParams::greedy());
    let prompt = PromptRequest {
        params: &params,
        tokens: &tokens,
        text: "",
        stop: &[],
        is_counted: true,
        request_id: "",
        trace: None,
        timeout: None,
        generated: &[],
        phases: Phases::Both,
    };
    let (both, contexts) = (
        [prompt],
        [PromptRequest {
            phases: Phases::Context,
            ..prompt
        }],
    );
    let named = BlockKeys::default();
    let asked = Prompts::new(&both, &named);
    let first = asked.ask(BLOCK).keys;
    assert_eq!(first.to_vec(), stored(&tokens).stored);
    assert!(asked.ask(0).keys.is_empty());
    for again in [asked.ask(BLOCK), Prompts::new(&contexts, &named).ask(BLOCK)] {
        assert!(Arc::ptr_eq(&again.keys, &first));
    }
    // Blocks of another size have other keys.
    let others = asked.ask(2 * BLOCK).keys;
    assert_eq!(
        others.to_vec(),
        keys(&tokens, 2 * BLOCK as usize, Seed::new(None, b""))
    );
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_is_learned_by_what_had_to_be_moved() {
    let (placement, seats, tokens) = pair();
    let (params, named, left) = (
        SamplingParams::greedy(),
        BlockKeys::default(),
        bytes::Bytes::new(),
    );
    let prompts = [PromptRequest {
        params: &params,
        tokens: &tokens,
        text: "",
        stop: &[],
        is_counted: true,
        request_id: "",
        trace: None,
        timeout: None,
        generated: &[],
        phases: Phases::Generation(&left),
    }];
    let ask = Prompts::new(&prompts, &named).ask(BLOCK);
    // The first worker has none of it, and the second one all.
    let hand_over = async |seat: &Arc<Seat>, took| {
        let mut placed = placement.assign(&ask, [seat].into_iter()).unwrap().1;
        tokio::time::advance(Duration::from_millis(took)).await;
        placed.started();
    };
    for _ in 0..4000 {
        hand_over(&seats[0], 69).await;
        hand_over(&seats[1], 5).await;
    }
    let found = [0, 64].map(|tokens| placement.state.lock().hand_overs.expected(tokens));
    for (found, took) in found.into_iter().zip([0.005, 0.069]) {
        assert!((0.5..1.5).contains(&(found / took)), "{found} {took}");
    }
}

#[tokio::test(start_paused = true)]
async fn prompts_that_begin_alike_stay_together_before_any_is_computed() {
    let (placement, seats, _) = pair();
    let fresh: Vec<i32> = (1000..5000).collect();
    let longer = [&fresh[..], &[1, 2, 3, 4]].concat();
    let known = |server| {
        let held = placement.look_up(&ask(&longer)).0.held.of(server);
        (held.device, held.coming)
    };
    let placed = placement.assign(&ask(&fresh), seats.iter()).unwrap().1;
    let server = placed.seat().server();
    let behind = placement.assign(&ask(&longer), seats.iter()).unwrap().1;
    assert_eq!(behind.seat().server(), server);
    // The worker has reported none of it, so an answer without it does not make its reports wrong.
    assert_eq!((behind.expected_cached(), behind.is_checked()), (0, true));
    assert_eq!(known(server), (0, 1001));
    drop(behind);
    assert_eq!(known(server), (0, 1000));
    drop(placed);
    assert_eq!(known(server), (0, 0));
    // One that does not reuse blocks will hold none.
    let forgets = placement.join().unwrap();
    let update = CacheUpdate {
        shape: Some(CacheShape::default()),
        ..first(BlockChanges::default())
    };
    forgets.take(&update).unwrap();
    let _sent = placement.assign(&ask(&fresh), [&forgets].into_iter());
    assert_eq!(known(forgets.server()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_another_gateway_sent_is_coming_until_its_worker_says_otherwise() {
    let (placement, seats, prompt) = pair();
    let seat = &seats[1];
    let fresh: Vec<i32> = (1000..5000).collect();
    let depth = |asked: &[i32]| {
        let held = placement.look_up(&ask(asked)).0.held.of(seat.server());
        (held.device, held.coming)
    };
    let says = |sequence, waiting: &[(u64, &[i32])], no_longer_waiting: &[u64]| {
        let waiting = waiting.iter().map(|(number, tokens)| WaitingPrompt {
            number: *number,
            keys: stored(tokens).stored,
        });
        seat.take(&CacheUpdate {
            sequence,
            waiting: waiting.collect(),
            no_longer_waiting: no_longer_waiting.to_vec(),
            load: Some(WorkerLoad::default()),
            ..CacheUpdate::default()
        })
    };
    says(2, &[(1, &fresh)], &[]).unwrap();
    assert_eq!(depth(&fresh), (0, 1000));
    let placed = placement.assign(&ask(&fresh), seats.iter()).unwrap().1;
    assert_eq!(placed.seat().server(), seat.server());
    // What was sent from here counts for itself.
    says(3, &[], &[1]).unwrap();
    assert_eq!(depth(&fresh), (0, 1000));
    drop(placed);
    assert_eq!(depth(&fresh), (0, 0));
    // A snapshot names all of them anew.
    says(4, &[(2, &fresh)], &[]).unwrap();
    let anew = CacheUpdate {
        sequence: 5,
        ..first(stored(&prompt))
    };
    seat.take(&anew).unwrap();
    assert_eq!(depth(&fresh), (0, 0));
    // Nothing counts of a worker whose reports are missing, not trusted, or make no sense.
    for (number, end) in [
        (7, &Seat::begin as &dyn Fn(&Seat)),
        (8, &|seat| seat.doubt(Fault::Lost)),
        (9, &|seat| {
            let update = CacheUpdate {
                sequence: 2,
                no_longer_waiting: vec![99],
                ..CacheUpdate::default()
            };
            assert_eq!(seat.take(&update), Err(Fault::Impossible));
            seat.doubt(Fault::Impossible);
        }),
    ] {
        seat.begin();
        let waits = CacheUpdate {
            waiting: vec![WaitingPrompt {
                number,
                keys: stored(&fresh).stored,
            }],
            ..first(BlockChanges::default())
        };
        seat.take(&waits).unwrap();
        assert_eq!(depth(&fresh).1, 1000);
        end(seat);
        assert_eq!(depth(&fresh).1, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_goes_where_its_prompt_is_cached() {
    let (placement, seats, prompt) = pair();
    assert_eq!(placement.block_tokens(), Some(BLOCK));
    for _ in 0..3 {
        let placed = placement.assign(&ask(&prompt), seats.iter()).unwrap().1;
        assert!(Arc::ptr_eq(placed.seat(), &seats[1]));
        assert_eq!(placed.expected_cached(), 64);
    }
    // Others go where less is to do.
    let other: Vec<i32> = (1000..1064).collect();
    let on_second = placement.assign(&ask(&prompt), seats.iter()).unwrap().1;
    let placed = placement.assign(&ask(&other), seats.iter()).unwrap().1;
    assert!(Arc::ptr_eq(placed.seat(), &seats[0]));
    assert_eq!(placed.expected_cached(), 0);
    drop(on_second);
    // With the first alone, it goes there.
    let placed = placement
        .assign(&ask(&prompt), seats[..1].iter())
        .unwrap()
        .1;
    assert!(Arc::ptr_eq(placed.seat(), &seats[0]));
}

#[tokio::test(start_paused = true)]
async fn those_that_would_be_next_are_ranked_and_learned_of_once_they_have_answered() {
    let (placement, mut seats, prompt) = pair();
    // A third that holds half of it.
    seats.push(placement.join().unwrap());
    seats[2].take(&first(stored(&prompt[..32]))).unwrap();
    let asked = ask(&prompt);
    let (place, placed) = placement.assign(&asked, seats.iter()).unwrap();
    assert_eq!(place, 1);
    let foreign = Arc::new(Placement::new(Placements::default()));
    let foreign = foreign.join().unwrap();
    let rest = [
        Some(Arc::clone(&seats[0])),
        None,
        Some(Arc::clone(&foreign)),
        Some(Arc::clone(&seats[2])),
    ];
    let ranked = |most| {
        let ranked = placement.rank(&asked, &rest, most).into_iter();
        let ranked = ranked.map(|(place, choice)| (place, choice.cached_tokens));
        ranked.collect::<Vec<_>>()
    };
    assert_eq!(ranked(9), [(3, 32), (0, 0)]);
    assert_eq!(ranked(1), [(3, 32)]);
    assert_eq!(ranked(0), []);

    let open = || {
        seats
            .iter()
            .map(|seat| waiting(&placement, seat))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        open(),
        [0, 1, 0],
        "nothing counts where it only would be next"
    );
    let expected = placement.rank(&asked, &rest, 1)[0].1;
    // Meanwhile the one that answers has reported the whole prompt.
    let mut later = first(stored(&prompt));
    later.sequence = 2;
    seats[2].take(&later).unwrap();
    let moved = |expected| placement.sent_to(&seats[2], &asked, expected).unwrap();
    drop(placed);
    let mut known = moved(Some(expected));
    assert_eq!(open(), [0, 0, 1]);
    assert_eq!(known.expected_cached(), 32, "as it was when it was picked");
    assert!(known.is_checked());
    known.started();
    assert_eq!(known.cached(32), None);
    drop(known);
    assert_eq!(open(), [0, 0, 0]);
    // What was not expected says nothing of its reports.
    assert!(!moved(None).is_checked());
    assert!(placement.sent_to(&foreign, &asked, None).is_none());
}

/// Requests that this gateway has there.
fn waiting(placement: &Placement, seat: &Arc<Seat>) -> u32 {
    let choice = placement.rank(&ask(&[1, 2, 3, 4]), &[Some(Arc::clone(seat))], 1);
    choice[0].1.open
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_not_to_be_believed_is_forgotten() {
    let good = |sequence| CacheUpdate {
        sequence,
        load: Some(WorkerLoad::default()),
        ..CacheUpdate::default()
    };
    let removes_too_much = CacheUpdate {
        device: Some(BlockChanges {
            removed: vec![7; 100],
            ..BlockChanges::default()
        }),
        ..good(2)
    };
    let stores_too_much = CacheUpdate {
        device: Some(BlockChanges {
            stored: (1..5000).collect(),
            after: vec![0; 4999],
            removed: Vec::new(),
        }),
        ..good(2)
    };
    let without_parents = CacheUpdate {
        device: Some(BlockChanges {
            stored: vec![9],
            ..BlockChanges::default()
        }),
        ..good(2)
    };
    let backwards = CacheUpdate {
        load: Some(WorkerLoad {
            prefill_seconds_total: -1.0,
            ..WorkerLoad::default()
        }),
        ..good(2)
    };
    let begins_late = CacheUpdate {
        shape: None,
        ..first(BlockChanges::default())
    };
    for (updates, expected) in [
        (vec![first(BlockChanges::default()), good(2)], Ok(())),
        (
            vec![first(BlockChanges::default()), good(3)],
            Err(Fault::Gap),
        ),
        (
            vec![first(BlockChanges::default()), good(1)],
            Err(Fault::Gap),
        ),
        (vec![good(1)], Err(Fault::Impossible)),
        (vec![begins_late], Err(Fault::Impossible)),
        (
            vec![first(BlockChanges::default()), removes_too_much],
            Err(Fault::Impossible),
        ),
        (
            vec![first(BlockChanges::default()), stores_too_much],
            Err(Fault::Impossible),
        ),
        (
            vec![first(BlockChanges::default()), without_parents],
            Err(Fault::Impossible),
        ),
        (
            vec![first(BlockChanges::default()), backwards],
            Err(Fault::Impossible),
        ),
    ] {
        let placement = Arc::new(Placement::new(Placements::default()));
        let seat = placement.join().unwrap();
        let taken = updates
            .iter()
            .try_for_each(|update| seat.take(update).map(drop));
        assert_eq!(taken, expected, "{updates:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_in_doubt_is_estimated_until_it_is_heard_again() {
    let (placement, seats, prompt) = pair();
    seats[1].doubt(Fault::Late);
    assert_eq!(seats[1].cache_reports(), CacheReports::Faulty(Fault::Late));
    assert!(seats[1].cache_reports().reason().is_some());
    let mut placed = placement
        .assign(&ask(&prompt), seats[1..].iter())
        .unwrap()
        .1;
    assert_eq!(placed.expected_cached(), 0);
    // From now on it is assumed to hold what it was sent, and not blamed where it does not.
    drop(placed);
    placed = placement.assign(&ask(&prompt), seats.iter()).unwrap().1;
    assert_eq!(placed.expected_cached(), 64);
    assert_eq!(placed.cached(0), None);
    drop(placed);
    seats[1].begin();
    seats[1].take(&first(stored(&prompt))).unwrap();
    assert_eq!(seats[1].cache_reports(), CacheReports::Reporting);
    let placed = placement.assign(&ask(&prompt), seats.iter()).unwrap().1;
    assert_eq!(placed.expected_cached(), 64);
    // None is heard: requests go by their number.
    drop(placed);
    for seat in &seats {
        seat.doubt(Fault::Lost);
    }
    assert_eq!(placement.block_tokens(), None);
}

#[tokio::test(start_paused = true)]
async fn answers_that_lack_what_was_promised_end_the_trust() {
    let (placement, seats, prompt) = pair();
    let mut faults = Vec::new();
    for _ in 0..16 {
        let mut placed = placement.assign(&ask(&prompt), seats.iter()).unwrap().1;
        placed.started();
        faults.extend(placed.cached(0));
        // Once for each request.
        faults.extend(placed.cached(0));
    }
    assert_eq!(faults, [Fault::Lies]);
    assert_eq!(seats[1].cache_reports(), CacheReports::Faulty(Fault::Lies));
    // Not trusted for a while, whatever it says.
    seats[1].begin();
    assert_eq!(seats[1].take(&first(stored(&prompt))), Err(Fault::Lies));
    tokio::time::advance(Duration::from_secs(61)).await;
    seats[1].begin();
    assert_eq!(seats[1].take(&first(stored(&prompt))), Ok(Next::Message));
}

#[tokio::test(start_paused = true)]
async fn a_seat_is_free_again_without_what_its_worker_held() {
    let (placement, mut seats, prompt) = pair();
    drop(seats.pop());
    let again = placement.join().unwrap();
    assert_eq!(again.server(), 1);
    again.take(&first(BlockChanges::default())).unwrap();
    seats.push(again);
    let placed = placement.assign(&ask(&prompt), seats.iter()).unwrap().1;
    assert_eq!(placed.expected_cached(), 0);
}

#[tokio::test(start_paused = true)]
async fn workers_with_other_blocks_are_placed_by_load() {
    let (placement, mut seats, prompt) = pair();
    let other = placement.join().unwrap();
    let mut update = first(stored(&prompt));
    update.shape.as_mut().unwrap().tokens_per_block = 2 * BLOCK;
    other.take(&update).unwrap();
    seats[1] = other;
    let placed = placement.assign(&ask(&prompt), seats.iter()).unwrap().1;
    assert_eq!(placed.expected_cached(), 0);
}

#[tokio::test(start_paused = true)]
async fn blocks_of_another_size_are_known_once_the_last_of_the_old_ones_has_left() {
    let (placement, mut seats, prompt) = pair();
    let other = placement.join().unwrap();
    let mut update = first(BlockChanges::default());
    update.shape.as_mut().unwrap().tokens_per_block = 2 * BLOCK;
    assert_eq!(other.take(&update), Ok(Next::Message));
    let heartbeat = CacheUpdate {
        sequence: 2,
        load: Some(WorkerLoad::default()),
        ..CacheUpdate::default()
    };
    assert_eq!(other.take(&heartbeat), Ok(Next::Message));
    seats.clear();
    // What it reported before had no names, so it is read again.
    let heartbeat = CacheUpdate {
        sequence: 3,
        ..heartbeat
    };
    assert_eq!(other.take(&heartbeat), Ok(Next::Snapshot));
    assert_eq!(placement.block_tokens(), Some(2 * BLOCK));
    other.begin();
    let keys = keys(&prompt, 2 * BLOCK as usize, Seed::new(None, b""));
    update.device = Some(BlockChanges {
        after: vec![0],
        stored: keys[..1].to_vec(),
        removed: Vec::new(),
    });
    assert_eq!(other.take(&update), Ok(Next::Message));
    let ask = CacheQuery::of_one(&prompt, Some(Seed::new(None, b"")), false, 2 * BLOCK);
    let placed = placement.assign(&ask, [&other].into_iter()).unwrap().1;
    assert_eq!(placed.expected_cached(), 2 * BLOCK);
}

#[tokio::test]
async fn a_cache_is_as_full_as_its_worker_says_and_unknown_where_it_does_not() {
    let usage = |total_blocks, free_blocks, then: &dyn Fn(&Seat)| {
        let seat = Arc::new(Placement::new(Placements::default()))
            .join()
            .unwrap();
        let update = CacheUpdate {
            load: Some(WorkerLoad {
                total_blocks,
                free_blocks,
                ..WorkerLoad::default()
            }),
            ..first(BlockChanges::default())
        };
        assert_eq!(seat.cache_usage(), None, "nothing was said yet");
        seat.take(&update).unwrap();
        then(&seat);
        seat.cache_usage().map(|usage| (usage.used, usage.blocks))
    };
    assert_eq!(usage(100, 25, &|_| ()), Some((75, 100)));
    assert_eq!(usage(100, 100, &|_| ()), Some((0, 100)));
    assert_eq!(
        usage(100, 200, &|_| ()),
        Some((0, 100)),
        "no worker has that"
    );
    assert_eq!(usage(0, 0, &|_| ()), None, "the executor has no blocks");
    assert_eq!(usage(100, 25, &|seat| seat.doubt(Fault::Late)), None);
}

#[test]
fn a_load_without_blocks_leaves_them_estimated() {
    let placement = Arc::new(Placement::new(Placements::default()));
    let seats: Vec<_> = (0..2).map(|_| placement.join().unwrap()).collect();
    let load = |sequence, device_blocks| CacheUpdate {
        sequence,
        snapshot_begin: sequence == 1,
        snapshot_end: sequence == 1,
        shape: (sequence == 1).then(|| CacheShape {
            tokens_per_block: BLOCK,
            device_blocks,
            ..CacheShape::default()
        }),
        load: Some(WorkerLoad::default()),
        ..CacheUpdate::default()
    };
    for seat in &seats {
        seat.take_load(&load(1, 100)).unwrap();
        assert_eq!(seat.cache_reports(), CacheReports::Reporting);
    }
    assert_eq!(placement.block_tokens(), Some(BLOCK));
    let prompt: Vec<i32> = (0..64).collect();
    let first = placement.assign(&ask(&prompt), seats.iter()).unwrap().0;
    for sequence in 2..6 {
        seats[first].take_load(&load(sequence, 100)).unwrap();
        let (place, placed) = placement.assign(&ask(&prompt), seats.iter()).unwrap();
        assert_eq!((place, placed.expected_cached()), (first, 64));
    }
    assert_eq!(seats[first].take_load(&load(9, 100)), Err(Fault::Gap));
    drop(seats);
    assert_eq!(placement.block_tokens(), None);
}

#[test]
fn a_short_prompt_goes_where_it_passes_a_long_one() {
    for (short_prompts_first, expected) in [(false, 0), (true, 1)] {
        let (placement, seats, known) = pair();
        let mut update = first(stored(&known));
        if let Some(shape) = &mut update.shape {
            shape.short_prompts_first = short_prompts_first;
        }
        seats[1].begin();
        seats[1].take(&update).unwrap();
        // What it holds is cheaper there, unless it waits for the long one.
        let long: Vec<i32> = (1000..100_000).collect();
        let _waits = placement
            .assign(&ask(&long), [&seats[1]].into_iter())
            .unwrap();
        let (place, _) = placement.assign(&ask(&known), seats.iter()).unwrap();
        assert_eq!(place, expected, "{short_prompts_first}");
    }
}
