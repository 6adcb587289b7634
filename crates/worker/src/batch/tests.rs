use inflight_kserve::step::{PromptLogProbs, RowError};
use proptest::prelude::*;

use super::*;
use crate::executor::NamedTensor;

type Told = (
    u64,
    i32,
    Vec<i32>,
    Vec<f32>,
    Vec<(i32, f32)>,
    Vec<(i32, String)>,
);

/// What a client learns of each sequence, whatever the rows it came in.
fn told(batch: &StepBatch) -> Vec<Told> {
    let mut told: Vec<Told> = Vec::new();
    for row in batch.rows() {
        let place = told.iter().position(|(handle, sequence, ..)| {
            (*handle, *sequence) == (row.handle, row.sequence_index)
        });
        let place = place.unwrap_or_else(|| {
            told.push((
                row.handle,
                row.sequence_index,
                vec![],
                vec![],
                vec![],
                vec![],
            ));
            told.len() - 1
        });
        let (_, _, tokens, log_probs, tops, errors) = &mut told[place];
        tokens.extend_from_slice(row.tokens);
        log_probs.extend_from_slice(row.log_probs.unwrap_or_default());
        if let Some(top) = row.top_log_probs {
            tops.extend((0..row.tokens.len()).flat_map(|token| top.token(token)));
        }
        errors.extend(row.error.map(|error| (error.code, error.text.clone())));
    }
    told.sort_by_key(|(handle, sequence, ..)| (*handle, *sequence));
    told
}

/// Iterations in which some of 4 handles with 2 sequences move; each sequence ends at most once, and
/// a handle's final row comes with its last sequence.
fn histories() -> impl Strategy<Value = Vec<StepBatch>> {
    let row = (0..8_usize, 0..4_usize, 0..6_u8);
    prop::collection::vec(prop::collection::vec(row, 0..6), 1..8).prop_map(|iterations| {
        let mut ended = [false; 8];
        let mut next = 0;
        iterations
            .into_iter()
            .map(|rows| {
                let mut batch = StepBatch {
                    token_offsets: vec![0],
                    ..StepBatch::default()
                };
                for (sequence, tokens, kind) in rows {
                    let handle = sequence / 2;
                    let twin = sequence ^ 1;
                    if ended[sequence] {
                        continue;
                    }
                    let place = batch.handles.len() as u32;
                    let ends = kind == 0;
                    ended[sequence] = ends;
                    let last = ends && ended[twin];
                    batch.handles.push(handle as u64);
                    batch.sequence_index.push((sequence % 2) as i32);
                    batch.token_ids.extend(next..next + tokens as i32);
                    batch.token_offsets.push(batch.token_ids.len() as u32);
                    batch
                        .finish_reasons
                        .push(if ends { FinishReason::EndId as u8 } else { 0 });
                    batch.finals.push(u8::from(last));
                    if handle == 1 {
                        batch.log_prob_rows.push(place);
                        batch
                            .log_probs
                            .extend((0..tokens).map(|n| (next + n as i32) as f32));
                    }
                    if handle == 2 {
                        batch.top_log_prob_rows.push(place);
                        batch.top_log_prob_widths.push(2);
                        batch.top_log_prob_ids.extend(0..2 * tokens as i32);
                        batch
                            .top_log_probs
                            .extend((0..2 * tokens).map(|n| n as f32));
                    }
                    if kind == 1 {
                        batch.cached_tokens.push((place, 3));
                        let values = vec![0.5];
                        let prompt = PromptLogProbs {
                            row: place,
                            values,
                            ..Default::default()
                        };
                        batch.prompt_log_probs.push(prompt);
                    }
                    if last && kind == 0 && tokens == 3 {
                        let text = "no".to_owned();
                        batch.errors.push(RowError {
                            row: place,
                            code: 13,
                            text,
                        });
                    }
                    next += tokens as i32;
                }
                batch
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn appending_compacting_and_splitting_tell_the_same(history in histories(), limit in 1..400_usize) {
        let mut appended = StepBatch::default();
        let mut by_row = StepBatch::default();
        for batch in &history {
            prop_assert!(batch.validate().is_ok());
            append(&mut appended, batch.clone());
            for row in batch.rows() {
                push_row(&mut by_row, &row, row.handle);
            }
        }
        if !appended.handles.is_empty() {
            prop_assert_eq!(&appended, &by_row);
        }
        prop_assert!(appended.validate().is_ok());

        let waited = ResponseBatch { rows: appended.clone(), tensors: Vec::new() };
        let merged = compact(&waited).rows;
        prop_assert!(merged.validate().is_ok(), "{:?}", merged.validate());
        prop_assert_eq!(told(&merged), told(&appended));
        // A handle's final row is its last, and there are as many as before.
        for (place, handle) in merged.handles.iter().enumerate() {
            if merged.finals[place] == 1 {
                prop_assert!(!merged.handles[place + 1..].contains(handle));
            }
        }
        let finals = |batch: &StepBatch| batch.finals.iter().filter(|last| **last == 1).count();
        prop_assert_eq!(finals(&merged), finals(&appended));

        let parts = split(merged.clone(), limit);
        let mut joined = StepBatch::default();
        for part in parts {
            prop_assert!(part.validate().is_ok());
            prop_assert!(part.handles.len() <= 1 || byte_size(&part) <= limit);
            append(&mut joined, part);
        }
        prop_assert_eq!(told(&joined), told(&merged));
    }
}

#[test]
fn rows_of_several_iterations_become_one() {
    let mut batch = StepBatch::default();
    for (token, reason, last) in [(1, 0, 0), (2, 0, 0), (3, 3, 1)] {
        append(
            &mut batch,
            StepBatch {
                handles: vec![7],
                sequence_index: vec![0],
                token_offsets: vec![0, 1],
                token_ids: vec![token],
                finish_reasons: vec![reason],
                finals: vec![last],
                ..StepBatch::default()
            },
        );
    }
    let merged = compact(&ResponseBatch {
        rows: batch,
        tensors: Vec::new(),
    })
    .rows;
    assert_eq!(merged.token_ids, [1, 2, 3]);
    assert_eq!(merged.token_offsets, [0, 3]);
    assert_eq!((merged.finish_reasons, merged.finals), (vec![3], vec![1]));
}

#[test]
fn large_outputs_stay_with_their_row() {
    let tensor = |name: &str| NamedTensor {
        name: name.to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![0],
        data: bytes::Bytes::new(),
    };
    let rows = StepBatch {
        handles: vec![2, 1, 2],
        sequence_index: vec![0; 3],
        token_offsets: vec![0, 1, 2, 3],
        token_ids: vec![5, 6, 7],
        finish_reasons: vec![0; 3],
        finals: vec![0; 3],
        ..StepBatch::default()
    };
    let merged = compact(&ResponseBatch {
        rows,
        tensors: vec![(0, tensor("a")), (2, tensor("b"))],
    });
    assert_eq!(merged.rows.handles, [1, 2, 2]);
    let places: Vec<(u32, &str)> = merged
        .tensors
        .iter()
        .map(|(row, tensor)| (*row, tensor.name.as_str()))
        .collect();
    assert_eq!(places, [(1, "a"), (2, "b")]);
}
