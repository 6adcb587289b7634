use std::collections::BTreeMap;

use bytes::Bytes;
use inflight_kserve::step::{PromptLogProbs, TopLogProbs};
use proptest::prelude::*;

use super::*;
use crate::executor::{ClientId, NamedTensor};

/// What a client learns of one sequence, whatever the rows it came in.
#[derive(Debug, Default, PartialEq)]
struct Sequence {
    handle: Handle,
    index: i32,
    tokens: Vec<i32>,
    log_probs: Vec<f32>,
    top_log_probs: Vec<(i32, f32)>,
    errors: Vec<(Code, String)>,
    context_phases: Vec<Bytes>,
}

/// The sequences of a batch, by handle and index.
fn sequences(batch: &StepBatch) -> Vec<Sequence> {
    let mut sequences: BTreeMap<(Handle, i32), Sequence> = BTreeMap::new();
    for row in batch.rows() {
        let key = (row.id, row.sequence_index);
        let sequence = sequences.entry(key).or_insert_with(|| Sequence {
            handle: row.id,
            index: row.sequence_index,
            ..Sequence::default()
        });
        sequence.context_phases.extend(row.context_phase.cloned());
        sequence.tokens.extend_from_slice(row.tokens);
        let log_probs = row.log_probs.unwrap_or_default();
        sequence.log_probs.extend_from_slice(log_probs);
        if let Some(top) = row.top_log_probs {
            let tokens = 0..row.tokens.len();
            let alternatives = tokens.flat_map(|token| top.token(token));
            sequence.top_log_probs.extend(alternatives);
        }
        let error = row.error.map(|error| (error.code, error.text.clone()));
        sequence.errors.extend(error);
    }
    sequences.into_values().collect()
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
                let mut batch = StepBatch::default();
                for (sequence, tokens, kind) in rows {
                    if ended[sequence] {
                        continue;
                    }
                    let handle = sequence / 2;
                    let ends = kind == 0;
                    ended[sequence] = ends;
                    let is_final = ends && ended[sequence ^ 1];
                    let ids: Vec<i32> = (next..next + tokens as i32).collect();
                    next += tokens as i32;
                    let log_probs: Vec<f32> = ids.iter().map(|id| *id as f32).collect();
                    let top_ids: Vec<i32> = (0..2 * tokens as i32).collect();
                    let top_values: Vec<f32> = top_ids.iter().map(|id| *id as f32).collect();
                    let top_log_probs = TopLogProbs {
                        width: 2,
                        ids: &top_ids,
                        values: &top_values,
                    };
                    let prompt_log_probs = PromptLogProbs {
                        values: vec![0.5],
                        ..PromptLogProbs::default()
                    };
                    let params = Bytes::from_static(b"left");
                    let error = RowError {
                        row: 0,
                        code: Code::Internal,
                        text: "no".to_owned(),
                        retry_after_ms: 0,
                    };
                    batch.push(&Row {
                        sequence_index: (sequence % 2) as i32,
                        finish_reason: if ends {
                            FinishReason::EndId
                        } else {
                            FinishReason::NotFinished
                        },
                        is_final,
                        error: (is_final && tokens == 3).then_some(&error),
                        log_probs: (handle == 1).then_some(&log_probs),
                        top_log_probs: (handle == 2).then_some(top_log_probs),
                        cached_tokens: (kind == 1).then_some(3),
                        context_phase: is_final.then_some(&params),
                        prompt_log_probs: (kind == 1).then_some(&prompt_log_probs),
                        ..Row::new(Handle(handle as u64), &ids)
                    });
                }
                batch
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn merging_and_splitting_change_no_sequence(history in histories(), limit in 1..400_usize) {
        let mut waiting = StepBatch::default();
        for batch in history {
            prop_assert!(batch.validate().is_ok());
            waiting.append(batch);
        }
        prop_assert!(waiting.validate().is_ok());

        let merged = merge(&waiting);
        prop_assert!(merged.validate().is_ok(), "{:?}", merged.validate());
        prop_assert_eq!(sequences(&merged), sequences(&waiting));
        // A handle's final row is its last, and there are as many as before.
        for (place, handle) in merged.ids.iter().enumerate() {
            if merged.finals[place] == 1 {
                prop_assert!(!merged.ids[place + 1..].contains(handle));
            }
        }
        let finals = |batch: &StepBatch| batch.finals.iter().filter(|last| **last == 1).count();
        prop_assert_eq!(finals(&merged), finals(&waiting));

        let mut joined = StepBatch::default();
        for part in split(merged.clone(), limit) {
            prop_assert!(part.validate().is_ok());
            prop_assert!(part.ids.len() <= 1 || byte_size(&part) <= limit);
            joined.append(part);
        }
        prop_assert_eq!(sequences(&joined), sequences(&merged));
    }
}

#[test]
fn rows_of_several_iterations_become_one() {
    let last = Row {
        finish_reason: FinishReason::Length,
        is_final: true,
        ..Row::new(Handle(7), &[3])
    };
    let rows = [Row::new(Handle(7), &[1]), Row::new(Handle(7), &[2]), last];
    let expected = Row {
        tokens: &[1, 2, 3],
        ..last
    };
    assert_eq!(
        merge(&StepBatch::from_iter(rows)),
        StepBatch::from_iter([expected])
    );
}

#[test]
fn large_outputs_stay_with_their_row() {
    let tensor = |name: &str| NamedTensor {
        name: name.to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![0],
        data: bytes::Bytes::new(),
    };
    let [first, second] = [ClientId(1), ClientId(2)];
    let merged = merge_responses(&ResponseBatch {
        rows: StepBatch::from_iter([
            Row::new(second, &[5]),
            Row::new(first, &[6]),
            Row::new(second, &[7]),
        ]),
        tensors: vec![(0, tensor("a")), (2, tensor("b"))],
    });
    assert_eq!(merged.rows.ids, [first, second, second]);
    let places: Vec<(u32, &str)> = merged
        .tensors
        .iter()
        .map(|(row, tensor)| (*row, tensor.name.as_str()))
        .collect();
    assert_eq!(places, [(1, "a"), (2, "b")]);
}
